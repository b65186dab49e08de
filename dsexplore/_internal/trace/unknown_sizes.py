"""Events of unknown size, or in a group of unknown size: their bytes are null, and sums of them are marked."""

from __future__ import annotations

import polars as pl

from dsexplore._internal.units import format_bytes, format_count

IS_UNSIZED = pl.col("message_bytes").is_null() & (pl.col("shape").list.sum() == 0)
"""Mask of the events with neither bytes nor elements."""

HAS_UNKNOWN_DTYPE = pl.col("message_bytes").is_null() & (pl.col("shape").list.sum() > 0)
"""Mask of the events with a number of elements, but no dtype."""

HAS_UNKNOWN_RANKS = pl.col("message_bytes").is_not_null() & pl.col("wire_bytes").is_null()
"""Mask of the events with message bytes, but no number of ranks."""

_IS_PLACEHOLDER = (
    (pl.col("message_bytes") == 0)
    & ((pl.col("shape").list.len() == 0) | (pl.col("shape").list.sum() > 0))
    & (pl.col("op") != "barrier")
    & ~pl.col("op").str.starts_with("switched_off:")
)
"""Mask of the events of an older file whose message bytes of 0 mean that their size is unknown."""


def without_placeholders(events: pl.DataFrame, groups: pl.DataFrame) -> pl.DataFrame:
    """Return the events of a file before format 8 with null in place of 0 for unknown bytes.

    Args:
        events: events table of the file.
        groups: groups table of the file, in which a group of unknown size has no ranks and the size 1.
    """
    unknown = groups.filter((pl.col("ranks").list.len() == 0) & (pl.col("size") == 1))["group"]
    is_in_unknown_group = (
        pl.col("group").is_in(unknown.implode())
        & (pl.col("message_bytes") > 0)
        & (pl.col("wire_bytes") == 0)
        & (pl.col("op") != "recv")
    )
    return events.with_columns(
        message_bytes=pl.when(~_IS_PLACEHOLDER).then("message_bytes"),
        wire_bytes=pl.when(~(_IS_PLACEHOLDER | is_in_unknown_group)).then("wire_bytes"),
    )


def known_sum(sizes: pl.Expr) -> pl.Expr:
    """Return the sum of the known sizes; null if there are sizes and none is known."""
    return pl.when((sizes.len() == 0) | sizes.is_not_null().any()).then(sizes.sum())


def format_sum(nbytes: float, unknown: float) -> str:
    """Return a sum of sizes as text: ``3 MiB``, ``≥ 3 MiB`` if some are unknown, or ``size unknown``.

    Args:
        nbytes: sum of the known sizes, in bytes.
        unknown: number of unknown sizes.
    """
    if unknown and not nbytes:
        return format_bytes(None)
    return f"{'≥ ' if unknown else ''}{format_bytes(nbytes)}"


def what_is_unknown(events: pl.DataFrame, count: int) -> str:
    """Return a clause on unknown wire bytes: ``the size of 3 of its 12 collectives is unknown``; empty without any.

    Args:
        events: events without wire bytes.
        count: number of all events, also those with wire bytes.
    """
    sizes = events["message_bytes"].null_count()
    ranks = events.filter(HAS_UNKNOWN_RANKS).height
    every = format_count(count, "collective")
    if sizes and sizes == count:
        return "the sizes of its collectives are unknown"
    parts = [f"the size of {sizes:,} of its {every} is unknown"] if sizes else []
    parts += [f"how many ranks share {ranks:,} of its {every} is unknown"] if ranks else []
    return " and ".join(parts)
