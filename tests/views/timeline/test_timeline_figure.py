"""The plotly figure of a timeline: its bars are the boxes of the drawing, and stay few."""

from __future__ import annotations

import json
from types import ModuleType

import pytest

from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.views.timeline.timeline_figure import FIGURE_LANES, columns_of, timeline_spec
from dsexplore._internal.views.timeline.timeline_state import TimelineState
from dsexplore._internal.views.trace.figure_spec import Spec


def figure_of(trace: Trace, lanes: str = "collective") -> Spec:
    timeline = trace.timeline(lanes=lanes)
    columns = columns_of(len(timeline.lanes))
    return timeline_spec(TimelineState(timeline, columns, 1500, None, FIGURE_LANES))


def test_a_bar_is_as_long_as_its_collective_and_as_thick_as_its_bytes(traces: ModuleType) -> None:
    rows = [
        traces.event("Net", i, start=1_000_000 * i, end=1_000_000 * i + 500_000 * i, wire_bytes=2**i) for i in (1, 2, 3)
    ]
    (bars,) = figure_of(Trace(Tables(traces.frame("events", rows))))["data"]
    assert bars["base"] == [0, 1, 2]
    assert bars["x"] == [0.5, 1.0, 1.5]
    assert bars["width"] == pytest.approx([0.21, 0.42, 0.84])
    assert {lane + thick for lane, thick in zip(bars["offset"], bars["width"], strict=True)} == {0.42}


def test_a_figure_of_many_lanes_and_spans_stays_small(traces: ModuleType) -> None:
    rows = [traces.event("Net", i, op=f"op{i % 100}") for i in range(20_000)]
    drawn = figure_of(Trace(Tables(traces.frame("events", rows))))
    assert len(drawn["layout"]["yaxis"]["categoryarray"]) == FIGURE_LANES
    assert drawn["layout"]["xaxis"]["title"]["text"].endswith(", 76 more lanes not drawn")
    assert sum(len(bars["x"]) for bars in drawn["data"]) <= 2400
    assert len(json.dumps(drawn)) < 400_000


def test_without_events_there_is_nothing_to_draw() -> None:
    assert figure_of(Trace())["data"] == []
