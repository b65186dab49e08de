"""How a timeline draws skew: how long events wait for a late rank, and how late that rank is."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import polars as pl

from dsexplore._internal.analysis.arrivals import COMES_LATE
from dsexplore._internal.analysis.skew import Skew
from dsexplore._internal.units import format_seconds
from dsexplore._internal.views.timeline.boxes import Boxes, Coded, Indices, Mask, Numbers
from dsexplore._internal.views.timeline.mark_colors import LATE, WAITS

_MOST_LATE = 200
"""Maximal number of late arrivals that are drawn, the latest first."""


class DrawnSkew:
    """Waiting and lateness of the events of a measured trace, computed when they are first drawn.

    Arrays of events have one more element, 0, which row −1 of spans that are not events indexes.

    Args:
        skew: skew of the trace.
        spans: spans of its timeline.
    """

    def __init__(self, skew: Skew, spans: Coded) -> None:
        self._skew, self._spans = skew, spans

    @cached_property
    def waiting(self) -> Numbers:
        """(events + 1,) seconds that each event waits for a rank that comes later; 0 if unknown."""
        arrived = self._skew.arrivals
        return self._of_events(arrived, arrived["took"] - arrived["duration"])

    @cached_property
    def late_by(self) -> Numbers:
        """(events + 1,) seconds by which each event of a late rank is late; 0 for other events."""
        is_late = pl.col("rank").is_in([late.rank for late in self._skew.late_ranks])
        arrived = self._skew.arrivals.filter(COMES_LATE & is_late)
        return self._of_events(arrived, arrived["late_by"])

    def _of_events(self, arrived: pl.DataFrame, seconds: pl.Series) -> Numbers:
        """Return (events + 1,) the seconds of these arrivals at the rows of their events, else 0."""
        of_events = np.zeros(self._skew.tables.events.height + 1)
        of_events[arrived["row"].to_numpy()] = seconds.to_numpy()
        return of_events

    @cached_property
    def _late_rows(self) -> Indices:
        """Rows of the late events in drawn lanes, the latest first."""
        rows = np.argsort(-self.late_by, kind="stable")[: np.count_nonzero(self.late_by)]
        return rows[self._spans.lane[self._spans.span_of[rows]] < self._spans.shape[0]]

    def waiting_ends(self, drawn: Boxes, window: tuple[float, float]) -> Numbers:
        """Return where the waiting of each box ends, as a fraction of the window; each box is one span."""
        ends = self._spans.begin[drawn.span] + self._of_boxes(self.waiting, drawn)
        return np.clip((ends - window[0]) / (window[1] - window[0]), 0, 1)

    def texts(self, drawn: Boxes) -> list[str]:
        """Return how long each box waits and how late it is, or "" for neither; each box is one span."""
        texts = [""] * len(drawn)
        for mark, seconds in ((WAITS, self.waiting), (LATE, self.late_by)):
            for i, of_box in enumerate(self._of_boxes(seconds, drawn).tolist()):
                texts[i] += f" · {mark.name}: {format_seconds(of_box)}" if of_box else ""
        return texts

    def _of_boxes(self, seconds: Numbers, drawn: Boxes) -> Numbers:
        return seconds[self._spans.row[drawn.span]]

    def late_lines(self, window: tuple[float, float], kept: Mask | None) -> list[tuple[float, int, float, str]]:
        """Return (begin, lane, end, label) of a line before each late event, which is as long as the event is late.

        Args:
            window: begin and end of the window, in seconds; begin and end of a line are fractions of it.
            kept: (events,) Mask of the events that are drawn; None for all.
        """
        rows = self._late_rows
        came = self._spans.begin[self._spans.span_of[rows]]
        expected = came - self.late_by[rows]
        is_seen = (expected < window[1]) & (came > window[0])
        if kept is not None:
            is_seen &= kept[rows]
        at = np.flatnonzero(is_seen)[:_MOST_LATE]
        lane = self._spans.lane[self._spans.span_of[rows[at]]]
        places = np.clip((np.stack([expected[at], came[at]]) - window[0]) / (window[1] - window[0]), 0, 1).round(6)
        labels = [f"+{format_seconds(late_by)}" for late_by in self.late_by[rows[at]]]
        return list(zip(places[0].tolist(), lane.tolist(), places[1].tolist(), labels, strict=True))
