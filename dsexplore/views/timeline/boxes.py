"""What of a timeline is drawn in a given width: every span where they are few, else equal columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from dsexplore.analysis.step_timeline import Timeline

Numbers = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Boxes:
    """Boxes in a window of a timeline, as columns of shape ``(n,)``."""

    begin: Numbers
    """From 0 at the window's begin to 1 at its end."""
    end: Numbers
    lane: Indices
    """Index into `Timeline.lanes`."""
    mark: Indices
    """Index into `Timeline.marks`: in a column that of the most bytes."""
    level: Numbers
    """From 0 for no bytes to 1 for the most that one box of the whole timeline has."""
    count: Indices
    """How many spans a box stands for."""
    bytes: Indices
    """Their message bytes."""
    row: Indices
    """Of the timeline's spans, where each box is one span; −1 in columns."""

    def __len__(self) -> int:
        """The number of boxes."""
        return len(self.begin)


def extent(timeline: Timeline) -> tuple[float, float]:
    """The first begin and the last end; (0, 1) of a timeline without spans."""
    if timeline.spans.is_empty():
        return 0.0, 1.0
    first, last = timeline.spans.select(pl.col("begin").min(), pl.col("end").max()).row(0)
    return float(first), float(last) if last > first else float(first) + 1.0


def coded(timeline: Timeline) -> pl.DataFrame:
    """The spans with lane and mark as numbers: made once, since every window is cut from it.

    Columns: begin, end, lane, mark, bytes, index.
    """
    lanes = pl.Enum(timeline.lanes)
    marks = pl.Enum(timeline.marks)
    return timeline.spans.select(
        "begin",
        "end",
        pl.col("lane").cast(lanes).to_physical().cast(pl.Int64).alias("lane"),
        pl.col("mark").cast(marks).to_physical().cast(pl.Int64).alias("mark"),
        pl.col("bytes").fill_null(0),
    ).with_row_index("index")


def boxes(spans: pl.DataFrame, window: tuple[float, float], columns: int = 960, most: int = 1500) -> Boxes:
    """The boxes of one window.

    Args:
        spans: of `coded`.
        window: begin and end, in the unit of the timeline.
        columns: how many there are where spans are too many to be drawn one by one.
        most: spans that are drawn one by one.
    """
    first, last = window
    width = (last - first) or 1.0
    inside = spans.filter((pl.col("begin") < last) & (pl.col("end") > first))
    top = float(spans["bytes"].max() or 0)  # type: ignore[arg-type]  # of integers
    if inside.height <= most:
        return _one_by_one(inside, first, width, top)
    return _in_columns(inside, first, width, columns, top)


def _one_by_one(inside: pl.DataFrame, first: float, width: float, top: float) -> Boxes:
    sizes = inside["bytes"].to_numpy()
    return Boxes(
        np.clip((inside["begin"].to_numpy() - first) / width, 0, 1),
        np.clip((inside["end"].to_numpy() - first) / width, 0, 1),
        inside["lane"].to_numpy(),
        inside["mark"].to_numpy(),
        _level(sizes, top),
        np.ones(inside.height, dtype=np.int64),
        sizes,
        inside["index"].to_numpy().astype(np.int64),
    )


def _in_columns(inside: pl.DataFrame, first: float, width: float, columns: int, top: float) -> Boxes:
    """A box per lane and column in which a span begins, as wide as until the last of these spans ends."""
    place = ((pl.col("begin") - first) / width * columns).floor().clip(0, columns - 1).cast(pl.Int32)
    by_mark = (
        inside.lazy()
        .with_columns(place.alias("column"))
        .group_by("lane", "column", "mark")
        .agg(
            pl.col("bytes").sum(), pl.len().alias("count"), pl.col("end").max(), pl.col("bytes").max().alias("largest")
        )
        .sort("lane", "column", "bytes", "count", descending=[False, False, True, True])
        .group_by("lane", "column", maintain_order=True)
        .agg(
            pl.col("mark").first(),
            pl.col("bytes").sum(),
            pl.col("count").sum(),
            pl.col("end").max(),
            pl.col("largest").max(),
        )
        .collect()
    )
    at = by_mark["column"].to_numpy() / columns
    until = np.clip((by_mark["end"].to_numpy() - first) / width, 0, 1)
    return Boxes(
        at,
        np.maximum(at + 1 / columns, until),
        by_mark["lane"].to_numpy(),
        by_mark["mark"].to_numpy(),
        _level(by_mark["largest"].to_numpy(), top),
        by_mark["count"].to_numpy().astype(np.int64),
        by_mark["bytes"].to_numpy(),
        np.full(by_mark.height, -1, dtype=np.int64),
    )


def _level(sizes: npt.NDArray[np.int64], top: float) -> Numbers:
    """The height of a box: the cube root keeps small messages visible beside large ones."""
    return np.cbrt(sizes / top) if top > 0 else np.zeros(len(sizes))
