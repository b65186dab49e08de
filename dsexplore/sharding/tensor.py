"""`Placed`: one tensor on a mesh. Shape, dtype and placements; never a value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dsexplore.errors import UsageError
from dsexplore.sharding.chunks import Cut, Range, held_ranges, part_size
from dsexplore.sharding.joint_mesh import Reading
from dsexplore.sharding.placement import Placement


@dataclass(frozen=True)
class Placed:
    """A tensor, and what each axis of its mesh does to it."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    placements: tuple[Placement, ...]
    """One per axis of the tensor's own mesh; none for a plain tensor, of which every rank has its own copy."""
    axes: tuple[Reading, ...]
    """For each of them, how the coordinate on it is read off those on the shown mesh."""
    requires_grad: bool = True
    also: tuple[str, ...] = ()
    """Further names of the same tensor."""

    @property
    def numel(self) -> int:
        """Elements of the whole tensor."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return self.numel * self.dtype.itemsize

    @property
    def copies(self) -> int:
        """How many ranks of the tensor's own mesh hold the same part."""
        kinds = zip(self.placements, self.axes, strict=True)
        return math.prod(axis.size for placement, axis in kinds if placement.kind == "replicate")

    def cuts(self, dim: int) -> list[tuple[Cut, Reading]]:
        """The axes that cut a dim, in the order in which they do."""
        return [
            (Cut(axis.size, placement.pieces), axis)
            for placement, axis in zip(self.placements, self.axes, strict=True)
            if placement.cuts and placement.dim == dim
        ]

    def cut_dims(self) -> list[int]:
        """Dims that some axis cuts, in order."""
        return sorted({placement.dim for placement in self.placements if placement.cuts})

    def dim_size(self, dim: int, coordinates: Sequence[Any]) -> Any:
        """Indices of a dim on the rank at those coordinates; also for arrays of coordinates that broadcast."""
        size: Any = self.shape[dim]
        for cut, axis in self.cuts(dim):
            size = part_size(size, cut, axis(coordinates))
        return size

    def local_shape(self, coordinates: Sequence[int]) -> tuple[int, ...]:
        """The shape of what the rank at those coordinates holds."""
        return tuple(int(self.dim_size(dim, coordinates)) for dim in range(len(self.shape)))

    def dim_ranges(self, dim: int, coordinates: Sequence[int]) -> list[Range]:
        """The indices of a dim that the rank at those coordinates holds."""
        cuts = self.cuts(dim)
        return held_ranges(self.shape[dim], [cut for cut, _ in cuts], [int(axis(coordinates)) for _, axis in cuts])

    def ranges(self, coordinates: Sequence[int]) -> tuple[list[Range], ...]:
        """The indices of each dim that the rank at those coordinates holds."""
        return tuple(self.dim_ranges(dim, coordinates) for dim in range(len(self.shape)))


def fit(
    placements: Sequence[Placement], shape: tuple[int, ...], axes: Sequence[str], what: str
) -> tuple[Placement, ...]:
    """The placements with dims counted from 0, if they fit the shape and the mesh.

    Raises:
        UsageError: not one placement per axis, or a dim that the tensor does not have.
    """
    listed = ", ".join(map(str, placements)) or "none"
    if len(placements) != len(axes):
        raise UsageError(
            f"{what}: {len(placements)} placement{'s' if len(placements) != 1 else ''} ({listed}) for {len(axes)} mesh "
            f"ax{'es' if len(axes) != 1 else 'is'} ({', '.join(axes)}): give one per axis in mesh order, Replicate() "
            "for an axis that does not cut the tensor"
        )
    fitted = []
    for placement, axis in zip(placements, axes, strict=True):
        if not placement.cuts:
            fitted.append(placement)
            continue
        if not -len(shape) <= placement.dim < len(shape):
            dims = "no dims: it can be replicated, not cut" if not shape else f"dims 0 to {len(shape) - 1}"
            raise UsageError(f"{what}: {placement} on axis {axis}, but a tensor of shape {shape} has {dims}")
        fitted.append(Placement(placement.kind, placement.dim % len(shape), placement.pieces))
    return tuple(fitted)
