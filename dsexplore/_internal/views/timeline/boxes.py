"""The boxes drawn for a window of a timeline: one per span if spans are few, else one per lane and column."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from dsexplore._internal.analysis.step_timeline import WAITING, Timeline
from dsexplore._internal.views.timeline.mark_colors import MOST_MARKS
from dsexplore._internal.views.trace.byte_sizes import signed

Numbers = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

MOST_LANES = 256
"""Maximal number of lanes that are drawn; the spans of further lanes are omitted."""
_LEAST_SHARE = 1e-3
"""Share of a column's time below which a mark is not drawn."""


@dataclass(frozen=True)
class Boxes:
    """Boxes in a window of a timeline, as columns of shape ``(n,)``."""

    begin: Numbers
    """Position as a fraction of the window, 0 at its begin and 1 at its end; so is ``end``."""
    end: Numbers
    lane: Indices
    """Index into `Timeline.lanes`."""
    mark: Indices
    """Index into `mark_colors.colors_of`; in a column, the mark with most bytes."""
    level: Numbers
    """Height: 0 for no bytes, 1 for the largest span of the whole timeline; in a column, of the spans' mean.

    Boxes of one column that lie on one another reach down to the lane: the tallest is first."""
    count: Indices
    """Number of spans that a box stands for."""
    bytes: Numbers
    """Bytes of these spans, with the sign of `byte_sizes.signed`."""
    span: Indices
    """Index of the box's span in the timeline, if each box is one span; −1 in columns."""

    def __len__(self) -> int:
        """Return the number of boxes."""
        return len(self.begin)

    @property
    def one_by_one(self) -> bool:
        """True if each box is one span."""
        return bool((self.span >= 0).all())


@dataclass(frozen=True)
class _Cells:
    """The cell (lane, column, mark) of each span of one window; the same under every filter."""

    first: int
    """Index of the window's first span."""
    cell: npt.NDArray[np.int32]
    """(spans of the window,) lane, column and mark, encoded as one number."""
    long: Indices
    """Spans that end after their column, as indices relative to `first`."""


@dataclass(frozen=True)
class _AddedUp:
    """The spans of one window, summed by cell of `_Cells` and by kind."""

    cell: Indices
    """(k,) cell, as encoded in `_Cells`."""
    kind: Indices
    """(k,) kind of span."""
    counts: Numbers
    """(k,) number of spans."""
    bytes: Numbers
    """(k,) bytes."""


