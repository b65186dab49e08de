"""Summarizes a tensor by a few numbers, computed on its device, by which two runs can be compared.

Equal bits give equal summaries on one machine. The hash is the sum of the elements' bits as integers, so it does not
depend on the order of elements. The projection does: an equal hash with a different projection means the same values in
another order. Squared norms, sums and hashes of the shards of a tensor add up to those of the whole tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_HASH = torch.int32
"""The dtype of sums of bits. On the CPU, int64 takes nine times as long for a float32 tensor."""
FLOATS = ("norm", "mean", "min", "max", "projection")
"""The numbers that `read` returns for each tensor, in order."""


AT_ONCE = 3 << 16
"""Number of elements of a CPU tensor that are summarized at once; they stay in a core's cache for all four passes."""


class Summary(NamedTuple):
    """The summary of one tensor, on its device and in parts; `read` turns many summaries into numbers at once."""

    squares: list[Tensor]
    """Squared norm of each part of the tensor, a scalar tensor."""
    lows: list[Tensor]
    """Smallest value of each part."""
    highs: list[Tensor]
    """Largest value of each part."""
    bits: list[Tensor]
    """Sum modulo 2³² of the bits of each part's elements, as signed integers; int32 scalars."""
    products: Tensor
    """Shape (2, 2): a row of ones and a random row, times the tensor, times a column of ones and a random column."""
    elements: int
    """Number of elements of the whole tensor."""


class Projections:
    """Seeded random vectors, made once per length, device and dtype, each together with a vector of ones."""

    def __init__(self) -> None:
        self._vectors: dict[tuple[int, torch.device, torch.dtype], Tensor] = {}

    def ones_and_random(self, length: int, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Return a matrix of shape (2, length), ones and random numbers; the same in every process."""
        key = length, device, dtype
        vectors = self._vectors.get(key)
        if vectors is None:
            generator = torch.Generator().manual_seed(length)
            drawn = torch.randn(length, generator=generator, dtype=torch.float64)
            vectors = torch.stack((torch.ones_like(drawn), drawn)).to(device, dtype)
            self._vectors[key] = vectors
        return vectors


def summarize(tensor: Tensor, projections: Projections) -> Summary:
    """Return the summary of a tensor, without waiting for its device.

    The tensor is read once each for the hash, the norm and the smallest and largest value, and by a matrix product for
    the sum and the projection. A CPU tensor is read part by part, so that each part is loaded from memory once.

    Args:
        tensor: a floating-point tensor with elements, no DTensor. Smaller dtypes are converted to float32.
        projections: the random vectors of the projection, one for the last dim and one for all other dims.
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
    """Return (`FLOATS` of each summary, hash of each summary); waits for their devices, once for each.

    Args:
        summaries: summaries of tensors of any dtypes and devices.
    """
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for index, summary in enumerate(summaries):
        groups.setdefault((summary.products.device, summary.products.dtype), []).append(index)
    floats: dict[int, list[float]] = {}
    hashes: dict[int, int] = {}
    for indices in groups.values():
        chosen = [summaries[index] for index in indices]
        owner = torch.tensor([index for index, summary in enumerate(chosen) for _ in summary.squares])
        zeros = torch.zeros(len(chosen), dtype=torch.float64)
        squares = _together([summary.squares for summary in chosen]).double()
        lows = _together([summary.lows for summary in chosen]).double()
        highs = _together([summary.highs for summary in chosen]).double()
        norm = zeros.index_add(0, owner, squares).sqrt()
        low = zeros.scatter_reduce(0, owner, lows, "amin", include_self=False)
        high = zeros.scatter_reduce(0, owner, highs, "amax", include_self=False)
        bits = _together([summary.bits for summary in chosen])
        hashed = torch.zeros(len(chosen), dtype=_HASH).index_add(0, owner, bits)
        counts = torch.tensor([summary.elements for summary in chosen], dtype=torch.float64)
        products = torch.stack([summary.products for summary in chosen]).cpu().double()
        columns = torch.stack((norm, products[:, 0, 0] / counts, low, high, products[:, 1, 1]), 1)
        floats.update(zip(indices, columns.tolist(), strict=True))
        hashes.update(zip(indices, hashed.tolist(), strict=True))
    return [floats[index] for index in range(len(summaries))], [hashes[index] for index in range(len(summaries))]


def _together(numbers: Sequence[Sequence[Tensor]]) -> Tensor:
    """Return the scalars of all tensors' parts as one CPU tensor, copied from their device at once."""
    return torch.stack(list(chain.from_iterable(numbers))).cpu()


def _square(values: Tensor) -> Tensor:
    """Return the squared norm of a tensor; on the CPU by a dot product, which takes half as long."""
    flat = values.reshape(-1)
    square: Tensor = flat.dot(flat) if values.device.type == "cpu" else torch.linalg.vector_norm(flat).square()
    return square


def _bits(matrix: Tensor) -> Tensor:
    """Return the sum of the elements' bits modulo 2³²."""
    integers = matrix.view(_BITS[matrix.element_size()])
    if integers.element_size() <= _HASH.itemsize:
        return integers.sum(dtype=_HASH)
    return integers.sum().to(_HASH)
