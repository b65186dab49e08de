"""`TimelineState`: window, boxes and selected range of a live timeline, without its widget."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from dsexplore._internal.analysis.skew import Skew
from dsexplore._internal.analysis.step_timeline import Timeline
from dsexplore._internal.analysis.timeline_verdict import WORDS
from dsexplore._internal.trace.unknown_sizes import format_sum
from dsexplore._internal.units import format_count
from dsexplore._internal.views.page import html
from dsexplore._internal.views.timeline.boxes import MOST_LANES, Boxes, Coded, Mask, boxes, extent
from dsexplore._internal.views.timeline.drawn_skew import DrawnSkew
from dsexplore._internal.views.timeline.mark_colors import LATE, WAITS, colors_of, key_order
from dsexplore._internal.views.timeline.timeline_text import axis_text, place, span_texts, ticks, title_text

_LEAST = 1e-9
"""Width of the narrowest window, as a fraction of the whole."""
_MOST_TIES = 400


class TimelineState:
    """One timeline, drawn in one window.

    Args:
        timeline: timeline to draw, with its conclusion if that is shown.
        columns: number of columns into which spans are summed if there are many.
        most: maximal number of spans that are drawn individually.
        kind: (events,) Small number per event, see `Coded`; None for no kinds.
        most_lanes: maximal number of lanes.
        skew: skew of the trace; None to draw neither waiting nor late ranks.
    """

    def __init__(
        self,
        timeline: Timeline,
        columns: int = 960,
        most: int = 1500,
        kind: npt.NDArray[np.integer[Any]] | None = None,
        most_lanes: int = MOST_LANES,
        skew: Skew | None = None,
    ) -> None:
        self.timeline = timeline
        self.spans = Coded(timeline, kind, most_lanes)
        self.whole = self.window = extent(timeline)
        self.chosen: tuple[float, float] | None = None
        """Selected range, in the unit of the timeline."""
        self.shown: Mask | None = None
        """(spans,) mask of those that are drawn; None for all."""
        self._kept: Mask | None = None
        """(events,) mask of those that are drawn; None for all."""
        self._kinds: Mask | None = None
        """(kinds,) mask of the kinds that are drawn, if all their events are; else None."""
        self.boxes: Boxes
        self._columns, self._most = columns, most
        self.colors = colors_of(timeline)
        self._skew = DrawnSkew(skew, self.spans) if skew is not None and timeline.order == "measured" else None
        self._fixed = {
            "lanes": [html.plain(lane, longest=80) for lane in timeline.lanes[:most_lanes]],
            "marks": [color.listed for color in self.colors],
            "skew": [color.listed for color in (WAITS, LATE)],
            "key": key_order(self.colors),
            "axis": html.with_whole_percentages(axis_text(timeline)),
            "words": WORDS[timeline.sizes],
            "title": title_text(timeline),
            "verdict": html.plain(timeline.conclusion, longest=600),
        }

    def prepare(self) -> None:
        """Compute in advance what the first filter would wait for."""
        if self.spans.kind is not None and self.spans.is_event_order:
            self.spans.sums_of_kinds(self.whole, self._columns)

    def zoom(self, begin: float, end: float) -> None:
        """Set the window, clipped to the whole timeline and no narrower than can be drawn."""
        first, last = self.whole
        width = min(max(end - begin, (last - first) * _LEAST), last - first)
        begin = min(max(begin, first), last - width)
        self.window = begin, begin + width

    def show_all(self) -> None:
        """Set the window to the whole timeline."""
        self.window = self.whole

    def react(self, event: dict[str, Any]) -> bool:
        """Apply a message of the browser that changes the window; return False for any other message."""
        if event["type"] == "window":
            begin, end = self.at(float(event["begin"])), self.at(float(event["end"]))
            self.zoom(begin, max(end, begin + (self.whole[1] - self.whole[0]) * _LEAST))
        elif event["type"] == "whole":
            self.show_all()
        else:
            return False
        return True

    def at(self, share: float) -> float:
        """Return the position on the timeline's axis, in its unit, of a fraction of the window."""
        first, last = self.window
        return first + share * (last - first)

    def range_of(self, event: dict[str, Any]) -> tuple[float, float]:
        """Return the range that a message of the browser selects, in the timeline's unit.

        It is narrowed slightly, because the browser's positions have only seven digits.
        """
        begin, end = float(event["begin"]), float(event["end"])
        slack = min(1e-6, (end - begin) / 4)
        return self.at(begin + slack), self.at(end - slack)

    def events_between(self, begin: float, end: float) -> Mask:
        """Return the (events,) mask of those that overlap a range."""
        inside = (self.spans.begin < end) & (self.spans.end > begin)
        return self._events(inside)

    def picked(self, box: int) -> tuple[Mask, str] | None:
        """Return (mask of the events of a box, its title), or None if it stands for no event."""
        if not 0 <= box < len(self.boxes):
            return None
        span = int(self.boxes.span[box])
        if span >= 0:
            spans = np.zeros(len(self.spans), bool)
            spans[span] = True
            title = span_texts(self.timeline, np.array([span]))[0]
        else:
            begin, end = self.at(float(self.boxes.begin[box])), self.at(float(self.boxes.end[box]))
            lane = int(self.boxes.lane[box])
            spans = (self.spans.begin < end) & (self.spans.end > begin) & (self.spans.lane == lane)
            if self.shown is not None:
                spans &= self.shown
            name = html.plain(self.timeline.lanes[lane], longest=80)
            title = f"{name}, {self.range_text(begin, end)}"
        mask = self._events(spans)
        return (mask, title) if mask.any() else None

    def range_text(self, begin: float, end: float) -> str:
        """Return a range of the timeline as text: ``from 1.2 ms to 3 ms``."""
        return f"from {place(self.timeline, begin)} to {place(self.timeline, end)}"

    def show_events(self, mask: Mask | None, kinds: Mask | None = None) -> None:
        """Draw only some of the events; spans that are not events are always drawn.

        Args:
            mask: (events,) Mask of the events to draw; None for all.
            kinds: (kinds,) Mask of the kinds in ``mask``, if it contains all their events; else None.
        """
        self._kept, self._kinds = mask, kinds if self.spans.is_event_order and mask is not None else None
        if mask is None or self.spans.is_event_order:
            self.shown = mask
        else:
            self.shown = mask[self.spans.row] | (self.spans.row < 0)

    def cut(self) -> Boxes:
        """Compute the boxes of the window, which `picked` indexes."""
        # summing by kinds pays only for a window that is drawn under several filters
        kinds = self._kinds if self.window == self.whole else None
        self.boxes = boxes(
            self.spans, self.window, columns=self._columns, most=self._most, shown=self.shown, kinds=kinds
        )
        return self.boxes

    def drawn(self) -> dict[str, Any]:
        """Return the data that the browser draws: the value of the trait ``timeline``."""
        cut = self.cut()
        return {
            **self._fixed,
            "boxes": _packed(cut) | self._waiting(cut),
            "late": self._skew.late_lines(self.window, self._kept) if self._skew is not None else [],
            "texts": self._texts(cut) if cut.one_by_one else [],
            "labels": self.labels(cut),
            "ticks": [list(tick) for tick in ticks(self.timeline, *self.window)] if len(self.spans) else [],
            "ties": self._ties(),
            "zoomed": self.window != self.whole,
        }

    def _waiting(self, cut: Boxes) -> dict[str, bytes]:
        """Return where the waiting of each box ends, as the browser's column; nothing if no box waits."""
        if self._skew is None or not cut.one_by_one:
            return {}
        ends = self._skew.waiting_ends(cut, self.window)
        return {"waiting": ends.astype(np.float32).tobytes()} if (ends > cut.begin).any() else {}

    def _texts(self, cut: Boxes) -> list[str]:
        """Return the tooltip of each box; each box is one span."""
        texts = span_texts(self.timeline, cut.span)
        if self._skew is None:
            return texts
        return [text + more for text, more in zip(texts, self._skew.texts(cut), strict=True)]

    def brush(self) -> list[float]:
        """Return the selected range as fractions of the window; empty if it is outside the window."""
        if self.chosen is None:
            return []
        first, last = self.window
        begin, end = ((at - first) / (last - first) for at in self.chosen)
        return [max(begin, 0.0), min(end, 1.0)] if begin < 1 and end > 0 else []

    def describe(self, mask: Mask) -> str:
        """Return number, range and bytes of the selected events as text; ``mask``: (events,)."""
        events = self.timeline.tables.events.filter(pl.Series(mask))
        wire, message = (
            format_sum(int(sizes.sum()), sizes.null_count())
            for sizes in (events["wire_bytes"], events["message_bytes"])
        )
        assert self.chosen is not None
        what = "collective" if self.timeline.held.is_empty() else "message"
        return (
            f"{format_count(events.height, what)} {self.range_text(*self.chosen)}: {wire} on the wire "
            f"({message} in messages)"
        )

    def _events(self, spans: Mask) -> Mask:
        """Return the (events,) mask of the events of a (spans,) mask."""
        rows, held = self.spans.row[spans], self.timeline.held
        mask: Mask = np.zeros(self.timeline.tables.events.height, bool)
        mask[rows[rows >= 0]] = True
        mask[held["row"].to_numpy()[spans[held["span"].to_numpy()]]] = True
        return mask

    def labels(self, drawn: Boxes) -> list[str]:
        """Return the text on each box; an empty list if spans have no labels, or if a box is several spans."""
        labels = self.timeline.spans["label"]
        if not drawn.one_by_one or labels.null_count() == len(labels):
            return []
        return [label or "" for label in labels.gather(drawn.span.tolist()).to_list()]

    def _ties(self) -> list[list[float]]:
        """Return [begin, lane, end, lane] of lines from sends to receives; empty if there are too many to see.

        A line is drawn if both of its ends are.
        """
        if self.timeline.ties.is_empty():
            return []
        first, last = self.window
        ties = self.timeline.ties.filter((pl.col("received") >= first) & (pl.col("sent") <= last))
        if self._kept is not None and len(ties):
            # an end of a tie that is not an event indexes the appended True: no filter removes it
            kept = np.append(self._kept, True)
            ends = ties.select(pl.col("send", "receive").fill_null(len(self._kept))).to_numpy()
            ties = ties.filter(pl.Series(kept[ends].all(axis=1)))
        if not 0 < ties.height <= _MOST_TIES:
            return []
        lanes = {name: i for i, name in enumerate(self.timeline.lanes[: self.spans.shape[0]])}
        return [
            [
                round((tie["sent"] - first) / (last - first), 6),
                lanes[tie["from_lane"]],
                round((tie["received"] - first) / (last - first), 6),
                lanes[tie["to_lane"]],
            ]
            for tie in ties.iter_rows(named=True)
            if tie["from_lane"] in lanes and tie["to_lane"] in lanes
        ]


def _packed(drawn: Boxes) -> dict[str, bytes]:
    """Return the columns in the browser's binary format."""
    packed = {
        "begin": drawn.begin.astype(np.float32).tobytes(),
        "end": drawn.end.astype(np.float32).tobytes(),
        "level": drawn.level.astype(np.float32).tobytes(),
        "lane": drawn.lane.astype(np.uint16).tobytes(),
        "mark": drawn.mark.astype(np.uint8).tobytes(),
    }
    if not drawn.one_by_one:
        packed |= {"count": drawn.count.astype(np.uint32).tobytes(), "bytes": drawn.bytes.astype(np.float32).tobytes()}
    return packed
