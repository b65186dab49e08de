"""`TimelineExplorer`: a timeline with zoom and selection of a range; the selected events are a `Trace`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl

from dsexplore._internal.analysis.skew import Skew
from dsexplore._internal.analysis.step_timeline import Timeline
from dsexplore._internal.errors import UsageError
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.views.timeline.boxes import Mask
from dsexplore._internal.views.timeline.timeline_drawing import timeline_html
from dsexplore._internal.views.timeline.timeline_state import TimelineState
from dsexplore._internal.views.timeline.timeline_text import timeline_text
from dsexplore._internal.views.widgets.live import LiveView
from dsexplore._internal.views.widgets.part_widgets import TimelineWidget


class TimelineExplorer(LiveView):
    """A live timeline; show it as the last expression of a cell.

    Drag over a range to select it, turn the wheel with Ctrl to zoom, and double-click to show all of it. The keyboard
    does the same.

    Args:
        timeline: the timeline to explore.
        skew: skew of its trace; None to draw neither waiting nor late ranks.
    """

    def __init__(self, timeline: Timeline, skew: Skew | None = None) -> None:
        self.timeline = timeline
        self._state = TimelineState(timeline, skew=skew)
        self._picked: tuple[Mask, str] | None = None
        self.widget = TimelineWidget(on_event=self._on_event)
        self._draw()

    def __repr__(self) -> str:
        return f"<TimelineExplorer: {self.widget.brushed['status'] or 'nothing selected'}>"

    @property
    def selection(self) -> Trace:
        """Events of the selected range or of the clicked span; all events if nothing is selected."""
        tables = self.timeline.tables
        mask = self._mask()
        return Trace(tables if mask is None else replace(tables, events=tables.events.filter(pl.Series(mask))))

    @property
    def window(self) -> tuple[float, float]:
        """Begin and end of what is drawn, in the unit of the timeline."""
        return self._state.window

    def zoom(self, begin: float, end: float) -> None:
        """Zoom to a part of the timeline.

        Args:
            begin: begin in the unit of the timeline: seconds, rounds or positions in program order.
            end: end in the same unit, later than ``begin``.

        Raises:
            UsageError: The range is empty.
        """
        if not begin < end:
            raise UsageError(f"zoom({begin!r}, {end!r}): the end must be later than the begin")
        self._state.zoom(begin, end)
        self._draw()

    def select(self, begin: float, end: float) -> None:
        """Select the events of a range, given in the unit of the timeline.

        Raises:
            UsageError: The range is empty.
        """
        if not begin < end:
            raise UsageError(f"select({begin!r}, {end!r}): the end must be later than the begin")
        self._state.chosen, self._picked = (begin, end), None
        self._describe()

    def clear(self) -> None:
        """Clear the selection of a range or of a span."""
        self._state.chosen = self._picked = None
        self._describe()

    def _on_event(self, event: dict[str, Any]) -> None:
        """Zoom or select as a message of the browser says."""
        if self._state.react(event):
            self._draw()
        elif event["type"] == "brush":
            self.select(*self._state.range_of(event))
        elif event["type"] == "pick":
            self._picked = self._state.picked(int(event["box"])) or self._picked
            self._state.chosen = None
            self._describe()
        elif event["type"] == "unbrush":
            self.clear()

    def _mask(self) -> Mask | None:
        """Return the (events,) mask of the selected events; None if nothing is selected."""
        if self._picked is not None:
            return self._picked[0]
        return self._state.events_between(*self._state.chosen) if self._state.chosen is not None else None

    def _status(self) -> str:
        """Return the title of the clicked span, or number and bytes of the selected range; empty for neither."""
        if self._picked is not None:
            return self._picked[1]
        mask = self._mask()
        return "" if mask is None else self._state.describe(mask)

    def _draw(self) -> None:
        with self.widget.hold_sync():
            self.widget.timeline = self._state.drawn()
            self._describe()

    def _describe(self) -> None:
        self.widget.brushed = {"brush": self._state.brush(), "status": self._status()}

    def static_twin(self) -> tuple[str, str]:
        """Return the drawing of the whole timeline as (HTML, text)."""
        return timeline_html(self.timeline), timeline_text(self.timeline)
