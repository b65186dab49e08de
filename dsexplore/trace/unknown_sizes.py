"""Events of which a file does not say the size: their bytes are 0, and are not to be taken for nothing."""

from __future__ import annotations

import polars as pl

IS_UNSIZED = (
    (pl.col("message_bytes") == 0)
    & (pl.col("shape").list.len() == 0)
    & (pl.col("op") != "barrier")
    & ~pl.col("op").str.starts_with("switched_off:")
)
"""Of a table of events: the rows whose size is not known. A scalar has no shape either, and has bytes."""

HAS_UNKNOWN_DTYPE = (
    (pl.col("message_bytes") == 0) & (pl.col("shape").list.sum() > 0) & ~pl.col("op").str.starts_with("switched_off:")
)
"""The rows whose elements are known, and not how large one is."""
