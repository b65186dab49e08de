import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dsexplore
from dsexplore._internal.units import (
    format_bytes,
    format_change,
    format_count,
    format_ranks,
    format_rate,
    format_rate_range,
    format_seconds,
    format_share,
    parse_size,
)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (2**20 - 1, "1 MiB"), (5 * 2**30, "5 GiB")],
)
def test_bytes_are_binary(count: int, text: str) -> None:
    assert format_bytes(count) == text


@given(st.integers(0, 2**62))
def test_bytes_stay_short(count: int) -> None:
    number, unit = format_bytes(count).split()
    assert float(number) < 1024
    assert unit[-1] == "B"


def test_rate_names_both_units() -> None:
    assert format_rate(2.5e9) == "2.50 GB/s (2.33 GiB/s)"
    assert format_rate(50e6) == "50.0 MB/s (47.7 MiB/s)"
    assert format_rate(999.96e6) == "1.00 GB/s (954 MiB/s)"
    assert format_rate(12.34e9) == "12.3 GB/s (11.5 GiB/s)"
    assert format_rate(0.0) == "0.00 B/s (0.00 B/s)"
    assert format_rate_range(48.12e6, 52.31e6) == "48.1–52.3 MB/s"
    assert format_rate_range(900e6, 1.1e9) == "0.90–1.10 GB/s"


@pytest.mark.parametrize(
    ("part", "text"),
    [(750, "75 %"), (1000, "100 %"), (999, "over 99 %"), (994, "99 %"), (0, "0 %"), (1, "under 1 %"), (5.1, "1 %")],
)
def test_only_all_is_100_percent_and_only_nothing_is_0(part: float, text: str) -> None:
    assert format_share(part, 1000) == text


@pytest.mark.parametrize(("count", "text"), [(0, "0 ranks"), (1, "1 rank"), (1024, "1,024 ranks")])
def test_a_count_has_its_noun_in_the_right_number(count: int, text: str) -> None:
    assert format_count(count, "rank") == text


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (0.2, "+20 %"),
        (-0.125, "−12 %"),
        (0, "±0 %"),
        (1.5, "+150 %"),
        (0.001, "under 1 % more"),
        (-0.999, "over 99 % less"),
    ],
)
def test_a_change_has_a_sign(change: float, text: str) -> None:
    assert format_change(change) == text


def test_percent_has_one_form() -> None:
    """Python's own format, ``:.0%``, has no space before the sign."""
    folder = Path(dsexplore.__file__).parent
    found = [
        path.name for path in folder.rglob("*.py") if re.search(r"\{[^{}]*:[+,]*(\.\d+)?%\}", path.read_text("utf-8"))
    ]
    assert not found


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (1.5, "1.5 s"), (0.00125, "1.25 ms"), (3e-9, "3 ns"), (0.9996, "1 s"), (1234, "1,230 s")],
)
def test_seconds(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("text", "size"),
    [("1GiB", 2**30), ("1 GB", 10**9), ("4k", 4096), ("512", 512), (7, 7), ("1.5 MiB", 3 * 2**19), ("2t", 2**41)],
)
def test_sizes_are_read(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "1 parsec", "-1", "1e3", "inf", -4, "1GiBs"])
def test_a_size_that_is_none_is_named(text: str | int) -> None:
    with pytest.raises(ValueError, match="size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([], "no rank"),
        ([3], "rank 3"),
        ([1, 0], "ranks 0, 1"),
        ([7, 0, 4, 5, 6], "ranks 0, 4–7"),
        (range(3), "ranks 0–2"),
        ([2, 2, 1], "ranks 1, 2"),
    ],
)
def test_ranks_as_text(ranks: list[int], text: str) -> None:
    assert format_ranks(ranks) == text


def test_a_tie_is_rounded_as_a_browser_does() -> None:
    assert format_bytes(774_400) == "756.3 KiB"  # 756.25: JavaScript's toFixed(1) gives 756.3
    assert format_bytes(-774_400) == "-756.3 KiB"
    assert format_bytes(1_310_720) == "1.3 MiB"
    assert format_bytes(1536) == "1.5 KiB"
