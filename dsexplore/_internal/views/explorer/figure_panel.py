"""The explorer's figure of the events of the selected module that pass all filters, in one of several kinds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import polars as pl

from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.views.explorer.selected_events import SelectedEvents
from dsexplore._internal.views.explorer.selection import Filters, Pick
from dsexplore._internal.views.timeline.timeline_figure import timeline_spec
from dsexplore._internal.views.timeline.timeline_state import TimelineState
from dsexplore._internal.views.trace import tally
from dsexplore._internal.views.trace.event_codes import EventCodes
from dsexplore._internal.views.trace.figure_spec import EMPTY, Spec, finished, top_of, with_top
from dsexplore._internal.views.trace.figures import FIGURES, module_heatmap, sequence_state
from dsexplore._internal.views.trace.pivot import Mask
from dsexplore._internal.views.trace.rank_figures import Sankey
from dsexplore._internal.views.trace.rank_flows import Route, between_ranks

_READ = ("rank", "step", "seq", "op", "phase", "axis", "group", "peer", "message_bytes", "wire_bytes", "start", "end")
"""Columns of events that figures read."""
_NOTHING_CHOSEN = "nothing of this kind in what is chosen"

Click = dict[str, Any]
"""A click in the browser: ``kind`` and ``index`` of the mark, and its ``customdata``."""


class FigurePanel:
    """One figure of a trace."""

    def __init__(self, codes: EventCodes) -> None:
        self._codes = codes
        self.rows: list[int] = []
        """Rows of the modules that are shown; empty for all."""
        self._sequence: tuple[str, TimelineState] | None = None
        """(sizes, timeline) of the sequence, built when first shown."""
        self._tops: dict[tuple[str, str], float] = {}
        """{(kind, sizes): bytes of the darkest color in the heatmap of the whole trace}."""
        self._spec = EMPTY
        """Figure that is shown."""

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
        """Return the timeline of the sequence, in the bytes that are shown."""
        sizes = self._codes.kind_of_sizes
        if self._sequence is None or self._sequence[0] != sizes:
            self._sequence = sizes, sequence_state(self._codes.tables, sizes)
        return self._sequence[1]

    def drawn(self, selected: SelectedEvents, kind: str) -> tuple[Spec, str]:
        """Return the figure as plotly's JSON, and its name for screen readers."""
        is_filtered = bool(self.rows) or selected.selection.filters != Filters()
        empty = _NOTHING_CHOSEN if is_filtered else FIGURES[kind].empty
        self._spec = finished(self._of(selected, kind), empty)
        return self._spec, f"{FIGURES[kind].title} of {selected.summary}"

    def _of(self, selected: SelectedEvents, kind: str) -> Spec:
        """Return the figure of the selected events, with the color scale of the whole trace."""
        codes, tables = self._codes, self._codes.tables
        if kind == "modules":
            filtered = selected.filtered
            places = codes.places(filtered.sums, self.rows or None, filtered.unknown)
            return with_top(module_heatmap(places), codes.largest_place)
        if kind == "sequence":
            state, mask = self._state(), selected.filtered.inside(self.rows)
            state.show_events(None if mask.all() else mask)
            return timeline_spec(state)
        read, draw, sizes = tables.events.select(_READ), FIGURES[kind].spec, codes.kind_of_sizes
        events = read.filter(pl.Series(selected.filtered.inside(self.rows)))
        spec = draw(Tables(events=events, groups=tables.groups, info=tables.info), sizes)
        if top_of(spec) and (kind, sizes) not in self._tops:
            self._tops[kind, sizes] = top_of(draw(replace(tables, events=read), sizes))
        return with_top(spec, self._tops.get((kind, sizes), 0.0))

    def pick_at(self, selected: SelectedEvents, click: Click) -> Pick | None:
        """Return the events of a clicked mark, or of a row of the table of causes; None if there are none."""
        kind = str(click.get("kind"))
        find = _FINDERS.get(kind)
        if find is None or (kind in _NAMED and not click.get("customdata")):
            return None
        shown = selected.mask if kind == "cause" else selected.filtered.inside(self.rows)
        pick = find(self, shown, click)
        return pick if pick is not None and pick.mask.any() else None

    # Each of these finds the events of a clicked mark; ``shown`` is the (events,) mask of the figure's events.

    def _of_place(self, shown: Mask, click: Click) -> Pick:
        place, axis = (str(name) for name in click["customdata"])
        cells = [cell for row in self._spec["data"][0]["customdata"] for cell in row]
        named = {row for row, _ in cells}, {column for _, column in cells}
        one_place, one_axis = (None if name == tally.OTHERS else name for name in (place, axis))
        mask = self._codes.at_place(one_place, one_axis, others=named)
        return Pick(shown & mask, f"{place} on {axis}")

    def _of_op(self, shown: Mask, click: Click) -> Pick:
        op, phase = (str(name) for name in click["customdata"])
        return Pick(shown & self._codes.mask({"op": op, "phase": phase}), f"{op}, {phase}")

    def _of_size(self, shown: Mask, click: Click) -> Pick:
        op, low = click["customdata"]
        nbytes = self._codes.tables.events["message_bytes"].fill_null(-1).to_numpy()
        within = nbytes < 0 if low is None else (nbytes >= int(low)) & (nbytes < max(2 * int(low), 1))
        return Pick(shown & within & self._codes.mask({"op": str(op)}), f"{op}, {tally.size_range(low)}")

    def _of_cell(self, shown: Mask, click: Click) -> Pick | None:
        row, column = (int(number) for number in click["index"])
        return self._over(shown, between_ranks(self._tables(shown), column=self._codes.column).route(row, column))

    def _of_flow(self, shown: Mask, click: Click) -> Pick | None:
        diagram = Sankey.of(self._tables(shown), self._codes.kind_of_sizes)
        return self._over(shown, diagram.route(int(click["index"][0])))

    def _of_cause(self, shown: Mask, click: Click) -> Pick:
        mask, title = self._codes.cause(int(click["index"][0]))
        return Pick(shown & mask, title)

    def _of_span(self, _shown: Mask, click: Click) -> Pick | None:
        events = self._state().picked(int(click["customdata"]))
        return Pick(*events) if events else None

    def _tables(self, shown: Mask) -> Tables:
        tables = self._codes.tables
        return replace(tables, events=tables.events.filter(pl.Series(shown)))

    def _over(self, shown: Mask, route: Route | None) -> Pick | None:
        """Return the events sent between the ranks of a route."""
        if route is None:
            return None
        tables = self._codes.tables
        sent = tables.events.select(route.condition(tables).fill_null(False).alias("sent"))
        return Pick(shown & sent["sent"].to_numpy(), route.title)


_FINDERS: dict[str, Callable[[FigurePanel, Mask, Click], Pick | None]] = {
    "module_axis": FigurePanel._of_place,
    "op_phase": FigurePanel._of_op,
    "size": FigurePanel._of_size,
    "rank_peer": FigurePanel._of_cell,
    "flow": FigurePanel._of_flow,
    "cause": FigurePanel._of_cause,
    "sequence": FigurePanel._of_span,
}
"""{kind of mark: method that finds its events}."""
_NAMED = ("module_axis", "op_phase", "size")
"""Kinds of marks that ``customdata`` names; marks without it stand for no events."""