class Coded:
    """The spans of a timeline as arrays of shape ``(n,)``, from which every window is taken.

    Args:
        timeline: the timeline that holds the spans.
        kind: (spans,) a small number per span; spans of equal number are usually shown or hidden together.
        most_lanes: maximal number of lanes; the spans of further lanes are omitted.
    """

    def __init__(
        self, timeline: Timeline, kind: npt.NDArray[np.integer[Any]] | None = None, most_lanes: int = MOST_LANES
    ) -> None:
        spans = timeline.spans
        self.kind = kind
        self.begin: Numbers = spans["begin"].to_numpy()
        self.end: Numbers = spans["end"].to_numpy()
        self.until: Numbers = np.maximum.accumulate(self.end) if len(self.end) else self.end
        """Running maximum of the spans' ends."""
        self.lane = _codes(spans["lane"], timeline.lanes)
        self.mark = np.minimum(_codes(spans["mark"], timeline.marks), np.int32(MOST_MARKS - 1))
        self.bytes: Numbers = spans["bytes"].fill_null(0).to_numpy().astype(np.float64)
        self.row: Indices = spans["row"].cast(pl.Int64).fill_null(-1).to_numpy()
        """Row of the trace's event; −1 for spans that are not events."""
        unsized: Mask = spans["bytes"].is_null().to_numpy()
        self.flat: Mask = unsized & (self.row < 0)
        """Mask of the spans without bytes, whose height does not depend on bytes."""
        self.unknown: Mask | None = unsized & (self.row >= 0) if (unsized & (self.row >= 0)).any() else None
        """Mask of the spans of unknown size; None if there are none."""
        self.in_order = bool(np.array_equal(self.row, np.arange(timeline.tables.events.height)))
        """True if span i is event i."""
        self.top = float(self.bytes.max(initial=0.0))
        self.shape = (min(len(timeline.lanes), most_lanes), min(max(1, len(timeline.marks)), MOST_MARKS))
        """Numbers of (lanes, marks) that are drawn."""
        self.hides_lanes = len(timeline.lanes) > self.shape[0]
        self.low = timeline.marks.index(WAITING) if WAITING in timeline.marks else -1
        """Mark of gaps, −1 if there is none."""
        self.busy_lanes = np.unique(self.lane[self.mark == self.low]) if timeline.has_busy_lane else self.lane[:0]
        """Lanes that at each time either work or wait."""
        self._cells: dict[tuple[float, float, int], _Cells] = {}
        self._sums: tuple[tuple[float, float, int], _AddedUp] | None = None

    @cached_property
    def span_of(self) -> Indices:
        """(events,) index of each event's span; −1 for an event that has none."""
        of_events = np.full(int(self.row.max(initial=-1)) + 1, -1, np.int64)
        held = np.flatnonzero(self.row >= 0)
        of_events[self.row[held]] = held
        return of_events

    def __len__(self) -> int:
        """Return the number of spans."""
        return len(self.begin)

    def slice_of(self, window: tuple[float, float]) -> slice:
        """Return the slice from the first to the last span that overlaps a window."""
        first, last = window
        return slice(int(np.searchsorted(self.until, first, "right")), int(np.searchsorted(self.begin, last, "left")))

    def inside(self, window: tuple[float, float], shown: Mask | None = None) -> Mask:
        """Return the mask of drawn spans within `slice_of`; ``shown``: (spans,) mask of those allowed, None for all."""
        part = self.slice_of(window)
        kept = np.ones(part.stop - part.start, bool) if shown is None else shown[part].copy()
        before = max(part.start, int(np.searchsorted(self.begin, window[0], "right")))  # from there they begin inside
        kept[: before - part.start] &= self.end[part.start : before] > window[0]
        if self.hides_lanes:
            kept &= self.lane[part] < self.shape[0]
        return kept

    def added_up(self, window: tuple[float, float], columns: int) -> _AddedUp:
        """Return the sums of a window's spans, cached for the last window; requires kinds."""
        assert self.kind is not None
        key = (*window, columns)
        if self._sums is None or self._sums[0] != key:
            at, cells = np.flatnonzero(self.inside(window)), self.cells(window, columns)
            kinds = int(self.kind.max(initial=0)) + 1
            both = cells.cell.take(at).astype(np.int64) * kinds + self.kind.take(at + cells.first)
            counts = np.bincount(both)
            held = np.flatnonzero(counts)
            sizes = np.bincount(both, self.bytes.take(at + cells.first))[held].astype(np.float64)
            self._sums = key, _AddedUp(*np.divmod(held, kinds), counts[held].astype(np.float64), sizes)
        return self._sums[1]

    def cells(self, window: tuple[float, float], columns: int) -> _Cells:
        """Return the cells of a window's spans, cached for the last windows."""
        key = (*window, columns)
        if key not in self._cells:
            if len(self._cells) > 1:
                self._cells.pop(next(iter(self._cells)))
            self._cells[key] = self._matching(window, columns)
        return self._cells[key]

    def _matching(self, window: tuple[float, float], columns: int) -> _Cells:
        part, width = self.slice_of(window), (window[1] - window[0]) / columns
        begin, lane = self.begin[part], np.minimum(self.lane[part], self.shape[0] - 1)
        column = np.clip((begin - window[0]) * (1 / width), 0, columns - 1).astype(np.int32)
        cell = (lane * np.int32(columns) + column) * np.int32(self.shape[1]) + self.mark[part]
        return _Cells(part.start, cell, np.flatnonzero(self.end[part] - begin > width))


def _codes(names: pl.Series, order: tuple[str, ...]) -> npt.NDArray[np.int32]:
    codes: npt.NDArray[np.int32] = names.cast(pl.Enum(order)).to_physical().to_numpy().astype(np.int32)
    return codes


def extent(timeline: Timeline) -> tuple[float, float]:
    """Return the first begin and the last end; (0, 1) for a timeline without spans."""
    if timeline.spans.is_empty():
        return 0.0, 1.0
    first, last = timeline.spans.select(pl.col("begin").min(), pl.col("end").max()).row(0)
    return float(first), float(last) if last > first else float(first) + 1.0


