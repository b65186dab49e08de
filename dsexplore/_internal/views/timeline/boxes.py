"""The boxes that draw a window of a timeline: one per span if there are few, else one per lane and column."""

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
    """Position of the left edge as a fraction of the window."""
    end: Numbers
    """Position of the right edge as a fraction of the window."""
    lane: Indices
    """Index into `Timeline.lanes`."""
    mark: Indices
    """Index into `mark_colors.colors_of`; for the box of a column, the mark with most bytes."""
    level: Numbers
    """Height: 0 for no bytes, 1 for the bytes of the largest span of the timeline; for a column, the mean of its spans.

    The boxes of a stacked column all reach down to the lane and cover one another, so the tallest is first."""
    count: Indices
    """Number of spans that a box stands for."""
    bytes: Numbers
    """Bytes of these spans, as in `byte_sizes.signed`."""
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
    """The cell (lane, column, mark) of each span of a window, which no filter changes."""

    first: int
    """Index of the window's first span."""
    cell: npt.NDArray[np.int32]
    """(spans of the window,) lane, column and mark, encoded as one number."""
    long: Indices
    """Spans that end after their column, as indices relative to `first`."""


@dataclass(frozen=True)
class _SumsOfKinds:
    """The spans of a window, summed by cell of `_Cells` and by kind."""

    cell: Indices
    """(k,) cell, as encoded in `_Cells`."""
    kind: Indices
    """(k,) kind of span."""
    counts: Numbers
    """(k,) number of spans."""
    bytes: Numbers
    """(k,) bytes."""


