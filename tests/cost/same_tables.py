"""Two traces compared table by table."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

from dsexplore._internal.trace.tables import Tables


def same(one: Tables, other: Tables, prepared: Callable[[pl.DataFrame], pl.DataFrame] = lambda frame: frame) -> None:
    """Assert that all tables are equal, but for the names of process groups, of which each run makes its own."""
    for name in ("events", "kernels", "memory", "parameters", "groups", "modules"):
        left, right = (_numbered(prepared(getattr(tables, name))) for tables in (one, other))
        assert left.height == right.height, name
        different = [column for column in left.columns if not left[column].equals(right[column], null_equal=True)]
        assert not different, (name, different)
    assert one.info == other.info


def without_shared_memory(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the frame without the bytes of what repeats outputs and losses, which share their memory."""
    if "fused_bytes" not in frame.columns:
        return frame
    after = (pl.col("module") == "") & pl.col("op").is_in(["cat", "stack", "mean"])
    return frame.with_columns(fused_bytes=pl.when(after).then(0).otherwise("fused_bytes"))


def _numbered(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(pl.col("group").rle_id()) if "group" in frame.columns else frame
