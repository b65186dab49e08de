"""Numbers with their units, as cluster files write them: ``"450 GB/s"``, ``"1.8 us"``, ``"989 TFLOP/s"``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

_DECIMAL = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 1024.0, "Mi": 1024.0**2, "Gi": 1024.0**3, "Ti": 1024.0**4}


@dataclass(frozen=True)
class Dimension:
    """A kind of quantity: its units with their factors, and what values make sense.

    Attributes:
        name: in words.
        units: each unit that a file may write, with its factor to B/s, s, FLOP/s or B.
        smallest: the least value that is believed, in that base unit.
        largest: the greatest.
        example: how to write one.
    """

    name: str
    units: dict[str, float]
    smallest: float
    largest: float
    example: str


BANDWIDTH = Dimension(
    "bandwidth",
    {f"{p}B/s": f for p, f in {**_DECIMAL, **_BINARY}.items()} | {f"{p}bit/s": f / 8 for p, f in _DECIMAL.items()},
    1e3,
    1e15,
    "450 GB/s",
)
TIME = Dimension("time", {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}, 0.0, 10.0, "1.8 us")
COMPUTE = Dimension("compute", {f"{p}FLOP/s": f for p, f in _DECIMAL.items()}, 1e6, 1e18, "989 TFLOP/s")
SIZE = Dimension("size", {f"{p}B": f for p, f in {**_DECIMAL, **_BINARY}.items()}, 1.0, 1e15, "80 GB")


def parse_quantity(text: object, dimension: Dimension) -> float:
    """Parse a text into the base unit of its dimension: ``("450 GB/s", BANDWIDTH)`` → 4.5e11.

    Raises:
        ValueError: no number, a missing or wrong unit, or an implausible value.
    """
    match = re.fullmatch(r"\s*([-+0-9.eE]+)\s*(\S*)\s*", text) if isinstance(text, str) else None
    number = _float(match.group(1)) if match else None
    if match is None or number is None:
        bare = isinstance(text, int | float) and not isinstance(text, bool)
        reason = "has no unit" if bare else "is not a number with a unit"
        raise ValueError(f"{text!r} {reason}: write a {dimension.name} like {dimension.example!r}")
    unit = match.group(2)
    if unit not in dimension.units:
        reason = f"has the unit {unit!r}, which is no {dimension.name}" if unit else "has no unit"
        raise ValueError(f"{text!r} {reason}: write it like {dimension.example!r}")
    value = number * dimension.units[unit]
    if not dimension.smallest <= value <= dimension.largest:
        raise ValueError(f"{text!r} is not a {dimension.name} that can be meant: write it like {dimension.example!r}")
    return value


def parse_fraction(value: object) -> float:
    """Return a number above 0 and at most 1 unchanged.

    Raises:
        ValueError: anything else.
    """
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1:
        return float(value)
    raise ValueError(f"{value!r} is not a fraction: write a number above 0 and at most 1")


def quantity_of(dimension: Dimension) -> Callable[[object], float]:
    """Return `parse_quantity` for one dimension."""
    return lambda text: parse_quantity(text, dimension)


def _float(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
