"""The bytes of one element, by the name of its dtype as tables hold it."""

from __future__ import annotations

from functools import cache

import polars as pl
import torch


@cache
def item_size(dtype: str) -> int | None:
    """Return the bytes of one element; None if this torch has no dtype of that name.

    Args:
        dtype: name of the dtype, without ``torch.``.

    Examples:
        >>> item_size("bfloat16"), item_size("ncclFuture8"), item_size("")
        (2, None, None)
    """
    torch_dtype = getattr(torch, dtype, None)
    return int(torch_dtype.itemsize) if isinstance(torch_dtype, torch.dtype) else None


def item_sizes() -> pl.Expr:
    """Return the bytes of one element for each row's ``dtype``; null where `item_size` is None."""
    sizes = {name: item_size(name) for name, value in vars(torch).items() if isinstance(value, torch.dtype)}
    return pl.col("dtype").cast(pl.String).replace_strict(sizes, default=None, return_dtype=pl.Int64)