def boxes(
    spans: Coded,
    window: tuple[float, float],
    columns: int = 960,
    most: int = 1500,
    shown: Mask | None = None,
    kinds: Mask | None = None,
    stacked: bool = False,
) -> Boxes:
    """Return the boxes of one window.

    Args:
        spans: spans of the timeline.
        window: begin and end, in the unit of the timeline.
        columns: number of columns, used if spans are too many to be drawn individually.
        most: maximal number of spans that are drawn individually.
        shown: (spans,) mask of the spans to draw; None for all.
        kinds: (kinds,) mask of the kinds in ``shown``, if it contains all spans of each; else None.
        stacked: whether a column shows each mark by its share of the bytes, instead of the one with most; beside a
            lane that is always busy, ``most`` spans of the other lanes are drawn individually.
    """
    kept = spans.inside(window, shown)
    if np.count_nonzero(kept) <= most:
        return _single_boxes(spans, np.flatnonzero(kept) + spans.slice_of(window).start, window)
    drawn = _in_columns(spans, window, columns, kept, kinds, stacked)
    if not len(spans.busy_lanes):
        return drawn
    at = np.flatnonzero(kept) + spans.slice_of(window).start
    others = at[~np.isin(spans.lane[at], spans.busy_lanes)]
    rest = (
        _single_boxes(spans, others, window)
        if stacked and len(others) <= most
        else _select(drawn, np.flatnonzero(~np.isin(drawn.lane, spans.busy_lanes)))
    )
    return _joined([rest, *(_busy(spans, int(number), window, columns, kept) for number in spans.busy_lanes)])


def _single_boxes(spans: Coded, at: Indices, window: tuple[float, float]) -> Boxes:
    first, width = window[0], window[1] - window[0]
    level = np.where(
        spans.flat[at],
        1.0,
        _level(spans.bytes[at], spans),
    )
    return Boxes(
        begin=np.clip((spans.begin[at] - first) / width, 0, 1),
        end=np.clip((spans.end[at] - first) / width, 0, 1),
        lane=spans.lane[at].astype(np.int64),
        mark=spans.mark[at].astype(np.int64),
        level=level,
        count=np.ones(len(at), np.int64),
        bytes=signed(spans.bytes[at], None if spans.unknown is None else spans.unknown[at]),
        span=at.astype(np.int64),
    )


