"""Bytes of elements by the name of a dtype: what is not known is None everywhere, and in all that is computed of it."""

from __future__ import annotations

import polars as pl
import pytest
import torch

from dsexplore._internal.trace.item_size import item_size, item_sizes

UNKNOWN = ["", "ncclFuture8", "nn", "Tensor", "float"[:3]]


@pytest.mark.parametrize("dtype", [kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)], ids=str)
def test_all_dtypes_of_torch_have_their_size(dtype: torch.dtype) -> None:
    assert item_size(str(dtype).removeprefix("torch.")) == dtype.itemsize


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_torch_has_no_dtype_of_is_unknown(name: str) -> None:
    assert item_size(name) is None


def test_a_column_has_the_sizes_of_its_rows() -> None:
    names = ["bfloat16", "float64", "float8_e4m3fn", *UNKNOWN]
    sizes = pl.DataFrame({"dtype": names}, schema={"dtype": pl.Categorical}).select(item_sizes()).to_series()
    assert sizes.to_list() == [item_size(name) for name in names] == [2, 8, 1, *[None] * len(UNKNOWN)]
