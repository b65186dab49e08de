"""The explorer's world map made from sums of events equals the one made from each event."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

from dsexplore._internal.trace.schema import OUTSIDE_STEPS
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.views.explorer.filters import FilteredEvents
from dsexplore._internal.views.explorer.map_panel import MapPanel
from dsexplore._internal.views.explorer.selection import Filters
from dsexplore._internal.views.trace.event_codes import EventCodes
from dsexplore._internal.views.trace.event_lines import EventLines


@pytest.fixture
def codes(trace: Trace) -> EventCodes:
    """Return the events of a trace, each thirty times, of which one is not part of a step."""
    often = pl.concat([trace.events] * 29 + [trace.events.with_columns(phase=pl.lit(OUTSIDE_STEPS[0]))])
    return EventCodes(replace(trace.tables, events=often.with_columns(seq=pl.int_range(pl.len(), dtype=pl.Int64))))


@pytest.mark.parametrize("sizes", ["wire", "message"])
@pytest.mark.parametrize("module", ["", "Net.layers", "Net.layers.3.up"])
@pytest.mark.parametrize(
    "filters", [{}, {"facets": {"phase": "backward"}}, {"facets": {"axis": "tp"}}, {"module": "up"}]
)
def test_filters_by_module_axis_and_phase_look_at_no_event(
    codes: EventCodes, filters: dict[str, Any], module: str, sizes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes.use(sizes)
    passed, rows = FilteredEvents(codes, Filters(**filters)), [codes.tree.row_of[module]] if module else []
    mask = passed.mask & codes.inside(rows) if rows else passed.mask
    panel = MapPanel(codes)
    of_events = panel.world(mask)
    monkeypatch.setattr(EventLines, "totals", None)
    added_up = panel.world(mask, passed.sums.whole_inside(codes.spans(rows)))
    assert added_up.links.equals(of_events.links)
    assert added_up.received.keys() == of_events.received.keys()
    assert all(np.array_equal(added_up.received[axis], of_events.received[axis]) for axis in of_events.received)


@pytest.mark.parametrize("filters", [{"facets": {"op": "all_gather"}}, {"implicit": True}])
def test_any_other_filter_does(codes: EventCodes, filters: dict[str, Any]) -> None:
    passed = FilteredEvents(codes, Filters(**filters))
    assert passed.sums.whole_inside([]) is None
    sent = codes.tables.events.filter(pl.Series(passed.mask) & ~pl.col("phase").is_in(OUTSIDE_STEPS))
    assert MapPanel(codes).world(passed.mask).links["events"].sum() == sent.height
