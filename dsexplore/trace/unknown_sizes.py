"""Events of unknown size, whose bytes are recorded as 0: masks to tell them from events that move nothing."""

from __future__ import annotations

import polars as pl

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
