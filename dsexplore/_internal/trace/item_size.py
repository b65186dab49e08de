"""The bytes of one element, by the name of its dtype as tables hold it."""

from __future__ import annotations

from functools import cache

import polars as pl
import torch


@cache
def item_size(dtype: str) -> int | None:
    """Return the bytes of one element; None for a dtype that this torch does not have, and for none.

    Args:
        dtype: torch's name, without ``torch.``.

    Examples:
        >>> item_size("bfloat16"), item_size("ncclFuture8"), item_size("")
        (2, None, None)
    """
    kind = getattr(torch, dtype, None)
    return int(kind.itemsize) if isinstance(kind, torch.dtype) else None


def item_sizes() -> pl.Expr:
    """Return the bytes of one element of each row, null where `item_size` is None; the column is ``dtype``."""
    sizes = {name: item_size(name) for name, value in vars(torch).items() if isinstance(value, torch.dtype)}
    return pl.col("dtype").cast(pl.String).replace_strict(sizes, default=None, return_dtype=pl.Int64)
