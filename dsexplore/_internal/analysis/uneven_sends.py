"""Sums what all_to_alls with uneven splits send to each rank, such as tokens to the ranks of their experts."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from dsexplore._internal.trace.item_size import item_sizes
from dsexplore._internal.trace.schema import IN_STEPS
from dsexplore._internal.trace.tables import Tables


@dataclass(frozen=True)
class MostSent:
    """The rank that uneven all_to_alls send most to."""

    rank: int
    axis: str
    times: float
    """Bytes sent to it, as a multiple of the mean over all ranks of the axis."""

    def __str__(self) -> str:
        axis = f" on {self.axis}" if self.axis else ""
        return f"Rank {self.rank} receives {self.times:.2g} times the mean: all_to_alls{axis} are uneven"


def most_sent(uneven: pl.DataFrame) -> MostSent | None:
    """Return the rank that is sent the largest multiple of the mean of its axis; None if nothing is sent.

    Args:
        uneven: the result of `uneven_sends`.
    """
    sums = uneven.group_by("axis").agg(mean=pl.col("bytes").mean(), rank=pl.col("rank").first(), most=pl.max("bytes"))
    sent = sums.filter(pl.col("mean") > 0).with_columns(times=pl.col("most") / pl.col("mean"))
    if sent.is_empty():
        return None
    row = sent.sort("times", "axis", descending=[True, False]).row(0, named=True)
    return MostSent(row["rank"], row["axis"], row["times"])


def uneven_sends(tables: Tables) -> pl.DataFrame:
    """Return what uneven all_to_alls in steps send to each rank; columns: see `sent_to_ranks`.

    A rotation counts as even: each rank sends all to one rank and receives as much from one, as in ring attention.
    """
    sends, receives = (
        pl.col(column).list.eval(pl.element() > 0).list.sum() for column in ("send_splits", "recv_splits")
    )
    is_as_much = pl.col("send_splits").list.sum() == pl.col("recv_splits").list.sum()
    rotates = (sends == 1) & (receives == 1) & is_as_much
    uneven = IN_STEPS & pl.col("send_splits").is_not_null() & ~rotates.fill_null(False)
    return sent_to_ranks(tables, tables.events.filter(uneven))


def sent_to_ranks(tables: Tables, events: pl.DataFrame) -> pl.DataFrame:
    """Return what each rank is sent by all_to_alls.

    Args:
        tables: the trace.
        events: its all_to_alls with splits.

    Returns:
        Columns ``axis``, ``rank``, ``tokens`` (rows of the sent tensors) and ``bytes`` (null if a dtype is unknown);
        for each axis, the rank that is sent most comes first.
    """
    members = tables.groups.unique("group").select("group", "ranks")
    width = pl.when(pl.col("shape").list.len() > 1).then(pl.col("shape").list.last()).otherwise(1)
    size = pl.col("send_splits") * pl.col("size")
    return (
        events.select("axis", "group", "send_splits", size=item_sizes(), width=width.fill_null(1).clip(1))
        .join(members, on="group")
        .filter(pl.col("ranks").list.len() == pl.col("send_splits").list.len())
        .explode("send_splits", "ranks")
        .group_by("axis", rank="ranks")
        .agg(
            tokens=(pl.col("send_splits") // pl.col("width")).sum(),
            bytes=pl.when(pl.col("size").is_not_null().all()).then(size.sum()),
        )
        .sort("axis", "bytes", "rank", descending=[False, True, False], nulls_last=True)
    )
