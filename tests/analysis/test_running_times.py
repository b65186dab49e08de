"""For how many seconds collectives ran that use a rank or a link; waiting is never among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsexplore import Trace
from dsexplore._internal.analysis.link_flows import BETWEEN, INSIDE
from dsexplore._internal.analysis.running_times import covered, measured_times
from dsexplore._internal.errors import UsageError
from dsexplore._internal.trace import schema
from dsexplore._internal.trace.tables import Tables, TraceInfo

MS = 1_000_000
GROUPS = {"g_tp": ("tp", [0, 1]), "g_dp": ("dp", [0, 2]), "g_all": ("", [0, 1, 2, 3])}
_ZERO = {"step": 0, "phase": "forward", "message_bytes": 1024, "wire_bytes": 1024, "state": "completed"}


def made(*events: tuple[int, str, float, float], **columns: Sequence[Any]) -> Trace:
    """Events of (rank, group, begin, end), times in ms; ``columns`` have a value for each."""
    rows = []
    for i, (rank, group, begin, end) in enumerate(events):
        row = dict.fromkeys(schema.EVENTS) | {"op": "all_reduce", "owner": "", "trigger": ""} | _ZERO
        row |= {"rank": rank, "seq": i, "group": group, "axis": GROUPS[group][0], "start": begin * MS, "end": end * MS}
        rows.append(row | {name: values[i] for name, values in columns.items()})
    groups = [
        {"group": name, "axis": axis, "mesh": "", "ranks": ranks, "size": len(ranks), "backend": "gloo",
         "timing": "work"}
        for name, (axis, ranks) in GROUPS.items()
    ]  # fmt: skip
    ranks = tuple(sorted({event[0] for event in events}))
    return Trace(
        Tables(
            events=pl.DataFrame(rows, schema=schema.EVENTS),
            groups=pl.DataFrame(groups, schema=schema.GROUPS),
            info=TraceInfo(world_size=4, ranks=ranks),
        )
    )


def ms_of(trace: Trace, axis: str | None = None) -> list[float]:
    found: list[float] = (1e3 * trace.world_map(2, shade="seconds").to_shades(axis)).round(6).tolist()
    return found


def test_waiting_for_a_late_rank_is_on_no_rank_and_no_link() -> None:
    trace = made((0, "g_tp", 0, 9), (1, "g_tp", 6, 10))
    assert ms_of(trace) == [4, 4, 0, 0]
    links = trace.world_map(2, shade="seconds").to_frame()
    assert links.select("rank", "axis", "level").rows() == [(0, "tp", INSIDE), (1, "tp", INSIDE)]
    assert links["seconds"].to_list() == pytest.approx([0.004, 0.004])
    assert trace.skew().to_frame()["duration"].to_list() == pytest.approx([0.004])


def test_what_runs_at_the_same_time_counts_once_and_axes_are_apart() -> None:
    trace = made((0, "g_tp", 0, 4), (0, "g_dp", 2, 5), (0, "g_tp", 8, 9))
    assert ms_of(trace) == [6, 5, 3, 0]
    assert ms_of(trace, "dp") == [3, 0, 3, 0]
    world = trace.world_map(2, shade="seconds")
    assert {(one.axis, one.level): round(1e3 * one.seconds, 6) for one in world.levels} == {
        ("tp", INSIDE): 5,
        ("dp", BETWEEN): 3,
    }
    assert world.most_seconds == pytest.approx({INSIDE: 0.005, BETWEEN: 0.003})


def test_a_group_on_two_nodes_runs_on_the_links_of_both_levels() -> None:
    world = made((0, "g_all", 1, 3)).world_map(2, shade="seconds")
    assert world.to_frame()["seconds"].to_list() == pytest.approx([0.002, 0.002])
    assert set(world.to_frame()["level"]) == {INSIDE, BETWEEN}


def test_seconds_are_of_a_step_and_start_up_is_apart() -> None:
    events = ((0, "g_tp", 0, 50), (0, "g_tp", 60, 64), (0, "g_tp", 70, 72))
    trace = made(*events, phase=["start-up", "forward", "forward"], step=[0, 0, 1])
    assert ms_of(trace) == [3, 3, 0, 0]
    assert "the mean of 2 steps" in trace.world_map(shade="seconds")._repr_mimebundle_()["text/plain"]


def test_a_receive_does_not_count_the_wait_for_its_sender() -> None:
    ends = {"op": ["send", "recv"], "peer": [2, 0]}
    assert ms_of(made((0, "g_all", 7, 9), (2, "g_all", 0, 9), **ends)) == [2, 0, 2, 0]


def test_what_never_ended_has_no_seconds_and_numbers_go_on_behind_it() -> None:
    trace = made((0, "g_tp", 0, 9), (0, "g_tp", 20, 25), (1, "g_tp", 3, 4), (1, "g_tp", 24, 25))
    ends = pl.Series([None, 25 * MS, None, 25 * MS])
    assert ms_of(Trace(replace(trace.tables, events=trace.events.with_columns(end=ends)))) == [1, 1, 0, 0]


def test_a_selection_is_the_same_whatever_shades_the_map() -> None:
    trace = made((0, "g_tp", 0, 4), (0, "g_dp", 2, 5), (1, "g_tp", 1, 4))
    by_bytes, by_seconds = trace.world_map(2), trace.world_map(2, shade="seconds")
    for rank in range(4):
        assert by_bytes.talks_to(rank).events.equals(by_seconds.talks_to(rank).events)
    assert by_bytes.sent_over("dp", BETWEEN).events.equals(by_seconds.sent_over("dp", BETWEEN).events)
    assert (by_bytes.to_each() == by_seconds.to_each()).all()


def test_seconds_that_nobody_knows_are_refused() -> None:
    trace = made((0, "g_tp", 0, 4))
    untimed = pl.lit(None, pl.Int64)
    simulated = Trace(replace(trace.tables, events=trace.events.with_columns(start=untimed, end=untimed)))
    assert measured_times(simulated.tables) is None
    with pytest.raises(UsageError, match=r"no collective of this trace has a measured duration; give hardware="):
        simulated.world_map(shade="seconds")
    with pytest.raises(UsageError, match=r"shade='hours'.*bytes, seconds"):
        trace.world_map(shade="hours")


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=30))
def test_covered_is_the_number_of_moments_in_any_range(ranges: list[tuple[int, int]]) -> None:
    ranges = sorted((begin, begin + length) for begin, length in ranges)
    moments = {moment for begin, end in ranges for moment in range(begin, end)}
    begin, end = (np.array([one[i] for one in ranges], float) for i in range(2))
    assert covered(begin, end) == len(moments)
