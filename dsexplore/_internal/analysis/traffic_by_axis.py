"""What a rank sends per step over each mesh axis, and for how long, as a table."""

from __future__ import annotations

import polars as pl

from dsexplore._internal.analysis.step_times import nanoseconds_under_way
from dsexplore._internal.trace import measured_time
from dsexplore._internal.trace.unknown_sizes import known_sum

COLUMNS: dict[str, pl.DataType] = {
    "axis": pl.String(),  # mesh axis; "" for groups that are no axis
    "count": pl.Float64(),  # collectives per rank and step
    "message_bytes": pl.Float64(),  # per rank and step, of those of known size; null where none is
    "wire_bytes": pl.Float64(),
    "ms": pl.Float64(),  # in which a collective of this axis is under way; null where nothing was measured
}


def traffic_by_axis(events: pl.DataFrame, timed: pl.DataFrame, share: int, timed_share: int) -> pl.DataFrame:
    """Return one row per axis, most wire bytes first; columns: `COLUMNS`.

    Args:
        events: those of steady steps, with ``weight``, the number of ranks that the event's rank represents.
        timed: rank, axis, start and end of the same events.
        share: number of ranks, with those that others represent, times that of steps.
        timed_share: number of recorded ranks times that of steps.
    """
    sums = (
        events.lazy()
        .group_by("axis")
        .agg(
            pl.col("weight").sum().alias("count"),
            *(known_sum(pl.col(name) * pl.col("weight")).alias(name) for name in ("message_bytes", "wire_bytes")),
        )
        .collect(engine="streaming")
        .with_columns(pl.col("axis").cast(pl.String))
        .sort("wire_bytes", "axis", descending=[True, False], nulls_last=True)
    )
    under_way = (
        {
            axis: nanoseconds_under_way(timed.select("rank", "start", "end").filter(timed["axis"] == axis)) / 1e6
            for axis in sums["axis"]
        }
        if measured_time.is_timed(timed)
        else {}
    )
    times = pl.Series("ms", [under_way.get(axis) for axis in sums["axis"]], pl.Float64)
    numbers = [pl.col(name).cast(pl.Float64) / share for name in ("count", "message_bytes", "wire_bytes")]
    return sums.select("axis", *numbers, (times / timed_share).alias("ms"))
