"""Events of which a file does not say the size: their bytes are 0, and are not to be taken for nothing."""

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
