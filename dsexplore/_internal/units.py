"""Numbers with units as text, and sizes parsed from text: binary units for sizes, decimal units for rates.

KiB, MiB, GiB are powers of 1024; kB, MB, GB are powers of 1000.
"""

import re
from collections.abc import Iterable
from decimal import ROUND_HALF_UP, Decimal
from functools import lru_cache

_TENTH = Decimal("0.1")
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_RATES = ("B/s", "kB/s", "MB/s", "GB/s", "TB/s")
_BINARY_RATES = ("B/s", "KiB/s", "MiB/s", "GiB/s", "TiB/s")
UNITS_OF_SECONDS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))
"""Each unit of time with its length in seconds, the longest first."""
_FACTORS = {
    **{unit.lower(): 1024**power for power, unit in enumerate(_BINARY)},
    **{unit.lower(): 1000**power for power, unit in enumerate(("B", "kB", "MB", "GB", "TB", "PB", "EB"))},
    "": 1,
}


def format_bytes(count: float | None) -> str:
    """Return a size in the largest unit of which it has at least 1, with one decimal: ``1536`` → ``"1.5 KiB"``.

    A decimal of 0 is omitted: ``"2 KiB"``. None is ``"size unknown"``.
    """
    return "size unknown" if count is None else _format_bytes(float(count))


@lru_cache(maxsize=4096)  # tables and maps contain the same sizes many times
def _format_bytes(size: float) -> str:
    """Return a known size as text."""
    for unit in _BINARY:
        if abs(size) < 1023.95 or unit == _BINARY[-1]:
            break
        size /= 1024
    if unit == "B":
        return f"{int(size)} {unit}"
    # ties are rounded away from zero, like JavaScript's toFixed, so that a size looks the same in both languages
    rounded = str(Decimal(size).quantize(_TENTH, ROUND_HALF_UP)).removesuffix(".0")
    return f"{rounded} {unit}"


def format_rate(bytes_per_second: float) -> str:
    """Return a rate in decimal and in binary units, with three digits: ``2.5e9`` → ``"2.50 GB/s (2.33 GiB/s)"``."""
    return f"{_scaled(bytes_per_second, 1000, _RATES)} ({_scaled(bytes_per_second, 1024, _BINARY_RATES)})"


def format_rate_range(low: float, high: float) -> str:
    """Return two rates in the unit of the higher one: ``"48.1–52.3 MB/s"``."""
    text = _scaled(high, 1000, _RATES)
    number, unit = text.split()
    power = _RATES.index(unit)
    digits = len(number.partition(".")[2])
    return f"{low / 1000**power:.{digits}f}–{text}"


def _scaled(value: float, base: int, units: tuple[str, ...]) -> str:
    """Return a number with three digits, in the largest unit of which it has at least 1.

    Args:
        value: number in the first unit.
        base: ratio of a unit to the one before it.
        units: names of the units, the smallest first.
    """
    power = 0
    while abs(value) >= base * 0.9995 and power < len(units) - 1:
        value, power = value / base, power + 1
    digits = 0
    if abs(value) < 9.995:
        digits = 2
    elif abs(value) < 99.95:
        digits = 1
    return f"{value:.{digits}f} {units[power]}"


def format_seconds(seconds: float) -> str:
    """Return a duration with three significant digits: ``0.00125`` → ``"1.25 ms"``, ``1234`` → ``"1,230 s"``."""
    if seconds == 0:
        return "0 s"
    unit, scale = unit_of_seconds([seconds])
    return f"{format_number(seconds / scale)} {unit}"


def unit_of_seconds(durations: Iterable[float]) -> tuple[str, float]:
    """Return the unit in which to show several durations, that of the longest, with its seconds: ``("ms", 0.001)``."""
    longest = max(map(abs, durations), default=0.0) or 1.0
    fits = (unit for unit in UNITS_OF_SECONDS if longest >= 0.9995 * unit[1])  # 999.6 ms would be shown as 1,000 ms
    return next(fits, UNITS_OF_SECONDS[-1])


def format_number(number: float) -> str:
    """Return a number with three significant digits, without an exponent: ``1284`` → ``"1,280"``."""
    rounded = f"{number:.3g}"
    return f"{float(rounded):,.0f}" if abs(number) >= 999.5 else rounded


def format_count(count: int, noun: str) -> str:
    """Return a count with its noun, with an s for the plural: ``"1 rank"``, ``"1,024 ranks"``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def format_share(part: float, whole: float) -> str:
    """Return a share in percent, ``"75 %"``; ``"100 %"`` and ``"0 %"`` are exact, others are ``"over 99 %"`` etc."""
    percent = round(100 * part / whole)
    if percent >= 100 and part < whole:
        return "over 99 %"
    return "under 1 %" if percent <= 0 < part else f"{percent} %"


def format_change(change: float) -> str:
    """Return a relative change in percent: ``-0.2`` → ``"−20 %"``, ``0.001`` → ``"under 1 % more"``, 0 → ``"±0 %"``."""
    share = format_share(abs(change), 1.0)
    if not share[0].isdecimal():
        return f"{share} {'more' if change > 0 else 'less'}"
    if change == 0:
        return f"±{share}"
    return f"+{share}" if change > 0 else f"−{share}"


def format_ranks(ranks: Iterable[int]) -> str:
    """Return ranks as text, runs of three or more shortened: ``"rank 3"``, ``"ranks 0, 1, 4–7"``, ``"no rank"``."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    if not runs:
        return "no rank"
    words: list[str] = []
    for run in runs:
        words += [f"{run[0]}–{run[-1]}"] if len(run) > 2 else [str(rank) for rank in run]
    is_single = len(runs) == len(runs[0]) == 1
    return f"{'rank' if is_single else 'ranks'} {', '.join(words)}"


def format_ranges(numbers: Iterable[int], most: int = 6) -> str:
    """Return numbers as ranges, ``[0, 1, 2, 5, 7, 8]`` → ``"0–2, 5, 7–8"``; of more than ``most``, some are ``…``."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    words = [str(first) if first == last else f"{first}–{last}" for first, last in ranges]
    if len(words) <= most:
        return ", ".join(words)
    return ", ".join([*words[: most - 1], "…", words[-1]])


def parse_size(text: str | int) -> int:
    """Return the bytes of a size: ``"1GiB"``, ``"4k"``, ``"512"``, or a number of bytes.

    A single letter (``k``, ``m``, ``g``, ``t``, ``p``, ``e``) is a binary unit, as in fio and dd.

    Raises:
        ValueError: the unit is unknown, or the size is negative or infinite.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        if text < 0:
            raise ValueError(f"size {text} is negative: give a number of bytes, or text such as '1GiB'")
        return text
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", str(text))
    unit = match.group(2).lower() if match else ""
    if len(unit) == 1 and unit in "kmgtpe":
        unit += "ib"
    if match is None or unit not in _FACTORS:
        raise ValueError(f"size {text!r} is not a number of bytes with a unit: write it like '1GiB', '500MB', '4096'")
    return int(float(match.group(1)) * _FACTORS[unit])
