"""Summaries of tensors: a few numbers, computed where the tensor is, by which two runs can be compared.

All are the same for the same bits on one machine. The hash is a sum of the elements' bits as whole numbers, so it does
not depend on the order of elements, while the projection does: the same hash with another projection is the same values
in another order. Norms (as squares), means (as sums) and hashes of the parts of a tensor add up to those of the whole.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
FLOATS = ("norm", "mean", "min", "max", "projection")
"""What `Summary.floats` holds, in this order."""


class Summary(NamedTuple):
    """The summary of one tensor, on its device."""

    floats: Tensor
    """Float64 of shape (5,): see `FLOATS`."""
    hash: Tensor
    """Int64 of no dims: the sum of the elements' bits, each read as a signed whole number of their size, modulo 2⁶⁴."""


class Projections:
    """Seeded random vectors, made once per length and device."""

    def __init__(self) -> None:
        self._vectors: dict[tuple[int, torch.device, torch.dtype], Tensor] = {}

    def vector(self, length: int, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Return the vector of that length: the same one in every process."""
        key = length, device, dtype
        vector = self._vectors.get(key)
        if vector is None:
            generator = torch.Generator().manual_seed(length)
            vector = torch.randn(length, generator=generator, dtype=torch.float64).to(device, dtype)
            self._vectors[key] = vector
        return vector


def summarize(tensor: Tensor, projections: Projections) -> Summary:
    """Return the summary of a floating-point tensor with elements, without waiting for its device.

    Args:
        tensor: no DTensor. Dtypes below float32 are converted to it.
        projections: for the projection: of the columns of the last dim, and of all others as rows.
    """
    with torch.no_grad(), torch.autocast(tensor.device.type, enabled=False):
        matrix = tensor.detach().reshape(-1, tensor.shape[-1] if tensor.dim() else 1)
        bits = matrix.view(_BITS[matrix.element_size()]).sum(dtype=torch.int64)
        if matrix.dtype not in (torch.float32, torch.float64):
            matrix = matrix.float()
        rows, columns = (projections.vector(size, matrix.device, matrix.dtype) for size in matrix.shape)
        low, high = torch.aminmax(matrix)
        norm = torch.linalg.vector_norm(matrix)
        floats = torch.stack((norm, matrix.mean(), low, high, rows @ (matrix @ columns)))
        return Summary(floats.double(), bits)
