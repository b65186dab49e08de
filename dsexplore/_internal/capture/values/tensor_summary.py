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


AT_ONCE = 3 << 16
"""Elements of a tensor on the CPU that are read at once: they stay in a core's cache for the next of the four reads."""


class Summary(NamedTuple):
    """The summary of one tensor, in parts on its device: `read` makes numbers of many at once."""

    squares: list[Tensor]
    """Squared norms of each part of the tensor; so are the next three."""
    lows: list[Tensor]
    highs: list[Tensor]
    bits: list[Tensor]
    """Int32 of no dims: sums of the elements' bits, each read as a signed whole number of their size, modulo 2³²."""
    products: Tensor
    """Of shape (2, 2): rows of ones and random ones times the tensor times columns of ones and random ones."""
    elements: int
    """Number of elements of the whole tensor."""


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

    The tensor is read for the hash, the norm, the smallest and largest value, and by one product of matrices for sum
    and projection; on the CPU part by part, so that memory is read once.

    Args:
        tensor: no DTensor. Dtypes below float32 are converted to it.
        projections: for the projection: of the columns of the last dim, and of all others as rows.
    """
    with torch.no_grad(), torch.autocast(tensor.device.type, enabled=False):
        matrix = tensor.detach().reshape(-1, tensor.shape[-1] if tensor.dim() else 1)
        dtype = torch.float64 if matrix.dtype == torch.float64 else torch.float32
        rows, columns = (projections.ones_and_random(size, matrix.device, dtype) for size in matrix.shape)
        count = max(AT_ONCE // matrix.shape[1], 1) if matrix.device.type == "cpu" else len(matrix)
        summary = Summary(
            squares=[], lows=[], highs=[], bits=[], products=rows.new_zeros(2, 2), elements=matrix.numel()
        )
        by_columns = None
        for part, weights in zip(matrix.split(count), rows.split(count, 1), strict=True):
            summary.bits.append(_bits(part))
            values = part.to(dtype)
            summary.squares.append(_square(values))
            summary.lows.append(values.amin())
            summary.highs.append(values.amax())
            by_columns = weights @ values if by_columns is None else by_columns.addmm_(weights, values)
        return summary._replace(products=by_columns @ columns.T) if by_columns is not None else summary


def read(summaries: Sequence[Summary]) -> tuple[list[list[float]], list[int]]:
    """Return `FLOATS` and the hash of each summary, which waits for their devices, once for each.

    Args:
        summaries: of tensors of any dtypes and devices.
    """
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for place, summary in enumerate(summaries):
        groups.setdefault((summary.products.device, summary.products.dtype), []).append(place)
    floats: dict[int, list[float]] = {}
    hashes: dict[int, int] = {}
    for places in groups.values():
        chosen = [summaries[at] for at in places]
        owner = torch.tensor([at for at, summary in enumerate(chosen) for _ in summary.squares])
        none = torch.zeros(len(chosen), dtype=torch.float64)
        squares, lows, highs = (
            _together(parts).double()
            for parts in (
                [summary.squares for summary in chosen],
                [summary.lows for summary in chosen],
                [summary.highs for summary in chosen],
            )
        )
        norm = none.index_add(0, owner, squares).sqrt()
        low = none.scatter_reduce(0, owner, lows, "amin", include_self=False)
        high = none.scatter_reduce(0, owner, highs, "amax", include_self=False)
        bits = _together([summary.bits for summary in chosen])
        hashed = torch.zeros(len(chosen), dtype=_HASH).index_add(0, owner, bits)
        counts = torch.tensor([summary.elements for summary in chosen], dtype=torch.float64)
        products = torch.stack([summary.products for summary in chosen]).cpu().double()
        columns = torch.stack((norm, products[:, 0, 0] / counts, low, high, products[:, 1, 1]), 1)
        floats.update(zip(places, columns.tolist(), strict=True))
        hashes.update(zip(places, hashed.tolist(), strict=True))
    return [floats[at] for at in range(len(summaries))], [hashes[at] for at in range(len(summaries))]


def _together(parts: Sequence[Sequence[Tensor]]) -> Tensor:
    """Return the numbers of all tensors' parts, from their device at once."""
    return torch.stack([part for parts_of_kind in parts for part in parts_of_kind]).cpu()


def _square(values: Tensor) -> Tensor:
    """Return the squared norm; on the CPU by a dot product, which takes half as long."""
    flat = values.reshape(-1)
    square: Tensor = flat.dot(flat) if values.device.type == "cpu" else torch.linalg.vector_norm(flat).square()
    return square


def _bits(matrix: Tensor) -> Tensor:
    """Return the sum of the elements' bits modulo 2³²."""
    whole = matrix.view(_BITS[matrix.element_size()])
    if whole.element_size() <= _HASH.itemsize:
        return whole.sum(dtype=_HASH)
    return whole.sum().to(_HASH)
