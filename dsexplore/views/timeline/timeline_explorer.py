"""`TimelineExplorer`: a timeline that is zoomed and brushed; what is chosen is a `Trace`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
from IPython.display import display

from dsexplore.analysis.step_timeline import Timeline
from dsexplore.errors import UsageError
from dsexplore.trace.tables import Tables
from dsexplore.trace.trace import Trace
from dsexplore.units import format_bytes
from dsexplore.views.page import html
from dsexplore.views.timeline.boxes import Boxes, boxes, coded, extent
from dsexplore.views.timeline.mark_colours import colours_of
from dsexplore.views.timeline.timeline_drawing import timeline_html
from dsexplore.views.timeline.timeline_text import AXES, place, span_text, timeline_text, whole
from dsexplore.views.widgets.timeline_widget import TimelineWidget

_TICKS = 5
_LEAST = 1e-9
"""The narrowest window, as a part of the whole."""


class TimelineExplorer:
    """A live timeline; show it as the last expression of a cell.

    Drag over a range to select it, turn the wheel with Ctrl to zoom, double-click for the whole; or use the keyboard.

    Args:
        timeline: what to explore.
    """

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self._spans = coded(timeline)
        self._whole = self._window = extent(timeline)
        self._chosen: tuple[float, float] | None = None
        self._picked: int | None = None
        self._shown = boxes(self._spans, self._window)
        colours = [[colour.name, colour.letter, colour.fill, colour.ink] for colour in colours_of(timeline)]
        self.widget = TimelineWidget(
            on_event=self._on_event,
            title=whole(timeline),
            lanes=[html.plain(lane, 80) for lane in timeline.lanes],
            marks=colours,
            axis=f"{AXES[timeline.order]}; taller is more message bytes",
        )
        self.widget.observe(lambda _: self._on_brush(), "brush")
        self._draw()

    def __repr__(self) -> str:
        return f"<TimelineExplorer: {self.widget.status or 'nothing selected'}>"

    @property
    def selection(self) -> Trace:
        """The events of the chosen range, or the one that was clicked; all of them where nothing is chosen."""
        if self._picked is not None:
            row = self.timeline.spans["row"][self._picked]
            events = self.timeline.tables.events
            return Trace(_with(self.timeline, events[[row]] if row is not None else events.clear()))
        if self._chosen is None:
            return Trace(self.timeline.tables)
        return self.timeline.between(*self._chosen)

    @property
    def window(self) -> tuple[float, float]:
        """Begin and end of what is drawn, in the unit of the timeline."""
        return self._window

    def zoom(self, begin: float, end: float) -> None:
        """Draw a part of the timeline.

        Args:
            begin: in the unit of the timeline: seconds, rounds or places in program order.
            end: later than ``begin``.

        Raises:
            UsageError: an empty range.
        """
        if not begin < end:
            raise UsageError(f"zoom({begin!r}, {end!r}): the end must be later than the begin")
        first, last = self._whole
        width = min(max(end - begin, (last - first) * _LEAST), last - first)
        begin = min(max(begin, first), last - width)
        self._window = begin, begin + width
        self._draw()

    def select(self, begin: float, end: float) -> None:
        """Choose the events of a range, in the unit of the timeline.

        Raises:
            UsageError: an empty range.
        """
        if not begin < end:
            raise UsageError(f"select({begin!r}, {end!r}): the end must be later than the begin")
        self._chosen, self._picked = (begin, end), None
        self._describe()

    def clear(self) -> None:
        """Choose nothing."""
        self._chosen = self._picked = None
        self._describe()

    def _on_event(self, event: dict[str, Any]) -> None:
        if event["type"] == "window":
            begin, end = self._at(float(event["begin"])), self._at(float(event["end"]))
            self.zoom(begin, max(end, begin + (self._whole[1] - self._whole[0]) * _LEAST))
        elif event["type"] == "whole":
            self.zoom(*self._whole)
        elif event["type"] == "pick":
            self._pick(int(event["box"]))
        elif event["type"] == "clear":
            self.clear()

    def _on_brush(self) -> None:
        brush = self.widget.brush
        if brush and brush != self._brush():
            self.select(self._at(brush[0]), self._at(brush[1]))

    def _pick(self, box: int) -> None:
        """Choose what one box stands for: its span, or all that its column holds."""
        if not 0 <= box < len(self._shown):
            return
        if self._shown.row[box] >= 0:
            self._chosen, self._picked = None, int(self._shown.row[box])
            self._describe()
        else:
            self.select(self._at(float(self._shown.begin[box])), self._at(float(self._shown.end[box])))

    def _at(self, share: float) -> float:
        first, last = self._window
        return first + share * (last - first)

    def _brush(self) -> list[float]:
        """The chosen range as parts of the window; empty where none of it is in the window."""
        if self._chosen is None:
            return []
        first, last = self._window
        begin, end = ((at - first) / (last - first) for at in self._chosen)
        return [max(begin, 0.0), min(end, 1.0)] if begin < 1 and end > 0 else []

    def _draw(self) -> None:
        self._shown = boxes(self._spans, self._window)
        first, last = self._window
        with self.widget.hold_sync():
            self.widget.boxes = _packed(self._shown)
            self.widget.texts = self._texts()
            self.widget.zoomed = self._window != self._whole
            self.widget.ticks = [
                [tick / (_TICKS - 1), place(self.timeline, first + (last - first) * tick / (_TICKS - 1))]
                for tick in range(_TICKS)
            ]
            self._describe()

    def _texts(self) -> list[str]:
        found = self._shown
        if not len(found):
            return []
        if found.row[0] < 0:
            marks = self.timeline.marks
            return [
                f"{count:,} ×, {format_bytes(size)} in messages; most of it: {html.plain(marks[mark], 60)}"
                for count, mark, size in zip(
                    found.count.tolist(), found.mark.tolist(), found.bytes.tolist(), strict=True
                )
            ]
        rows = self.timeline.spans[found.row.tolist()]
        return [span_text(self.timeline, span) for span in rows.iter_rows(named=True)]

    def _describe(self) -> None:
        self.widget.brush = self._brush()
        if self._picked is not None:
            self.widget.status = span_text(self.timeline, self.timeline.spans.row(self._picked, named=True))
            return
        if self._chosen is None:
            self.widget.status = ""
            return
        chosen = self.selection.events
        sizes = chosen.select(pl.col("message_bytes").sum(), pl.col("wire_bytes").sum()).row(0)
        begin, end = (place(self.timeline, at) for at in self._chosen)
        self.widget.status = (
            f"{chosen.height:,} collectives from {begin} to {end}: {format_bytes(sizes[0])} in messages "
            f"({format_bytes(sizes[1])} on the wire)"
        )

    def _ipython_display_(self) -> None:
        twin = f'<div class="dsx-twin">{timeline_html(self.timeline)}</div>'
        display({"text/html": twin, "text/plain": timeline_text(self.timeline)}, raw=True)
        display(self.widget)


def _packed(found: Boxes) -> dict[str, bytes]:
    """The columns as the browser reads them."""
    return {
        "begin": found.begin.astype(np.float32).tobytes(),
        "end": found.end.astype(np.float32).tobytes(),
        "level": found.level.astype(np.float32).tobytes(),
        "lane": found.lane.astype(np.uint16).tobytes(),
        "mark": found.mark.astype(np.uint8).tobytes(),
    }


def _with(timeline: Timeline, events: pl.DataFrame) -> Tables:
    """The tables of a timeline's trace with other events."""
    return replace(timeline.tables, events=events)
