"""`TimelineState`: what a live timeline draws (window, boxes, brush) and what was picked in it; without a widget."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from dsexplore.analysis.step_timeline import Timeline
from dsexplore.units import format_bytes, format_count
from dsexplore.views.page import html
from dsexplore.views.timeline.boxes import MOST_LANES, Boxes, Coded, Mask, boxes, colours_of, extent, key_order
from dsexplore.views.timeline.timeline_text import WORDS, axis_text, place, span_texts, ticks, whole

_LEAST = 1e-9
"""The narrowest window, as a part of the whole."""
_MOST_TIES = 400


class TimelineState:
    """One timeline in one window.

    Args:
        timeline: what is drawn.
        columns: into which spans are added up where they are many.
        most: spans that are drawn one by one.
        most_lanes: lanes that are drawn.
        kind: (events,) a small number of each: events of one kind are mostly shown or hidden together.
    """

    def __init__(
        self,
        timeline: Timeline,
        columns: int = 960,
        most: int = 1500,
        kind: npt.NDArray[np.integer[Any]] | None = None,
        most_lanes: int = MOST_LANES,
    ) -> None:
        self.timeline = timeline
        self.spans = Coded(timeline, kind, most_lanes)
        self.whole = self.window = extent(timeline)
        self.chosen: tuple[float, float] | None = None
        """The range that is chosen, in the unit of the timeline."""
        self.shown: Mask | None = None
        """(spans,) those that are drawn; None for all."""
        self._kept: Mask | None = None
        """(events,) the same of events."""
        self._kinds: Mask | None = None
        """(kinds,) the kinds that these events are all of; None where they are not."""
        self.boxes: Boxes
        self._columns, self._most = columns, most
        self.colours = colours_of(timeline)
        self._fixed = {
            "lanes": [html.plain(lane, 80) for lane in timeline.lanes[:most_lanes]],
            "marks": [[one.name, one.letter, one.fill, one.ink] for one in self.colours],
            "key": key_order(self.colours),
            "axis": html.unparted(axis_text(timeline)),
            "words": WORDS[timeline.sizes],
            "title": whole(timeline),
        }

    def prepare(self) -> None:
        """Compute now what the first filter would wait for."""
        if self.spans.kind is not None and self.spans.in_order:
            self.spans.added_up(self.whole, self._columns)

    def zoom(self, begin: float, end: float) -> None:
        """Set the window, inside the whole and no narrower than can be drawn."""
        first, last = self.whole
        width = min(max(end - begin, (last - first) * _LEAST), last - first)
        begin = min(max(begin, first), last - width)
        self.window = begin, begin + width

    def show_all(self) -> None:
        """Set the window to the whole."""
        self.window = self.whole

    def react(self, event: dict[str, Any]) -> bool:
        """Do what the browser asks of the window; False for an event that is about something else."""
        if event["type"] == "window":
            begin, end = self.at(float(event["begin"])), self.at(float(event["end"]))
            self.zoom(begin, max(end, begin + (self.whole[1] - self.whole[0]) * _LEAST))
        elif event["type"] == "whole":
            self.show_all()
        else:
            return False
        return True

    def at(self, share: float) -> float:
        """The place on the timeline's axis, in its unit, at a share of the window from 0 to 1."""
        first, last = self.window
        return first + share * (last - first)

    def range_of(self, event: dict[str, Any]) -> tuple[float, float]:
        """The range that is dragged over, or that goes from box to box; the browser's places have seven digits."""
        begin, end = float(event["begin"]), float(event["end"])
        slack = min(1e-6, (end - begin) / 4)
        return self.at(begin + slack), self.at(end - slack)

    def events_between(self, begin: float, end: float) -> Mask:
        """(events,) those of which some part lies in a range."""
        inside = (self.spans.begin < end) & (self.spans.end > begin)
        return self._events(inside)

    def picked(self, box: int) -> tuple[Mask, str] | None:
        """(events,) what one box stands for, and its name; None where it stands for no event."""
        if not 0 <= box < len(self.boxes):
            return None
        span = int(self.boxes.span[box])
        if span >= 0:
            held = np.zeros(len(self.spans), bool)
            held[span] = True
            title = span_texts(self.timeline, np.array([span]))[0]
        else:
            begin, end = self.at(float(self.boxes.begin[box])), self.at(float(self.boxes.end[box]))
            lane = int(self.boxes.lane[box])
            held = (self.spans.begin < end) & (self.spans.end > begin) & (self.spans.lane == lane)
            if self.shown is not None:
                held &= self.shown
            name = html.plain(self.timeline.lanes[lane], 80)
            title = f"{name}, {self.range_text(begin, end)}"
        found = self._events(held)
        return (found, title) if found.any() else None

    def range_text(self, begin: float, end: float) -> str:
        """A range of the timeline in words: ``from 1.2 ms to 3 ms``."""
        return f"from {place(self.timeline, begin)} to {place(self.timeline, end)}"

    def show_events(self, mask: Mask | None, kinds: Mask | None = None) -> None:
        """Draw only some of the events, and what is no event.

        Args:
            mask: (events,) None for all.
            kinds: (kinds,) those that the mask has, each with all of its events; None where it is otherwise.
        """
        self._kept, self._kinds = mask, kinds if self.spans.in_order and mask is not None else None
        if mask is None or self.spans.in_order:
            self.shown = mask
        else:
            self.shown = mask[self.spans.row] | (self.spans.row < 0)

    def cut(self) -> Boxes:
        """Compute the boxes of the window, among which `picked` picks."""
        # Each new window is added up anew, which pays where one is looked at under several filters.
        kinds = self._kinds if self.window == self.whole else None
        self.boxes = boxes(self.spans, self.window, self._columns, self._most, self.shown, kinds)
        return self.boxes

    def drawn(self) -> dict[str, Any]:
        """The data that the browser draws: the value of the trait ``timeline``."""
        found = self.cut()
        return {
            **self._fixed,
            "boxes": _packed(found),
            "texts": span_texts(self.timeline, found.span) if found.one_by_one else [],
            "labels": self.labels(found),
            "ticks": [list(tick) for tick in ticks(self.timeline, *self.window)] if len(self.spans) else [],
            "ties": self._ties(),
            "zoomed": self.window != self.whole,
        }

    def brush(self) -> list[float]:
        """The chosen range as parts of the window; empty where none of it is in the window."""
        if self.chosen is None:
            return []
        first, last = self.window
        begin, end = ((at - first) / (last - first) for at in self.chosen)
        return [max(begin, 0.0), min(end, 1.0)] if begin < 1 and end > 0 else []

    def describe(self, mask: Mask) -> str:
        """How much is chosen, in words; ``mask``: (events,)."""
        events = self.timeline.tables.events.filter(pl.Series(mask))
        wire, message = events.select(pl.col("wire_bytes").sum(), pl.col("message_bytes").sum()).row(0)
        assert self.chosen is not None
        what = "collective" if self.timeline.held.is_empty() else "message"
        return (
            f"{format_count(events.height, what)} {self.range_text(*self.chosen)}: {format_bytes(wire)} on the wire "
            f"({format_bytes(message)} in messages)"
        )

    def _events(self, spans: Mask) -> Mask:
        rows, held = self.spans.row[spans], self.timeline.held
        found: Mask = np.zeros(self.timeline.tables.events.height, bool)
        found[rows[rows >= 0]] = True
        found[held["row"].to_numpy()[spans[held["span"].to_numpy()]]] = True
        return found

    def labels(self, found: Boxes) -> list[str]:
        """The text on each box where spans have their own; empty where the letters of their marks say it."""
        labels = self.timeline.spans["label"]
        if not found.one_by_one or labels.null_count() == len(labels):
            return []
        return [label or "" for label in labels.gather(found.span.tolist()).to_list()]

    def _ties(self) -> list[list[float]]:
        """[begin, lane, end, lane] of the lines from sends to receives; none where they are too many to be seen.

        A line is drawn where both of its ends are.
        """
        if self.timeline.ties.is_empty():
            return []
        first, last = self.window
        ties = self.timeline.ties.filter((pl.col("received") >= first) & (pl.col("sent") <= last))
        if self._kept is not None and len(ties):
            # an end of a tie that is no event has the index of the appended True: no filter removes it
            kept = np.append(self._kept, True)
            ends = ties.select(pl.col("send", "receive").fill_null(len(self._kept))).to_numpy()
            ties = ties.filter(pl.Series(kept[ends].all(axis=1)))
        if not 0 < ties.height <= _MOST_TIES:
            return []
        lanes = {name: i for i, name in enumerate(self.timeline.lanes[: self.spans.shape[0]])}
        return [
            [round((sent - first) / (last - first), 6), lanes[of], round((got - first) / (last - first), 6), lanes[to]]
            for of, sent, to, got, *_ in ties.iter_rows()
            if of in lanes and to in lanes
        ]


def _packed(found: Boxes) -> dict[str, bytes]:
    """The columns as the browser reads them."""
    packed = {
        "begin": found.begin.astype(np.float32).tobytes(),
        "end": found.end.astype(np.float32).tobytes(),
        "level": found.level.astype(np.float32).tobytes(),
        "lane": found.lane.astype(np.uint16).tobytes(),
        "mark": found.mark.astype(np.uint8).tobytes(),
    }
    if not found.one_by_one:
        packed |= {"count": found.count.astype(np.uint32).tobytes(), "bytes": found.bytes.astype(np.float32).tobytes()}
    return packed
