"""The lanes of the sequence: every event in its bins, in program order and in time."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsexplore.trace.tables import Tables
from dsexplore.views.trace.lanes import lane_names, lanes, phase_runs, placed


@pytest.mark.parametrize("count", [1, 95, 96, 97, 1000])
@pytest.mark.parametrize("bins", [10, 96])
def test_every_event_is_in_the_bin_whose_edges_hold_it(traces: ModuleType, count: int, bins: int) -> None:
    events = traces.frame("events", [traces.event("Net", i) for i in range(count)])
    found = lanes(events, bins)
    assert found.bytes.shape[1] <= bins
    assert found.counts.sum() == count
    for column in range(found.bytes.shape[1]):
        low, high = found.edges(column)
        assert found.counts[0, column] == events.filter((pl.col("seq") >= low) & (pl.col("seq") < high)).height


def test_a_window_is_binned_anew(traces: ModuleType) -> None:
    events = traces.frame("events", [traces.event("Net", i) for i in range(1000)])
    found = lanes(events, 10, window=(100, 119))
    assert found.counts.sum() == 20
    assert found.width == 2


def test_one_event_without_times_leaves_the_others_in_time(traces: ModuleType) -> None:
    spans = [(None, None), (100, 140), (None, None), (120, None), (200, 210)]
    events = traces.frame("events", [traces.event("Net", i, start=a, end=b) for i, (a, b) in enumerate(spans)])
    assert placed(events).select("begin", "end").rows() == [(0, 0), (0, 40), (0, 0), (20, 20), (100, 110)]
    assert lanes(events).unit == "ns"


SPANS = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 400)), min_size=1, max_size=12)


@settings(deadline=None, max_examples=60)
@given(spans=SPANS, bins=st.integers(1, 12), window=st.none() | st.tuples(st.integers(0, 200), st.integers(1, 300)))
def test_in_time_an_event_is_in_every_bin_from_its_start_to_its_end(
    traces: ModuleType, spans: list[tuple[int, int]], bins: int, window: tuple[int, int] | None
) -> None:
    rows = [traces.event("Net", i, start=a, end=a + b, wire_bytes=2**i) for i, (a, b) in enumerate(spans)]
    events = traces.frame("events", rows)
    found = lanes(events, bins, window=window and (float(window[0]), float(sum(window))))
    zero = min(start for start, _ in spans)
    shown = range(found.bytes.shape[1])
    for column in shown:
        low, high = found.edges(column)
        held = [
            2**i
            for i, (start, length) in enumerate(spans)
            if (low <= start - zero < high or (column == shown[-1] and start - zero == found.last))
            or start - zero < low < start - zero + length
        ]
        told = placed(events).filter(found.holds(column))["bytes"].to_list()
        assert told == held
        if found.labels:
            assert (found.bytes[0, column], found.counts[0, column]) == (sum(held), len(held))
            assert bool(found.phases[0][column]) == bool(held)


def test_a_lane_counts_its_events_and_not_their_bins(traces: ModuleType) -> None:
    rows = [traces.event("Net", i, start=100 * i, end=100 * i + 90) for i in range(4)]
    found = lanes(traces.frame("events", rows))
    assert found.events == [4]
    assert found.counts[0].sum() > 80


def test_lanes_of_several_ranks_without_an_axis_or_group_are_told_apart(traces: ModuleType) -> None:
    rows = [traces.event("Net", 0, rank=rank, axis="", group="") for rank in (0, 1)]
    assert lane_names(lanes(traces.frame("events", rows))) == ["rank 0 · all_reduce", "rank 1 · all_reduce"]
    assert lane_names(lanes(traces.frame("events", rows[:1]))) == ["all_reduce"]


def test_lanes_beyond_the_most_are_counted(traces: ModuleType) -> None:
    rows = [traces.event("Net", i, op=f"op{i}") for i in range(5)]
    assert lanes(traces.frame("events", rows), most=5).hidden == 0
    found = lanes(traces.frame("events", rows), most=3)
    assert ([op for _, _, op in found.labels], found.hidden) == (["op0", "op1", "op2"], 2)


def test_no_events_give_no_lanes() -> None:
    found = lanes(Tables().events)
    assert found.labels == []
    assert np.all(found.counts == 0)
    assert phase_runs(found) == [("", 0, found.bytes.shape[1])]
