"""Summaries of tensors: a few numbers, computed where the tensor is, by which two runs can be compared.

All are the same for the same bits on one machine. The hash is a sum of the elements' bits as whole numbers, so it does
not depend on the order of elements, while the projection does: the same hash with another projection is the same values
in another order. Norms (as squares), means (as sums) and hashes of the parts of a tensor add up to those of the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_HASH = torch.int32
"""In which bits are summed. On the CPU a sum of float32's bits in int64 takes nine times as long."""
FLOATS = ("norm", "mean", "min", "max", "projection")
"""What `read` returns of a tensor, in this order."""


class Summary(NamedTuple):
    """The summary of one tensor, in parts on its device: `read` makes numbers of many at once."""

    norm: Tensor
    low: Tensor
    high: Tensor
    products: Tensor
    """Of shape (2, 2): rows of ones and random ones times the tensor times columns of ones and random ones."""
    bits: Tensor
    """Int32 of no dims: the sum of the elements' bits, each read as a signed whole number of their size, modulo 2³²."""
    elements: int
    """Number of elements."""


class Projections:
    """Seeded random vectors, made once per length and device, each beside a vector of ones."""

    def __init__(self) -> None:
        self._vectors: dict[tuple[int, torch.device, torch.dtype], Tensor] = {}

    def ones_and_random(self, length: int, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Return a matrix of two rows of that length, ones and random numbers: the same one in every process."""
        key = length, device, dtype
        vectors = self._vectors.get(key)
        if vectors is None:
            generator = torch.Generator().manual_seed(length)
            drawn = torch.randn(length, generator=generator, dtype=torch.float64)
            vectors = torch.stack((torch.ones_like(drawn), drawn)).to(device, dtype)
            self._vectors[key] = vectors
        return vectors


def summarize(tensor: Tensor, projections: Projections) -> Summary:
    """Return the summary of a floating-point tensor with elements, without waiting for its device.

    The tensor is read four times: for the hash, the norm, the smallest and largest value, and by one product of
    matrices for sum and projection.

    Args:
        tensor: no DTensor. Dtypes below float32 are converted to it.
        projections: for the projection: of the columns of the last dim, and of all others as rows.
    """
    with torch.no_grad(), torch.autocast(tensor.device.type, enabled=False):
        matrix = tensor.detach().reshape(-1, tensor.shape[-1] if tensor.dim() else 1)
        bits = _bits(matrix)
        if matrix.dtype not in (torch.float32, torch.float64):
            matrix = matrix.float()
        rows, columns = (projections.ones_and_random(size, matrix.device, matrix.dtype) for size in matrix.shape)
        products = rows @ matrix @ columns.T
        low, high = torch.aminmax(matrix)
        return Summary(torch.linalg.vector_norm(matrix), low, high, products, bits, matrix.numel())


def read(summaries: Sequence[Summary]) -> tuple[list[list[float]], list[int]]:
    """Return `FLOATS` and the hash of each summary, which waits for their devices, once for each.

    Args:
        summaries: of tensors of any dtypes and devices.
    """
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for place, summary in enumerate(summaries):
        groups.setdefault((summary.norm.device, summary.norm.dtype), []).append(place)
    floats: dict[int, list[float]] = {}
    hashes: dict[int, int] = {}
    for places in groups.values():
        chosen = [summaries[at] for at in places]
        counts = torch.tensor([summary.elements for summary in chosen], dtype=torch.float64)
        products = torch.stack([summary.products for summary in chosen]).cpu().double()
        norm, low, high = (
            torch.stack(list(every)).cpu().double()
            for every in ([one.norm for one in chosen], [one.low for one in chosen], [one.high for one in chosen])
        )
        columns = torch.stack((norm, products[:, 0, 0] / counts, low, high, products[:, 1, 1]), 1)
        floats.update(zip(places, columns.tolist(), strict=True))
        hashes.update(zip(places, torch.stack([summary.bits for summary in chosen]).tolist(), strict=True))
    return [floats[at] for at in range(len(summaries))], [hashes[at] for at in range(len(summaries))]


def _bits(matrix: Tensor) -> Tensor:
    """Return the sum of the elements' bits modulo 2³²."""
    whole = matrix.view(_BITS[matrix.element_size()])
    if whole.element_size() <= _HASH.itemsize:
        return whole.sum(dtype=_HASH)
    return whole.sum().to(_HASH)