class Coded:
    """The spans of a timeline as arrays of shape ``(n,)``, from which every window is drawn.

    Args:
        timeline: timeline that holds the spans.
        kind: (spans,) Small number per span. Filters usually show or hide all spans of a kind, whose sums are then
            reused. None for no kinds.
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
        """Running maximum of `end`."""
        self.lane = _codes(spans["lane"], timeline.lanes)
        self.mark = np.minimum(_codes(spans["mark"], timeline.marks), np.int32(MOST_MARKS - 1))
        self.bytes: Numbers = spans["bytes"].fill_null(0).to_numpy().astype(np.float64)
        self.row: Indices = spans["row"].cast(pl.Int64).fill_null(-1).to_numpy()
        """Row of each span's event in the trace; −1 for spans that are not events."""
        unsized: Mask = spans["bytes"].is_null().to_numpy()
        self.flat: Mask = unsized & (self.row < 0)
        """Mask of the spans that have no bytes, because they are not events; these have full height."""
        self.unknown: Mask | None = unsized & (self.row >= 0) if (unsized & (self.row >= 0)).any() else None
        """Mask of the spans of unknown size; None if there are none."""
        self.is_event_order = bool(np.array_equal(self.row, np.arange(timeline.tables.events.height)))
        """True if span i is event i."""
        self.top = float(self.bytes.max(initial=0.0))
        self.shape = (min(len(timeline.lanes), most_lanes), min(max(1, len(timeline.marks)), MOST_MARKS))
        """Numbers of (lanes, marks) that are drawn."""
        self.hides_lanes = len(timeline.lanes) > self.shape[0]
        self.waiting = timeline.marks.index(WAITING) if WAITING in timeline.marks else -1
        """Index of the mark of waiting; −1 if there is none."""
        self.busy_lanes = np.unique(self.lane[self.mark == self.waiting]) if timeline.has_busy_lane else self.lane[:0]
        """Lanes that work or wait at every time."""
        self._cells: dict[tuple[float, float, int], _Cells] = {}
        self._sums: tuple[tuple[float, float, int], _SumsOfKinds] | None = None

    @cached_property
    def span_of(self) -> Indices:
        """(events,) index of each event's span; −1 for an event that has none."""
        span_of = np.full(int(self.row.max(initial=-1)) + 1, -1, np.int64)
        events = np.flatnonzero(self.row >= 0)
        span_of[self.row[events]] = events
        return span_of

    def __len__(self) -> int:
        """Return the number of spans."""
        return len(self.begin)

    def slice_of(self, window: tuple[float, float]) -> slice:
        """Return the slice from the first to the last span that overlaps a window."""
        first, last = window
        return slice(int(np.searchsorted(self.until, first, "right")), int(np.searchsorted(self.begin, last, "left")))

    def inside(self, window: tuple[float, float], shown: Mask | None = None) -> Mask:
        """Return the mask, over `slice_of`, of the spans to draw; ``shown``: (spans,) mask to draw of, None for all."""
        part = self.slice_of(window)
        mask = np.ones(part.stop - part.start, bool) if shown is None else shown[part].copy()
        first_inside = max(part.start, int(np.searchsorted(self.begin, window[0], "right")))
        mask[: first_inside - part.start] &= self.end[part.start : first_inside] > window[0]
        if self.hides_lanes:
            mask &= self.lane[part] < self.shape[0]
        return mask

    def sums_of_kinds(self, window: tuple[float, float], columns: int) -> _SumsOfKinds:
        """Return the sums of a window's spans by cell and kind, cached for the last window; requires kinds."""
        assert self.kind is not None
        key = (*window, columns)
        if self._sums is None or self._sums[0] != key:
            at, cells = np.flatnonzero(self.inside(window)), self.cells(window, columns)
            kinds = int(self.kind.max(initial=0)) + 1
            both = cells.cell.take(at).astype(np.int64) * kinds + self.kind.take(at + cells.first)
            counts = np.bincount(both)
            held = np.flatnonzero(counts)
            sizes = np.bincount(both, self.bytes.take(at + cells.first))[held].astype(np.float64)
            cell, kind = np.divmod(held, kinds)
            self._sums = key, _SumsOfKinds(cell, kind, counts[held].astype(np.float64), sizes)
        return self._sums[1]

    def cells(self, window: tuple[float, float], columns: int) -> _Cells:
        """Return the cells of a window's spans, cached for the last two windows."""
        key = (*window, columns)
        if key not in self._cells:
            if len(self._cells) > 1:
                self._cells.pop(next(iter(self._cells)))
            self._cells[key] = self._find_cells(window, columns)
        return self._cells[key]

    def _find_cells(self, window: tuple[float, float], columns: int) -> _Cells:
        part, width = self.slice_of(window), (window[1] - window[0]) / columns
        begin, lane = self.begin[part], np.minimum(self.lane[part], self.shape[0] - 1)
        column = np.clip((begin - window[0]) * (1 / width), 0, columns - 1).astype(np.int32)
        cell = (lane * np.int32(columns) + column) * np.int32(self.shape[1]) + self.mark[part]
        return _Cells(part.start, cell, np.flatnonzero(self.end[part] - begin > width))


def _codes(names: pl.Series, order: tuple[str, ...]) -> npt.NDArray[np.int32]:
    codes: npt.NDArray[np.int32] = names.cast(pl.Enum(order)).to_physical().to_numpy().astype(np.int32)
    return codes


