"""Events of unknown size or group, whose bytes are recorded as 0: masks to tell them from events that move nothing."""

from __future__ import annotations

import polars as pl

from dsexplore.units import format_count

IS_UNSIZED = (
    (pl.col("message_bytes") == 0)
    & (pl.col("shape").list.len() == 0)
    & (pl.col("op") != "barrier")
    & ~pl.col("op").str.starts_with("switched_off:")
)
"""Mask of the events whose size is unknown. A scalar has an empty shape too, but has bytes."""

HAS_UNKNOWN_DTYPE = (
    (pl.col("message_bytes") == 0) & (pl.col("shape").list.sum() > 0) & ~pl.col("op").str.starts_with("switched_off:")
)
"""Mask of the events whose number of elements is known, but not the dtype."""


def has_unknown_ranks(groups: pl.DataFrame) -> pl.Expr:
    """Return the mask of the events whose message is known, but not how many ranks share it: their wire bytes are 0.

    Args:
        groups: the table of groups; one of unknown size has no ranks and is recorded as of size 1.
    """
    unknown = groups.filter((pl.col("ranks").list.len() == 0) & (pl.col("size") == 1))["group"]
    return pl.col("group").is_in(unknown.implode()) & (pl.col("message_bytes") > 0) & (pl.col("wire_bytes") == 0)


def what_is_unknown(events: pl.DataFrame, groups: pl.DataFrame, count: int) -> str:
    """Say what is not known of the wire bytes of some events: ``the size of 3 of its 12 collectives is unknown``.

    Empty if all is known.

    Args:
        events: those without wire bytes.
        groups: the table of groups.
        count: of all events.
    """
    sizes = events.filter(IS_UNSIZED | HAS_UNKNOWN_DTYPE).height
    ranks = events.filter(has_unknown_ranks(groups)).height
    every = format_count(count, "collective")
    if sizes and sizes == count:
        return "the sizes of its collectives are unknown"
    parts = [f"the size of {sizes:,} of its {every} is unknown"] if sizes else []
    parts += [f"how many ranks share {ranks:,} of its {every} is unknown"] if ranks else []
    return " and ".join(parts)
