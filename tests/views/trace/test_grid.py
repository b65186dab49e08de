"""Grids: the largest rows and columns, and the others together.

Modules: ``views/trace/tally.py``.
"""

from __future__ import annotations

import pytest

from dsexplore._internal.views.trace.tally import OTHERS, grid


def test_rows_and_columns_are_in_order_of_their_bytes() -> None:
    found = grid({("a", "x"): 1.0, ("b", "x"): 5.0, ("b", "y"): 7.0, ("c", "y"): 1.0})
    assert (found.rows, found.columns) == (["b", "a", "c"], ["y", "x"])
    assert found.values.tolist() == [[7, 5], [0, 1], [1, 0]]


@pytest.mark.parametrize(("rows", "last"), [(5, ["r0"]), (6, [OTHERS])])
def test_past_the_most_the_least_rows_become_one(rows: int, last: list[str]) -> None:
    found = grid({(f"r{i}", "x"): float(i + 1) for i in range(rows)}, most=5)
    assert found.rows == [*(f"r{i}" for i in range(rows - 1, rows - 5, -1)), *last]
    assert found.values.sum() == sum(range(rows + 1))


@pytest.mark.parametrize(("columns", "last"), [(10, "c0"), (11, OTHERS)])
def test_past_ten_the_least_columns_become_one(columns: int, last: str) -> None:
    found = grid({("r", f"c{i}"): float(i + 1) for i in range(columns)})
    assert len(found.columns) == 10
    assert found.columns[-1] == last
    assert found.values.sum() == sum(range(columns + 1))
