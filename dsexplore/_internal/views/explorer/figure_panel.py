"""The explorer's figure: events of the selected module that pass all filters, drawn in one of several kinds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl

from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.views.explorer.clicked_marks import ClickedFigure, pick_at
from dsexplore._internal.views.explorer.selected_events import SelectedEvents
from dsexplore._internal.views.explorer.selection import Filters, Pick
from dsexplore._internal.views.timeline.timeline_figure import timeline_spec
from dsexplore._internal.views.timeline.timeline_state import TimelineState
from dsexplore._internal.views.trace.event_codes import EventCodes
from dsexplore._internal.views.trace.figure_spec import EMPTY, Spec, finished
from dsexplore._internal.views.trace.figures import figure_of, module_heatmap, sequence_state, top_of, why_empty

TITLES = {
    "modules": "module × axis", "ops": "op × phase", "sequence": "sequence", "ranks": "who talks to whom",
    "sankey": "sankey", "sizes": "message sizes", "bandwidth": "bandwidth",
}  # fmt: skip
"""{kind of figure: its name in the list of figures}."""
_READ = ("rank", "step", "seq", "op", "phase", "axis", "group", "peer", "message_bytes", "wire_bytes", "start", "end")
"""Columns of events that figures read."""


class FigurePanel:
    """One figure of a trace.

    Args:
        codes: events of the trace.
    """

    def __init__(self, codes: EventCodes) -> None:
        self._codes = codes
        self.rows: list[int] = []
        """Rows of the modules that are shown; empty for all."""
        self._sequence: tuple[str, TimelineState] | None = None
        """(sizes, timeline) of the sequence, built when first shown."""
        self._tops: dict[tuple[str, str], float] = {}
        self._spec = EMPTY

    def begin(self, rows: list[int]) -> None:
        """Show the modules of ``rows``, or all if empty, and reset the zoom."""
        self.rows = rows
        if self._sequence is not None:
            self._sequence[1].show_all()

    def zoom(self, extent: list[float] | None) -> None:
        """Zoom the sequence to a part of its axis; None shows all of it."""
        state = self._state()
        scale = 1e-3 if state.timeline.order == "measured" else 1.0
        if extent is None:
            state.show_all()
        else:
            state.zoom(float(extent[0]) * scale, float(extent[1]) * scale)

    def _state(self) -> TimelineState:
        sizes = self._codes.kind_of_sizes
        if self._sequence is None or self._sequence[0] != sizes:
            self._sequence = sizes, sequence_state(self._codes.tables, sizes)
        return self._sequence[1]

    def drawn(self, selected: SelectedEvents, kind: str) -> tuple[Spec, str]:
        """Return the figure as plotly's JSON, and its name for screen readers."""
        empty = why_empty(kind, filtered=bool(self.rows) or selected.selection.filters != Filters())
        self._spec = finished(self._of(selected, kind), empty)
        return self._spec, f"{TITLES[kind]} of {selected.summary}"

    def _of(self, selected: SelectedEvents, kind: str) -> Spec:
        codes, tables = self._codes, self._codes.tables
        if kind == "modules":
            filtered = selected.filtered
            places = codes.places(filtered.sums, self.rows or None, filtered.unknown)
            return module_heatmap(places, codes.largest_place)
        if kind == "sequence":
            state, mask = self._state(), selected.filtered.inside(self.rows)
            state.show_events(None if mask.all() else mask)
            return timeline_spec(state)
        read, sizes = tables.events.select(_READ), codes.kind_of_sizes
        if (kind, sizes) not in self._tops:
            self._tops[kind, sizes] = top_of(replace(tables, events=read), kind, sizes)
        events = read.filter(pl.Series(selected.filtered.inside(self.rows)))
        part = Tables(events=events, groups=tables.groups, info=tables.info)
        return figure_of(part, kind, None, sizes, self._tops[kind, sizes])

    def pick_at(self, selected: SelectedEvents, click: dict[str, Any]) -> Pick | None:
        """Return the events of a clicked mark or of a row of the table of causes, or None if there are none."""
        mask = selected.mask if click.get("kind") == "cause" else selected.filtered.inside(self.rows)
        if click.get("kind") == "sequence":
            events = self._state().picked(int(click["customdata"]))
            return Pick(*events) if events else None
        return pick_at(ClickedFigure(self._codes, self._spec, mask), click)