def extent(timeline: Timeline) -> tuple[float, float]:
    """Return (first begin, last end) of the spans, in the unit of the timeline; (0, 1) without spans."""
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
        columns: number of columns into which too many spans are summed.
        most: maximal number of spans that are drawn individually.
        shown: (spans,) Mask of the spans to draw; None for all.
        kinds: (kinds,) Mask of the kinds in ``shown``, if it contains all their spans; else None.
        stacked: whether a column shows each mark by its share of the bytes, instead of only the mark with most bytes.
            If a lane is always busy, up to ``most`` spans of the other lanes are then drawn individually.
    """
    kept = spans.inside(window, shown)
    at = np.flatnonzero(kept) + spans.slice_of(window).start
    if len(at) <= most:
        return _single_boxes(spans, at, window)
    drawn = _in_columns(spans, window, columns, kept, kinds=kinds, stacked=stacked)
    if not len(spans.busy_lanes):
        return drawn
    other_spans = at[~np.isin(spans.lane[at], spans.busy_lanes)]
    if stacked and len(other_spans) <= most:
        other_lanes = _single_boxes(spans, other_spans, window)
    else:
        other_lanes = _select(drawn, np.flatnonzero(~np.isin(drawn.lane, spans.busy_lanes)))
    return _joined([other_lanes, *(_busy(spans, int(lane), window, columns, kept) for lane in spans.busy_lanes)])


def _single_boxes(spans: Coded, at: Indices, window: tuple[float, float]) -> Boxes:
    """Return a box for each of the spans at these indices."""
    first, width = window[0], window[1] - window[0]
    return Boxes(
        begin=np.clip((spans.begin[at] - first) / width, 0, 1),
        end=np.clip((spans.end[at] - first) / width, 0, 1),
        lane=spans.lane[at].astype(np.int64),
        mark=spans.mark[at].astype(np.int64),
        level=np.where(spans.flat[at], 1.0, _level(spans.bytes[at], spans)),
        count=np.ones(len(at), np.int64),
        bytes=signed(spans.bytes[at], None if spans.unknown is None else spans.unknown[at]),
        span=at.astype(np.int64),
    )


def _in_columns(
    spans: Coded,
    window: tuple[float, float],
    columns: int,
    kept: Mask,
    *,
    kinds: Mask | None,
    stacked: bool,
) -> Boxes:
    """Return a box per lane and column in which a span begins, extended to the last end of these spans.

    ``kept`` is the mask of `Coded.inside`; the other arguments are those of `boxes`. Measured with 1,000,000 spans:
    15 ms, where polars' ``group_by`` took 150; with a quarter of them 4 ms, and 1 ms by kinds.
    """
    in_columns = spans.cells(window, columns)
    counts, totals = _sums_of_cells(spans, window, columns, kept, kinds)
    count = counts.sum(axis=1)
    held = np.flatnonzero(count)
    count, total = count[held], totals[held].sum(axis=1)
    largest_mark = np.where((total > 0)[:, None], totals[held], counts[held]).argmax(axis=1)
    lane, column = np.divmod(held, columns)
    end = (column + 1) / columns
    if len(in_columns.long):
        _extend_to_ends(end, spans, window, kept=kept, cells=in_columns, boxes_of_cells=held)
    signed_total = total
    if spans.unknown is not None:
        at = np.flatnonzero(kept)
        cell = in_columns.cell.take(at) // spans.shape[1]
        missing = np.bincount(cell, spans.unknown.take(at + in_columns.first), spans.shape[0] * columns)
        signed_total = signed(total, missing[held])
    drawn = Boxes(
        begin=column / columns,
        end=end,
        lane=lane,
        mark=largest_mark,
        level=np.where(total > 0, _level(total / count, spans), float(spans.flat.any())),
        count=count,
        bytes=signed_total,
        span=np.full(len(held), -1, np.int64),
    )
    return _stacked(drawn, totals[held]) if stacked else drawn


def _sums_of_cells(
    spans: Coded, window: tuple[float, float], columns: int, kept: Mask, kinds: Mask | None
) -> tuple[Indices, Numbers]:
    """Return (numbers, bytes) of the spans by lane and column, and by mark, both of shape (lanes · columns, marks)."""
    in_columns = spans.cells(window, columns)
    cell: npt.NDArray[Any]
    spans_of_cell: Numbers | None = None  # one each
    if kinds is not None:
        sums = spans.sums_of_kinds(window, columns)
        at = np.flatnonzero(kinds.take(sums.kind))
        cell, spans_of_cell, sizes = sums.cell.take(at), sums.counts.take(at), sums.bytes.take(at)
    elif kept.all():
        cell, sizes = in_columns.cell, spans.bytes[in_columns.first : in_columns.first + len(kept)]
    else:
        at = np.flatnonzero(kept)  # three times as fast as indexing by the mask
        cell, sizes = in_columns.cell.take(at), spans.bytes.take(at + in_columns.first)
    lanes, marks = spans.shape
    counts, totals = (
        np.bincount(cell, weights, minlength=lanes * columns * marks).reshape(lanes * columns, marks)
        for weights in (spans_of_cell, sizes)
    )
    return counts.astype(np.int64), totals.astype(np.float64)


def _select(drawn: Boxes, at: Indices) -> Boxes:
    """Return the boxes at these indices."""
    return Boxes(*(getattr(drawn, column.name)[at] for column in fields(Boxes)))


def _joined(parts: list[Boxes]) -> Boxes:
    """Return the boxes of all parts."""
    return Boxes(*(np.concatenate([getattr(part, column.name) for part in parts]) for column in fields(Boxes)))


def _stacked(drawn: Boxes, totals: Numbers) -> Boxes:
    """Replace each box by one box per mark, which is as high as the bytes of this mark and the marks before it.

    Args:
        drawn: (n,) One box per lane and column.
        totals: (n, marks) Bytes of each mark in the box.
    """
    whole = totals.sum(axis=1)
    reach = totals.cumsum(axis=1) / np.where(whole > 0, whole, 1)[:, None]
    at, mark = (indices[::-1] for indices in np.nonzero(totals))
    of_marks = _select(drawn, at)
    of_marks = replace(of_marks, mark=mark, level=of_marks.level * reach[at, mark])
    return _joined([_select(drawn, np.flatnonzero(whole == 0)), of_marks])


def _busy(spans: Coded, lane: int, window: tuple[float, float], columns: int, kept: Mask) -> Boxes:
    """Return the boxes of a busy lane: in each column, each mark is as high as its share of the time.

    Waiting is on top. The spans of a busy lane do not overlap.
    """
    part, marks = spans.slice_of(window), spans.shape[1]
    edges = np.linspace(*window, columns + 1)
    in_lane = kept & (spans.lane[part] == lane)
    order = [*(mark for mark in range(marks) if mark != spans.waiting), spans.waiting]
    shares, counts = [], []
    for mark in order:
        at = np.flatnonzero(in_lane & (spans.mark[part] == mark)) + part.start
        # the time spent in this mark so far, of which the difference over a column is the mark's time in it
        times = np.stack([spans.begin[at], spans.end[at]], axis=1).ravel()
        spent = np.repeat(np.cumsum(spans.end[at] - spans.begin[at]), 2)
        spent[::2] -= spans.end[at] - spans.begin[at]
        lengths = np.diff(np.interp(edges, times, spent)) if len(at) else np.zeros(columns)
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


def _extend_to_ends(
    end: Numbers, spans: Coded, window: tuple[float, float], *, kept: Mask, cells: _Cells, boxes_of_cells: Indices
) -> None:
    """Extend the boxes of columns to the ends of the spans that are longer than their column.

    Args:
        end: (n,) End of each box as a fraction of the window, changed in place.
        spans: spans of the timeline.
        window: begin and end of the window.
        kept: mask of `Coded.inside`.
        cells: cells of the window's spans.
        boxes_of_cells: (n,) Lane and column of each box, encoded as in the cells but without the mark; ascending.
    """
    long = cells.long[kept[cells.long]]
    places = np.searchsorted(boxes_of_cells, cells.cell[long] // spans.shape[1])
    until = np.clip((spans.end[cells.first + long] - window[0]) / (window[1] - window[0]), 0, 1)
    np.maximum.at(end, places, until)


def _level(sizes: npt.NDArray[Any], spans: Coded) -> Numbers:
    """Return the heights of boxes of these bytes: 1 for the bytes of the largest span."""
    return sizes / spans.top if spans.top > 0 else np.zeros(len(sizes))
