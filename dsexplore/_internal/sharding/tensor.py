"""`PlacedTensor`: one tensor on a mesh, as shape, dtype and placements, without values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dsexplore._internal.errors import UsageError
from dsexplore._internal.placement_text import Placement
from dsexplore._internal.sharding.chunks import Cut, Range, held_ranges, part_size
from dsexplore._internal.sharding.joint_mesh import Reading
from dsexplore._internal.units import format_count


@dataclass(frozen=True)
class PlacedTensor:
    """A tensor with the placement of each axis of its mesh."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    placements: tuple[Placement, ...]
    """Placements, one per axis of the tensor's own mesh; empty for a plain tensor, which every rank holds whole."""
    axes: tuple[Reading, ...]
    """Axes of the tensor's own mesh, each with the map from coordinates on the shown mesh to its own."""
    requires_grad: bool = True
    also: tuple[str, ...] = ()
    """Other names of the same tensor."""

    @property
    def numel(self) -> int:
        """Number of elements of the whole tensor."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size of the whole tensor in bytes."""
        return self.numel * self.dtype.itemsize

    @property
    def copies(self) -> int:
        """Number of ranks of the tensor's own mesh that hold the same shard."""
        kinds = zip(self.placements, self.axes, strict=True)
        return math.prod(axis.size for placement, axis in kinds if placement.kind == "replicate")

    def cuts(self, dim: int) -> list[tuple[Cut, Reading]]:
        """Return the axes that split a dim, in mesh order, each with its cut."""
        return [
            (Cut(axis.size, placement.pieces), axis)
            for placement, axis in zip(self.placements, self.axes, strict=True)
            if placement.cuts and placement.dim == dim
        ]

    def cut_dims(self) -> list[int]:
        """Return the dims that some axis splits, ascending."""
        return sorted({placement.dim for placement in self.placements if placement.cuts})

    def dim_size(self, dim: int, coordinates: Sequence[Any]) -> Any:
        """Return the number of indices of a dim that ranks hold; coordinates are numbers, or arrays that broadcast."""
        size: Any = self.shape[dim]
        for cut, axis in self.cuts(dim):
            size = part_size(size, cut, axis(coordinates))
        return size

    def local_shape(self, coordinates: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the local tensor on the rank at these coordinates."""
        return tuple(int(self.dim_size(dim, coordinates)) for dim in range(len(self.shape)))

    def dim_ranges(self, dim: int, coordinates: Sequence[int]) -> list[Range]:
        """Return the indices of a dim that the rank at these coordinates holds."""
        cuts = self.cuts(dim)
        return held_ranges(self.shape[dim], [cut for cut, _ in cuts], [int(axis(coordinates)) for _, axis in cuts])

    def ranges(self, coordinates: Sequence[int]) -> tuple[list[Range], ...]:
        """Return the indices of each dim that the rank at these coordinates holds."""
        return tuple(self.dim_ranges(dim, coordinates) for dim in range(len(self.shape)))


def fit(
    placements: Sequence[Placement], shape: tuple[int, ...], axes: Sequence[str], what: str
) -> tuple[Placement, ...]:
    """Return the placements with negative dims resolved, after checking that they fit the shape and the mesh.

    Args:
        placements: placements of the tensor.
        shape: global shape of the tensor.
        axes: names of the axes of the mesh.
        what: name of the tensor, for errors.

    Raises:
        UsageError: there are more or fewer placements than axes, or a dim that the tensor does not have.
    """
    listed = ", ".join(map(str, placements)) or "none"
    if len(placements) != len(axes):
        raise UsageError(
            f"{what}: {format_count(len(placements), 'placement')} ({listed}) for {len(axes)} mesh "
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
