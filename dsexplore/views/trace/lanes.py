"""Events in lanes and bins: a lane per rank, group and op, bins of program order or of time."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import polars as pl

from dsexplore.trace import measured_time

_LANE = ("rank", "lane", "op")


@dataclass(frozen=True)
class Lanes:
    """One row per rank, group and op; columns are equal bins of program order or time.

    In time, an event is in every bin from its start to its end.
    """

    labels: list[tuple[int, str, str]]
    """(rank, axis or group, op) per row."""
    events: list[int]
    """(rows,) the number of collectives in each."""
    bytes: npt.NDArray[np.int64]
    """(rows, bins) bytes of the collectives under way."""
    counts: npt.NDArray[np.int64]
    """(rows, bins) collectives under way."""
    phases: list[list[str]]
    """(rows, bins) the phase of the first collective that begins in a bin, else of those under way; "" without any."""
    unit: str
    """``seq`` for program order, ``ns`` for time since the first start."""
    first: float
    last: float
    width: float
    """Of a bin, in the unit: a whole number of collectives in program order."""
    hidden: int
    """Rows left out."""

    def edges(self, column: int) -> tuple[float, float]:
        """The beginnings of a bin and of the next."""
        return self.first + column * self.width, self.first + (column + 1) * self.width

    def begins(self, first: int, end: int) -> pl.Expr:
        """The condition that an event of `placed` begins in the bins ``[first, end)``."""
        begin = pl.col("begin")
        before_end = begin <= self.last if end == self.bytes.shape[1] else begin < self.edges(end)[0]
        return (begin >= self.edges(first)[0]) & before_end

    def holds(self, column: int) -> pl.Expr:
        """The condition that an event of `placed` is in a bin."""
        earlier = (pl.col("begin") < self.edges(column)[0]) & (pl.col("end") > self.edges(column)[0])
        return earlier | self.begins(column, column + 1)


def placed(events: pl.DataFrame, size: str = "wire_bytes") -> pl.DataFrame:
    """The lane of each event, and where it begins and ends on the axis; ``size``: the column that becomes ``bytes``.

    Columns: rank, lane, op, phase, bytes, begin, end (ns since the first start where any was measured, else
    the place in program order).
    """
    if measured_time.is_timed(events):
        begin, end = measured_time.begin(events), measured_time.end(events)
    else:
        begin = end = pl.col("seq")
    lane = pl.when(pl.col("axis") != "").then("axis").otherwise("group").alias("lane")
    at = begin.cast(pl.Float64).alias("begin"), end.cast(pl.Float64).alias("end")
    return events.select("rank", lane, "op", "phase", pl.col(size).alias("bytes"), *at)


def lanes(
    events: pl.DataFrame,
    bins: int = 96,
    most: int = 8,
    window: tuple[float, float] | None = None,
    size: str = "wire_bytes",
) -> Lanes:
    """Bin the events by time where any was measured, else by program order.

    Args:
        events: what is shown.
        bins: at most so many columns.
        most: rows at most.
        window: only this part of the axis, in its unit.
        size: the column of the events that is added up.
    """
    timed, rows = measured_time.is_timed(events), placed(events, size)
    first, last = window or _extent(rows)
    width, bins = _bins(first, last, bins, timed)
    rows = rows.filter((pl.col("begin") <= last) & ((pl.col("begin") >= first) | (pl.col("end") > first)))
    every = rows.group_by(_LANE).agg(pl.len().alias("events")).sort(_LANE)
    kept = every.head(most)
    rows = rows.join(kept.select(_LANE).with_row_index("row"), on=_LANE, how="inner", maintain_order="left")
    last_bin = ((pl.col("end") - first) / width).ceil() - 1
    first_bin = ((pl.col("begin") - first) / width).floor().clip(0, bins - 1)
    rows = rows.with_columns(
        first_bin.cast(pl.Int32).alias("bin"),
        pl.max_horizontal(first_bin, last_bin.clip(0, bins - 1)).cast(pl.Int32).alias("until"),
    )
    counts = _under_way(rows, (kept.height, bins), np.ones(rows.height))
    return Lanes(
        kept.select(_LANE).rows(),
        kept["events"].to_list(),
        _under_way(rows, (kept.height, bins), rows["bytes"].to_numpy().astype(np.float64)),
        counts,
        _phases(rows, counts),
        "ns" if timed else "seq",
        first,
        last,
        width,
        every.height - kept.height,
    )


def _under_way(rows: pl.DataFrame, shape: tuple[int, int], values: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """(lanes, bins) sums over the events under way: begun in the bin or before, and not ended before."""
    lanes_, bins = shape
    at = rows["row"].to_numpy().astype(np.int64) * (bins + 1)
    begun, ended = (
        np.bincount(at + place, values, lanes_ * (bins + 1)).reshape(lanes_, bins + 1)
        for place in (rows["bin"].to_numpy(), rows["until"].to_numpy() + 1)
    )
    total: npt.NDArray[np.int64] = np.cumsum(begun - ended, axis=1)[:, :bins].astype(np.int64)
    return total


def _phases(rows: pl.DataFrame, counts: npt.NDArray[np.int64]) -> list[list[str]]:
    phases = [[""] * counts.shape[1] for _ in range(counts.shape[0])]
    for row, place, phase in rows.group_by("row", "bin").agg(pl.col("phase").first()).iter_rows():
        phases[row][place] = phase
    for row, names in enumerate(phases):
        for before, place in pairwise(range(len(names))):
            if counts[row, place] and not names[place]:
                names[place] = names[before]
    return phases


def lane_names(found: Lanes) -> list[str]:
    """The name of each lane, without its rank where all are of one."""
    several = len({rank for rank, _, _ in found.labels}) > 1
    parts = (((f"rank {rank}" if several else ""), lane, op) for rank, lane, op in found.labels)
    return [" · ".join(part for part in named if part) for named in parts]


def phase_runs(found: Lanes) -> list[tuple[str, int, int]]:
    """(phase, first bin, end): the bins cut where the phase of what was sent changes; "" before the first event."""
    runs: list[tuple[str, int, int]] = []
    for column in range(found.bytes.shape[1]):
        phase = next((row[column] for row in found.phases if row[column]), "")
        if runs and (runs[-1][0] == phase or not phase):
            runs[-1] = (runs[-1][0], runs[-1][1], column + 1)
        else:
            runs.append((phase, column, column + 1))
    return runs


def _extent(rows: pl.DataFrame) -> tuple[float, float]:
    if rows.is_empty():
        return 0.0, 0.0
    first, last = rows.select(pl.col("begin").min(), pl.col("end").max()).row(0)
    return float(first), float(last)


def _bins(first: float, last: float, most: int, timed: bool) -> tuple[float, int]:
    """(width, how many): program order is cut into whole numbers of collectives."""
    if timed:
        return max(last - first, 1.0) / most, most
    places = int(last - first) + 1
    width = -(-places // most)
    return float(width), -(-places // width)
