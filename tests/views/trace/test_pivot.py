"""Sums by module, axis and phase equal those that polars computes."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsexplore._internal.views.trace.pivot import find_pivot

EVENTS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 2), st.integers(0, 3), st.integers(0, 1000), st.booleans())
)


@pytest.mark.parametrize("most", [0, 10_000_000], ids=["sorted", "looked up"])
@settings(deadline=None)
@given(events=EVENTS, first=st.integers(0, 6), length=st.integers(0, 6))
def test_sums_add_up(most: int, events: list[tuple[int, int, int, int, bool]], first: int, length: int) -> None:
    columns = list(zip(*events, strict=True)) or [(), (), (), (), ()]
    owner, axis, phase = (np.array(column, kind) for column, kind in zip(columns[:3], "lii", strict=True))
    sizes, mask = np.array(columns[3], np.float64), np.array(columns[4], bool)
    pivot = find_pivot(owner, axis, phase, most)
    sums = pivot.sums(mask, sizes)
    found = list(zip(pivot.owner, pivot.axis, pivot.phase, strict=True))
    assert sorted(set(zip(owner, axis, phase, strict=True))) == found
    assert [found[place] for place in pivot.of_event] == list(zip(owner, axis, phase, strict=True))
    frame = pl.DataFrame({"owner": owner, "axis": axis, "size": sizes, "kept": mask})
    inside = frame.filter("kept", pl.col("owner").is_between(first, first + length, closed="left"))
    kept = set(zip(owner[mask], axis[mask], phase[mask], strict=True))
    held = [one for one in sorted(kept) if first <= one[0] < first + length]
    assert [found[place] for place in sums.held_inside([(first, first + length)])] == held
    assert sums.total([(first, first + length)]) == (inside.height, int(inside["size"].sum()))
    assert (sums.counts.sum(), sums.bytes.sum()) == (mask.sum(), sizes[mask].sum())
