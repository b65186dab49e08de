"""`Range`: sums, scaling, order and text."""

from __future__ import annotations

import pytest

from dsexplore import UsageError
from dsexplore.cost import Range


def test_ranges_add_end_by_end_and_to_numbers() -> None:
    assert Range(1, 2, 4) + Range(1, 1, 2) == Range(2, 3, 6)
    assert sum([Range(1, 2, 4), Range.exactly(1)]) == Range(2, 3, 5)
    assert 2 * Range(1, 2, 4) == Range(1, 2, 4) * 2 == Range(2, 4, 8)
    assert Range(2, 4, 8) / 2 == Range(1, 2, 4)


def test_order_is_that_of_what_is_expected() -> None:
    slow, fast = Range(1, 3, 9), Range(2, 2, 2)
    assert sorted([slow, fast]) == [fast, slow]
    assert slow > 2.5
    assert slow >= Range(0, 3, 3) >= slow
    assert slow <= Range(0, 3, 3) <= slow
    assert not fast >= slow
    assert not slow <= fast
    assert slow.overlaps(fast)
    assert not Range(3, 3, 3).overlaps(fast)
    assert slow.at_most(fast) == Range(1, 2, 2)
    assert 9 in slow
    assert 9.1 not in slow


def test_text_has_units() -> None:
    assert str(Range(1.1e-3, 1.25e-3, 1.4e-3)) == "1.25 ms (1.1 ms to 1.4 ms)"
    assert str(Range.exactly(2048.0, "B")) == "2 KiB"
    assert str(Range.within(2.0, 0.1, 0.2, "")) == "2 (1.8 to 2.4)"


def test_a_sum_says_why_its_widest_part_is_wide() -> None:
    narrow, wide = Range(1, 2, 3, why="measured"), Range(1, 2, 9, why="never measured")
    assert (narrow + wide).why == (wide + narrow).why == "never measured"
    assert (narrow * 10 + wide).why == "measured"
    assert (wide + 1.0).why == (wide / 2).why == "never measured"
    assert wide.at_most(narrow).why == narrow.at_most(wide).why == "measured"
    assert narrow == Range(1, 2, 3)


@pytest.mark.parametrize(("low", "expected", "high"), [(2, 1, 3), (1, 2, float("inf")), (float("nan"), 1, 2)])
def test_three_numbers_that_do_not_ascend_are_refused(low: float, expected: float, high: float) -> None:
    with pytest.raises(UsageError, match="no range"):
        Range(low, expected, high)


def test_units_do_not_mix() -> None:
    with pytest.raises(UsageError, match="cannot be combined"):
        Range.exactly(1.0) + Range.exactly(1.0, "B")
    with pytest.raises(UsageError, match="unit 'ms' is not known"):
        Range.exactly(1.0, "ms")
    with pytest.raises(UsageError, match="factor -1"):
        Range.exactly(1.0) * -1
