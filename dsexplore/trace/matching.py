"""The same collective on all ranks of its group: the k-th that one rank issues there is the k-th of every other."""

from __future__ import annotations

import polars as pl

from dsexplore.trace.tables import Tables

POINT_TO_POINT = ("send", "recv")


def matched(tables: Tables) -> pl.DataFrame:
    """The measured collectives, with what is the same for all ranks that take part in one.

    Messages between two ranks are left out, and so are collectives that have not ended, failed, or were switched off:
    they count, so that those behind them still meet, but have no row.

    Returns:
        the events, with the columns ``number``, the position among the collectives of that group and rank, from 0;
        ``same_group``, the group under a name that all ranks share; and ``members``, the ranks of the group.
    """
    groups = tables.groups.select(
        "group",
        pl.col("ranks").alias("members"),
        pl.concat_str(
            # Two ranks may name a group alike that is another; merging then adds "@rank" to one of the names.
            pl.col("group").str.replace(r"@\d+$", ""),
            pl.col("ranks").cast(pl.List(pl.String)).list.join(","),
            separator=" ",
        ).alias("same_group"),
    )
    return (
        tables.events.filter(~pl.col("op").is_in(POINT_TO_POINT) & ~pl.col("op").str.starts_with("switched_off"))
        .join(groups, on="group", how="inner", maintain_order="left")
        .with_columns(pl.int_range(pl.len()).over("rank", "same_group").alias("number"))
        .filter(pl.col("start").is_not_null() & pl.col("end").is_not_null())
    )
