"""Computes when each rank arrived at each collective: how late, and whether an earlier collective held it up.

A rank is late by the time from the median start of the other ranks (the earlier one of the two in the middle) to its
own start. Clocks of several hosts may differ. All ranks leave a collective together, so the rank with the shortest
duration began last. So across hosts, a rank's lateness is at most the longest duration minus its own. The same limit
holds for ops that need not end together, such as a broadcast: a late receiver need not hold up anybody.

Worked example: ranks 0, 1 and 2 begin an all_reduce at 0, 2 and 200 ms, and leave it at 205 ms. Its transfer takes
5 ms, the least of 205, 203 and 5. Ranks 0 and 1 waited for 200 and 198 ms, and rank 2 was late by 200 ms.

A rank is *held up* if it comes late although its program took no longer than the others' since the last collective that
had ended on it: it waited for another rank in that collective, or the collective was slow.
"""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from dsexplore._internal.trace.matching import TOGETHER, matched
from dsexplore._internal.trace.tables import Tables, TraceInfo

LATE = 50e-6
"""Seconds above which a rank is called late; a process takes up to that long to wake up."""
LATE_SHARE = 0.05
"""Share of the transfer above which a rank is called late; both limits have to be exceeded."""

ADDED: dict[str, pl.DataType] = {
    "row": pl.UInt32(),  # position in the trace's events
    "same_group": pl.String(),  # name of the group on all ranks, see `trace.matching.numbered`
    "number": pl.Int64(),  # number of the collective in its group
    "instance": pl.Int64(),  # equal for the ranks of one collective
    "count": pl.UInt32(),  # number of ranks that measured it
    "begin": pl.Float64(),  # seconds since the first start of the trace
    "took": pl.Float64(),  # seconds on this rank
    "duration": pl.Float64(),  # seconds of the transfer: the least over ranks
    "lateness": pl.Float64(),  # seconds after the first rank
    "deviation": pl.Float64(),  # seconds after the median of the other ranks; negative if before it
    "late_by": pl.Float64(),  # the deviation; 0 if negative
    "is_late": pl.Boolean(),  # whether others waited for this rank
    "is_held_up": pl.Boolean(),  # whether an earlier collective made it late, and not its own program
}
"""The columns that `arrivals` adds to those of the events."""
_LEAST_SHARE_OF_DELAY = 0.5
"""The share of a rank's lateness by which its program must have taken longer than the others' not to be held up."""
COMES_LATE = pl.col("is_late") & ~pl.col("is_held_up")
"""The arrivals that are late because of their rank's own program."""


def arrivals(tables: Tables) -> pl.DataFrame:
    """Return one row per rank and collective that at least two ranks measured.

    If the ranks of a group call different ops, that collective of the group and all later ones are omitted: their
    numbers do not show which calls belong together.

    Args:
        tables: a trace of several ranks on one clock (see `trace.merge`).

    Returns:
        Columns of the events and `ADDED`, sorted by rank and program order.
    """
    has_times = pl.col("start").is_not_null() & pl.col("end").is_not_null()
    measured_ranks = tables.events.select(pl.col("rank").filter(has_times).n_unique()).item()
    if measured_ranks < 2:
        tables = replace(tables, events=tables.events.clear())
    with_rows = tables.events.with_row_index("row")
    measured = _shared_collectives(_collectives_before_parting(matched(replace(tables, events=with_rows))))
    begin = pl.col("start") - pl.col("start").min()
    timed = measured.with_columns(begin=begin / 1e9, took=(pl.col("end") - pl.col("start")) / 1e9)
    return _held_up(_late(timed, tables.info), with_rows)


def _collectives_before_parting(measured: pl.DataFrame) -> pl.DataFrame:
    """Return the collectives before the first one of their group with different ops, with an id: ``instance``."""
    group = pl.col("same_group").cast(pl.Categorical).to_physical().cast(pl.Int64)
    numbered = measured.with_columns(instance=group * 2**40 + pl.col("number").cast(pl.Int64))
    ops = numbered.group_by("instance").agg(
        pl.col("op").n_unique().alias("ops"), pl.col("same_group", "number").first()
    )
    parted = ops.filter(pl.col("ops") > 1).group_by("same_group").agg(pl.col("number").min().alias("parted"))
    if parted.is_empty():
        return numbered
    joined = numbered.join(parted, on="same_group", how="left", maintain_order="left")
    return joined.filter(pl.col("parted").is_null() | (pl.col("number") < pl.col("parted"))).drop("parted")


def _shared_collectives(collectives: pl.DataFrame) -> pl.DataFrame:
    return collectives.with_columns(count=pl.len().over("instance")).filter(pl.col("count") > 1)


def _late(timed: pl.DataFrame, info: TraceInfo) -> pl.DataFrame:
    """Add the columns from ``duration`` to ``is_late``."""
    clocks = dict(zip(info.ranks, info.clocks, strict=False))
    clock = pl.col("rank").replace_strict(clocks, default="", return_dtype=pl.String)
    same_clock = (clock.first() == clock).all().over("instance") & (clock != "")
    after_first = pl.col("begin") - pl.col("begin").min().over("instance")
    waited_less = pl.col("took").max().over("instance") - pl.col("took")
    by_starts = same_clock & pl.col("op").is_in(TOGETHER)
    lateness = pl.when(by_starts).then(after_first).otherwise(pl.min_horizontal(after_first, waited_less))
    arrived = timed.with_columns(duration=pl.col("took").min().over("instance"), lateness=lateness)
    late = pl.col("lateness")
    middle = (pl.len() - 2) // 2
    of_others = arrived.group_by("instance").agg(
        late.sort().gather(middle).first().alias("lower"),
        late.sort().gather(middle + 1).first().alias("upper"),
    )
    is_upper = late.rank("ordinal").over("instance") > (pl.col("count") - 2) // 2 + 1
    of_other = pl.when(is_upper).then("lower").otherwise("upper")
    arrived = (
        arrived.join(of_others, on="instance", how="left", maintain_order="left")
        .with_columns(deviation=late - of_other, late_by=(late - of_other).clip(0))
        .drop("lower", "upper")
    )
    is_more_than_waking_up = pl.col("late_by") > pl.max_horizontal(pl.lit(LATE), pl.col("duration") * LATE_SHARE)
    is_in_later_half = late > late.max().over("instance") / 2
    return arrived.with_columns(is_late=is_more_than_waking_up & is_in_later_half)


def _held_up(arrived: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    """Add ``is_held_up``.

    Args:
        arrived: the rows with ``is_late``.
        events: all events of the trace; the last one that had ended shows since when a rank's own program ran.
    """
    if not arrived["is_late"].any():
        return arrived.with_columns(is_held_up=pl.lit(False))
    timed = events.filter(pl.col("start").is_not_null() & pl.col("end").is_not_null())
    ended = timed.select("rank", free="end").sort("free")
    joined = arrived.sort("start").join_asof(
        ended, left_on="start", right_on="free", by="rank", coalesce=False, check_sortedness=False
    )
    joined = joined.sort("rank", "seq").with_columns(own=(pl.col("start") - pl.col("free")) / 1e9)
    longer = pl.col("own") - pl.col("own").quantile(0.5, "lower").over("instance")
    held_up = pl.col("is_late") & (longer < pl.col("late_by") * _LEAST_SHARE_OF_DELAY)
    return joined.with_columns(is_held_up=held_up.fill_null(False)).drop("free", "own")