def _in_columns(
    spans: Coded,
    window: tuple[float, float],
    columns: int,
    kept: Mask,
    kinds: Mask | None,
    stacked: bool,
) -> Boxes:
    """Return a box per lane and column in which a span begins, extended to the last end of these spans.

    Measured with 1,000,000 spans: 15 ms, where polars' ``group_by`` took 150; with a quarter of them 4 ms, and 1 ms
    by kinds.
    """
    lanes, marks = spans.shape
    in_columns = spans.cells(window, columns)
    part = slice(in_columns.first, in_columns.first + len(kept))
    cell: npt.NDArray[Any]
    many: Numbers | None
    if kinds is not None:
        added = spans.added_up(window, columns)
        at = np.flatnonzero(kinds.take(added.kind))
        cell, many, sizes = added.cell.take(at), added.counts.take(at), added.bytes.take(at)
    elif kept.all():
        cell, many, sizes = in_columns.cell, None, spans.bytes[part]
    else:
        at = np.flatnonzero(kept)  # three times as fast as indexing by the mask
        cell, many, sizes = in_columns.cell.take(at), None, spans.bytes[part].take(at)
    shape, cells = (lanes * columns, marks), lanes * columns * marks
    counts = np.bincount(cell, many, minlength=cells).reshape(shape).astype(np.int64)
    totals = np.asarray(np.bincount(cell, sizes, minlength=cells).reshape(shape), np.float64)
    count = counts.sum(axis=1)
    held = np.flatnonzero(count)
    count, total = count[held], totals[held].sum(axis=1)
    most = np.where((total > 0)[:, None], totals[held], counts[held]).argmax(axis=1)
    lane, column = np.divmod(held, columns)
    end = (column + 1) / columns
    if len(in_columns.long):
        _reach(end, spans, window, kept, (in_columns, held, marks))
    flat = np.full(len(held), float(spans.flat.any()))
    level = np.where(total > 0, _level(total / count, spans), flat)
    none = np.full(len(held), -1, np.int64)
    summed = total
    if spans.unknown is not None:
        at = np.flatnonzero(kept)
        missing = np.bincount(in_columns.cell.take(at) // marks, spans.unknown[part].take(at), lanes * columns)
        summed = signed(total, missing[held])
    drawn = Boxes(
        begin=column / columns, end=end, lane=lane, mark=most, level=level, count=count, bytes=summed, span=none
    )
    return _stacked(drawn, totals[held]) if stacked else drawn


def _select(drawn: Boxes, at: Indices) -> Boxes:
    return Boxes(*(getattr(drawn, column.name)[at] for column in fields(Boxes)))


def _joined(parts: list[Boxes]) -> Boxes:
    return Boxes(*(np.concatenate([getattr(part, column.name) for part in parts]) for column in fields(Boxes)))


def _stacked(drawn: Boxes, totals: Numbers) -> Boxes:
    """Return a box per mark in place of each box, on top of those of the marks before it.

    Args:
        drawn: (n,) one box per column.
        totals: (n, marks) bytes.
    """
    whole = totals.sum(axis=1)
    reach = totals.cumsum(axis=1) / np.where(whole > 0, whole, 1)[:, None]
    at, mark = (part[::-1] for part in np.nonzero(totals))
    of_marks = _select(drawn, at)
    of_marks = replace(of_marks, mark=mark, level=of_marks.level * reach[at, mark])
    return _joined([_select(drawn, np.flatnonzero(whole == 0)), of_marks])


def _busy(spans: Coded, lane: int, window: tuple[float, float], columns: int, kept: Mask) -> Boxes:
    """Return the boxes of a lane that works or waits: in each column, each mark is as high as its share of the time.

    The last mark, that of waiting, is on top; the spans of one lane do not overlap.
    """
    part, marks = spans.slice_of(window), spans.shape[1]
    edges = np.linspace(*window, columns + 1)
    in_lane = kept & (spans.lane[part] == lane)
    shares, counts, order = [], [], [*(mark for mark in range(marks) if mark != spans.low), spans.low]
    for mark in order:
        at = np.flatnonzero(in_lane & (spans.mark[part] == mark)) + part.start
        places = np.stack([spans.begin[at], spans.end[at]], axis=1).ravel()
        passed = np.repeat(np.cumsum(spans.end[at] - spans.begin[at]), 2)
        passed[::2] -= spans.end[at] - spans.begin[at]
        lengths = np.diff(np.interp(edges, places, passed)) if len(at) else np.zeros(columns)
        shares.append(lengths * columns / (window[1] - window[0]))
        counts.append(np.histogram(spans.begin[at], edges)[0])
    share, count = np.stack(shares, axis=1), np.stack(counts, axis=1)
    column, place = np.nonzero(share > _LEAST_SHARE)
    tallest_first = np.lexsort((-place, column))
    column, place = column[tallest_first], place[tallest_first]
    return Boxes(
        begin=column / columns,
        end=(column + 1) / columns,
        lane=np.full(len(column), lane, np.int64),
        mark=np.asarray(order, np.int64)[place],
        level=np.clip(share.cumsum(axis=1)[column, place], 0, 1),
        count=np.maximum(count[column, place], 1).astype(np.int64),
        bytes=np.zeros(len(column)),
        span=np.full(len(column), -1, np.int64),
    )


def _reach(
    end: Numbers, spans: Coded, window: tuple[float, float], kept: Mask, cells: tuple[_Cells, Indices, int]
) -> None:
    """Extend the boxes in which a span begins that is longer than its column."""
    members, held, marks = cells
    long = members.long[kept[members.long]]
    places = np.searchsorted(held, members.cell[long] // marks)
    until = np.clip((spans.end[members.first + long] - window[0]) / (window[1] - window[0]), 0, 1)
    np.maximum.at(end, places, until)


def _level(sizes: npt.NDArray[Any], spans: Coded) -> Numbers:
    """Return the height of boxes, which is linear in their bytes."""
    return sizes / spans.top if spans.top > 0 else np.zeros(len(sizes))
