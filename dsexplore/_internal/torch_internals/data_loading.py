"""The names of ``torch.utils.data`` that show when a program waits for its next batch."""

from __future__ import annotations

from typing import Any

from dsexplore._internal.torch_internals.names import TorchName

NEXT_BATCH = TorchName("torch.utils.data.dataloader:_BaseDataLoaderIter.__next__")
"""The method that returns the next batch of a ``DataLoader``, with workers or without."""


def dataset_name(iterator: Any) -> str:
    """Return the name of the class of the data set that an iterator of a ``DataLoader`` reads; empty if unknown."""
    dataset = getattr(iterator, "_dataset", None)
    return "" if dataset is None else type(dataset).__name__
