"""Times are moved only where the clocks differ for sure, and never those of ranks that share a clock.

Modules: ``trace/clocks.py``, ``trace/merge.py``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsexplore._internal.trace.clocks import align
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.units import format_seconds
from tests.trace.conftest import build

MS = 1_000_000
GROUPS = pl.DataFrame([("a", [0, 1])], schema={"group": pl.String, "ranks": pl.List(pl.Int32)}, orient="row")


def tables(starts: Any, ends: Any, clocks: tuple[str, ...] = ()) -> Tables:
    """Collectives of two ranks that begin and end at these milliseconds, a row for each rank."""
    row = {"group": "a", "op": "all_reduce", "group_size": 2, "state": "completed"}
    rows = [
        {**row, "rank": rank, "start": round(start * MS), "end": round(end * MS), "group_seq": number}
        for rank in (0, 1)
        for number, (start, end) in enumerate(zip(starts[rank], ends[rank], strict=True))
    ]
    built = build(rows, (0, 1), clocks=clocks)
    return Tables(events=built.events, modules=built.modules, groups=GROUPS, info=built.info)


def drawn(seed: int, count: int, noise: str) -> tuple[Any, Any]:
    """Starts and ends of collectives to which two ranks of one clock come up to 200 ms apart."""
    draw = np.random.default_rng(seed)
    true = np.cumsum(draw.uniform(250, 350, count))
    late = np.zeros((2, count))
    if noise == "both":
        late = draw.exponential(2, (2, count))
    elif noise == "a busy rank":
        late[1] = draw.uniform(0, 90, count)
    elif noise == "bursts":
        late[0] = draw.normal(40, 4, count) * (draw.random(count) < 0.3)
    starts = true - 3 - draw.uniform(0, 200, (2, count))
    starts[draw.integers(2)] = true - 3
    return starts, true + late


@given(st.integers(0, 2**32 - 1), st.integers(3, 40), st.sampled_from(["both", "a busy rank", "bursts"]))
@settings(max_examples=200, deadline=None)
def test_equal_clocks_are_left_alone_also_where_they_have_no_names(seed: int, count: int, noise: str) -> None:
    made = tables(*drawn(seed, count, noise))
    found = align(made)
    assert set(found.info.clock_offsets) == {0}
    assert found.events.equals(made.events)


@given(
    st.integers(0, 2**32 - 1),
    st.integers(3, 40),
    st.one_of(st.floats(-(10**5), -500), st.floats(500, 10**5)),
)
@settings(max_examples=100, deadline=None)
def test_clocks_that_let_a_rank_end_before_another_began_are_aligned(seed: int, count: int, ahead: float) -> None:
    """By more than the ranks come apart; then to within the noise of their ends."""
    starts, ends = drawn(seed, count, "both")
    starts[1] += ahead
    ends[1] += ahead
    found = align(tables(starts, ends))
    assert found.info.clock_offsets[1] / MS == pytest.approx(ahead, abs=15)
    (note,) = found.info.notes
    assert note.startswith("clocks were aligned by the ends of collectives: rank 1 by ")
    assert f"(± {format_seconds(found.info.clock_residuals[1] / 1e9)} by chance, " in note


def test_a_difference_that_chance_cannot_explain_is_applied_and_a_smaller_one_is_not() -> None:
    """Collectives last 50 ms, so that equal clocks are possible."""
    starts, ends = [[100.0 * i for i in range(8)]] * 2, np.arange(8) * 100.0 + 50
    noise = np.array([0.0, 0.1, -0.1, 0.05, -0.05, 0.02, 0.01, -0.01])
    for ahead, count, applied in ((20, 8, 20), (0.6, 8, 0), (20, 7, 0)):
        apart = np.array([ends, ends + ahead + noise])[:, :count]
        found = align(tables([one[:count] for one in starts], apart)).info.clock_offsets[1]
        assert found / MS == pytest.approx(applied, abs=0.05)


@pytest.mark.parametrize("clocks", [("host", "host"), ("host", "other")])
def test_ranks_that_share_a_clock_are_never_moved(clocks: tuple[str, str]) -> None:
    starts, ends = drawn(1, 9, "both")
    starts[1] += 10**6
    ends[1] += 10**6
    shared = clocks[0] == clocks[1]
    assert (align(tables(starts, ends, clocks)).info.clock_offsets[1] == 0) == shared
