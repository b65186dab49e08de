"""Sums by cell against sums that polars makes."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsexplore.views.trace.pivot import find_cells

EVENTS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 2), st.integers(0, 3), st.integers(0, 1000), st.booleans())
)


@pytest.mark.parametrize("most", [0, 10_000_000], ids=["sorted", "looked up"])
@settings(deadline=None)
@given(events=EVENTS, first=st.integers(0, 6), length=st.integers(0, 6))
def test_cells_add_up(most: int, events: list[tuple[int, int, int, int, bool]], first: int, length: int) -> None:
    columns = list(zip(*events, strict=True)) or [(), (), (), (), ()]
    owner, axis, phase = (np.array(column, np.int64) for column in columns[:3])
    sizes, mask = np.array(columns[3], np.float64), np.array(columns[4], bool)
    cells = find_cells(owner, (axis, 3), (phase, 4), 6, most)
    sums = cells.sums(mask, sizes)
    assert sorted(set(zip(owner, axis, phase, strict=True))) == list(
        zip(cells.owner, cells.axis, cells.phase, strict=True)
    )
    frame = pl.DataFrame({"owner": owner, "axis": axis, "size": sizes, "kept": mask})
    inside = frame.filter("kept", pl.col("owner").is_between(first, first + length, closed="left"))
    assert sums.total([(first, first + length)]) == (inside.height, int(inside["size"].sum()))
    some = sums.only(cells.axis == 1)
    kept = cells.sums(mask & (axis == 1), sizes)
    assert np.array_equal(some.counts, kept.counts)
    assert np.array_equal(some.bytes, kept.bytes)
