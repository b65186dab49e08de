"""Counts and bytes of a trace's events, added up over columns such as axis or op."""

from __future__ import annotations

import polars as pl

from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.trace.unknown_sizes import known_sum


def totals(tables: Tables, *keys: str) -> pl.DataFrame:
    """Return ``count``, ``message_bytes`` and ``wire_bytes`` grouped by the columns `keys`, the largest first.

    The sums are over all ranks of the trace, and include the ranks that a rank represents. Collectives of unknown size
    are counted, but not in sums of bytes; these are null where no size is known.
    """
    times = pl.lit(1, pl.Int64)
    if tables.info.stands_for:
        times = pl.col("rank").replace_strict(dict(tables.info.weights), default=1, return_dtype=pl.Int64)
    return (
        tables.events.with_columns(times.alias("times"))
        .group_by(*keys, maintain_order=True)
        .agg(
            pl.col("times").sum().alias("count"),
            *(known_sum(pl.col(size) * pl.col("times")).alias(size) for size in ("message_bytes", "wire_bytes")),
        )
        .sort("message_bytes", "count", *keys, descending=[True, True, *(False for _ in keys)], nulls_last=True)
    )
