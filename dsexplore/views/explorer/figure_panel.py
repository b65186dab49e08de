"""The explorer's figure: what the other parts let through, of the selected module, in one of several kinds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl

from dsexplore.trace import measured_time
from dsexplore.trace.tables import Tables
from dsexplore.views.explorer.chosen import Chosen
from dsexplore.views.explorer.clicked_marks import Picked, Shown, picked
from dsexplore.views.explorer.filters import Filters
from dsexplore.views.trace.event_codes import EventCodes
from dsexplore.views.trace.figure_spec import EMPTY, Spec, finished
from dsexplore.views.trace.figures import figure_of, module_heatmap, top_of, why_empty

TITLES = {
    "modules": "module × axis", "ops": "op × phase", "sequence": "sequence", "ranks": "who talks to whom",
    "sankey": "sankey", "sizes": "message sizes", "bandwidth": "bandwidth",
}  # fmt: skip
"""Kind of figure → its name in the list of figures."""
_READ = ("rank", "step", "seq", "op", "phase", "axis", "group", "peer", "message_bytes", "wire_bytes", "start", "end")
"""The columns that figures read."""


class FigurePanel:
    """One figure of a trace.

    Args:
        codes: the events.
    """

    def __init__(self, codes: EventCodes) -> None:
        self._codes = codes
        self.rows: list[int] = []
        """Of the modules that are shown: of all where there are none."""
        self._window: tuple[float, float] | None = None
        self._tops: dict[tuple[str, str], float] = {}
        self._spec = EMPTY

    def begin(self, rows: list[int]) -> None:
        """Show the modules of some rows of the tree, or all where there are none, and no part of an axis alone."""
        self.rows, self._window = rows, None

    def zoom(self, chosen: Chosen, extent: list[float] | None) -> None:
        """Show a part of the axis of the sequence alone; all of it with None."""
        held = self._codes.tables.events.filter(pl.Series(chosen.inside(self.rows)))
        scale = 1e6 if measured_time.is_timed(held) else 1.0
        self._window = None if extent is None else (float(extent[0]) * scale, float(extent[1]) * scale)

    def drawn(self, chosen: Chosen, kind: str) -> tuple[Spec, str]:
        """The figure as plotly's JSON, and its name for screen readers."""
        if kind != "sequence":
            self._window = None
        empty = why_empty(kind, filtered=bool(self.rows) or chosen.passed.filters != Filters())
        self._spec = finished(self._of(chosen, kind), empty)
        return self._spec, f"{TITLES[kind]} of {chosen.summary}"

    def _of(self, chosen: Chosen, kind: str) -> Spec:
        codes, tables = self._codes, self._codes.tables
        if kind == "modules":
            return module_heatmap(codes.places(chosen.passed.sums, self.rows or None), codes.largest_place)
        read, sizes = tables.events.select(_READ), codes.kind_of_sizes
        if (kind, sizes) not in self._tops:
            self._tops[kind, sizes] = top_of(replace(tables, events=read), kind, sizes)
        events = read.filter(pl.Series(chosen.inside(self.rows)))
        part = Tables(events=events, groups=tables.groups, info=tables.info)
        return figure_of(part, kind, self._window, sizes, self._tops[kind, sizes])

    def picked(self, chosen: Chosen, click: dict[str, Any]) -> Picked | None:
        """The events of a clicked mark, or of a line of the table of causes; None where it stands for none."""
        mask = chosen.mask if click.get("kind") == "cause" else chosen.inside(self.rows)
        return picked(Shown(self._codes, self._spec, mask, self._window), click)
