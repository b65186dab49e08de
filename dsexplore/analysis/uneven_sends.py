"""To whom all_to_alls with uneven splits send, as tokens are sent to the ranks of their experts."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl
import torch

from dsexplore.trace.schema import IN_STEPS
from dsexplore.trace.tables import Tables


@dataclass(frozen=True)
class MostSent:
    """The rank that uneven all_to_alls send most."""

    rank: int
    axis: str
    times: float
    """Its bytes, as a multiple of the mean of all ranks that the all_to_alls of its axis send to."""

    def __str__(self) -> str:
        axis = f" on {self.axis}" if self.axis else ""
        return f"Rank {self.rank} receives {self.times:.2g} times the mean: all_to_alls{axis} are uneven"


def most_sent(uneven: pl.DataFrame) -> MostSent | None:
    """Return the rank that is sent most beyond the mean of its axis; None if there is no such traffic.

    Args:
        uneven: see `uneven_sends`.
    """
    sums = uneven.group_by("axis").agg(mean=pl.col("bytes").mean(), rank=pl.col("rank").first(), most=pl.max("bytes"))
    sent = sums.filter(pl.col("mean") > 0).with_columns(times=pl.col("most") / pl.col("mean"))
    if sent.is_empty():
        return None
    row = sent.sort("times", "axis", descending=[True, False]).row(0, named=True)
    return MostSent(row["rank"], row["axis"], row["times"])


def uneven_sends(tables: Tables) -> pl.DataFrame:
    """Return the bytes that each rank is sent by all_to_alls of the steps whose splits are uneven.

    Columns: axis, rank, bytes; of an axis, the rank that is sent most first.
    """
    events = tables.events.filter(IN_STEPS & pl.col("send_splits").is_not_null())
    sizes = [getattr(getattr(torch, dtype, None), "itemsize", 0) for dtype in events["dtype"]]
    members = tables.groups.unique("group").select("group", "ranks")
    return (
        events.select("axis", "group", "send_splits", size=pl.Series(sizes, dtype=pl.Int64))
        .join(members, on="group")
        .filter(pl.col("ranks").list.len() == pl.col("send_splits").list.len())
        .explode("send_splits", "ranks")
        .group_by("axis", rank="ranks")
        .agg((pl.col("send_splits") * pl.col("size")).sum().alias("bytes"))
        .sort("axis", "bytes", "rank", descending=[False, True, False])
    )
