"""The explorer's timeline drawn from sums of spans equals the one drawn from each span."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.views.explorer.filters import FilteredEvents
from dsexplore._internal.views.explorer.selection import Filters, Pick
from dsexplore._internal.views.explorer.timeline_panel import TimelinePanel
from dsexplore._internal.views.trace.event_codes import EventCodes

BY_KIND = [
    {},
    {"phase": "backward"},
    {"axis": "tp"},
    {"axis": ["dp", "tp"], "phase": "forward"},
    {"phase": "none such"},
]


@pytest.fixture
def codes(trace: Trace) -> EventCodes:
    """Return the events of a trace, each two hundred times, so that they are drawn in columns."""
    often = pl.concat([trace.events] * 200).with_columns(seq=pl.int_range(pl.len(), dtype=pl.Int64))
    return EventCodes(replace(trace.tables, events=often))


@pytest.mark.parametrize("facets", BY_KIND)
def test_kinds_are_the_events_of_a_filter_by_axis_and_phase(codes: EventCodes, facets: dict[str, Any]) -> None:
    kinds = FilteredEvents(codes, Filters(facets)).kinds
    assert kinds is not None
    assert np.array_equal(kinds[codes.kind], codes.mask(facets))


@pytest.mark.parametrize(
    "filters",
    [
        Filters({"op": "all_gather"}),
        Filters(implicit=True),
        Filters(module="*.up"),
        Filters(picks={"map": Pick(np.zeros(0, bool), "rank 1")}),
    ],
)
def test_any_other_filter_has_none(codes: EventCodes, filters: Filters) -> None:
    assert FilteredEvents(codes, filters).kinds is None


@pytest.mark.parametrize("facets", BY_KIND)
@pytest.mark.parametrize("sizes", ["wire", "message"])
def test_the_timeline_is_the_same_by_kinds(codes: EventCodes, facets: dict[str, Any], sizes: str) -> None:
    passed = FilteredEvents(codes, Filters(facets))
    of_spans = TimelinePanel(codes.tables, sizes).drawn(passed.mask)
    panel = TimelinePanel(codes.tables, sizes, codes.kind)
    panel.prepare()
    assert panel.drawn(passed.mask, passed.kinds) == of_spans


def test_a_filter_by_phase_looks_at_sums_alone(codes: EventCodes) -> None:
    passed, panel = (
        FilteredEvents(codes, Filters({"phase": "backward"})),
        TimelinePanel(codes.tables, "wire", codes.kind),
    )
    panel.prepare()
    before = panel.drawn(passed.mask, passed.kinds)
    panel.state.spans.bytes = np.zeros(0)  # whoever looks at a span's bytes raises
    assert panel.drawn(passed.mask, passed.kinds) == before
    with pytest.raises(IndexError):
        panel.drawn(passed.mask)


def test_a_part_of_the_timeline_is_drawn_of_its_spans(codes: EventCodes) -> None:
    passed, panel = (
        FilteredEvents(codes, Filters({"phase": "backward"})),
        TimelinePanel(codes.tables, "wire", codes.kind),
    )
    of_spans = TimelinePanel(codes.tables, "wire")
    for each in (panel, of_spans):
        each.state.zoom(100, len(codes) - 100)
    assert panel.drawn(passed.mask, passed.kinds) == of_spans.drawn(passed.mask)
