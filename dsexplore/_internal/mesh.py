"""`Mesh`: ranks on named axes, parsed from text (``dp=2,tp=4``), a mapping, or torch's ``DeviceMesh``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from torch.distributed.device_mesh import DeviceMesh

from dsexplore._internal.errors import UsageError
from dsexplore._internal.torch_internals.dispatch import without_modes

MeshLike: TypeAlias = "str | Mapping[str, int] | DeviceMesh"
"""Axes of a mesh, outermost first: ``"dp=2,tp=4"``, a mapping, or a device mesh."""
Numbers = npt.NDArray[np.int64]
_EXAMPLE = "write it like 'dp=2,tp=4'"


@dataclass(frozen=True, eq=False)
class Mesh:
    """A mesh of ranks with named axes, outermost first; a mesh without axes has one rank."""

    axes: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    ranks: Numbers | None = None
    """Array of ranks by coordinates; None if ranks are numbered from 0 in row-major order."""

    @property
    def size(self) -> int:
        """Number of ranks."""
        return math.prod(self.shape)

    def rank(self, coordinates: Sequence[int]) -> int:
        """Return the rank at given coordinates, one for each axis."""
        if self.ranks is not None:
            return int(self.ranks[tuple(coordinates)])
        return int(np.ravel_multi_index(tuple(coordinates), self.shape)) if self.shape else 0

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """Return the coordinates of a rank.

        Raises:
            UsageError: the rank is not on the mesh.
        """
        if self.ranks is not None:
            positions = np.argwhere(self.ranks == rank)
            if len(positions):
                return tuple(map(int, positions[0]))
        elif isinstance(rank, int) and 0 <= rank < self.size:
            return tuple(map(int, np.unravel_index(rank, self.shape))) if self.shape else ()
        valid = "its ranks" if self.ranks is not None else f"ranks 0 to {self.size - 1}"
        raise UsageError(f"rank {rank!r} is not on the mesh {self or 'of one rank'}: give one of {valid}")

    def block(self, starts: Sequence[int], lengths: Sequence[int]) -> Numbers:
        """Return the ranks of a block of the mesh, in mesh order.

        Args:
            starts: first coordinate of the block on each axis.
            lengths: number of coordinates on each axis.
        """
        indices = tuple(np.arange(start, start + length) for start, length in zip(starts, lengths, strict=True))
        if not indices:
            return np.zeros(1, dtype=np.int64)
        grid = np.ix_(*indices)
        numbers = self.ranks[grid] if self.ranks is not None else np.ravel_multi_index(grid, self.shape)
        return np.asarray(numbers, dtype=np.int64).ravel()

    def __str__(self) -> str:
        return ",".join(f"{axis}={size}" for axis, size in zip(self.axes, self.shape, strict=True))


def parse_mesh(mesh: MeshLike | Mesh | None) -> Mesh:
    """Parse ``"dp=2,tp=4"``, ``{"dp": 2, "tp": 4}`` or a device mesh; None or empty gives a mesh without axes.

    Raises:
        UsageError: an axis has no name or no size, a size is below 1, or two axes have the same name.
    """
    if isinstance(mesh, Mesh):
        return mesh
    if isinstance(mesh, DeviceMesh):
        return Mesh(axis_names(mesh), tuple(mesh.shape), device_ranks(mesh))
    if not mesh:
        return Mesh()
    if not isinstance(mesh, (str, Mapping)):
        raise UsageError(f"mesh {mesh!r} is not a mesh: {_EXAMPLE}")
    pairs = list(mesh.items()) if isinstance(mesh, Mapping) else [_axis(part, mesh) for part in mesh.split(",")]
    axes = tuple(name for name, _ in pairs)
    for name, size in pairs:
        if not str(name).isidentifier():
            raise UsageError(f"mesh {mesh!r}: {name!r} is not a name for an axis: {_EXAMPLE}")
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise UsageError(f"mesh {mesh!r}: axis {name} has {size!r} ranks, not 1 or more: {_EXAMPLE}")
        if axes.count(name) > 1:
            raise UsageError(f"mesh {mesh!r} names axis {name} twice: give each axis its own name")
    return Mesh(axes, tuple(size for _, size in pairs))


def _axis(part: str, mesh: str) -> tuple[str, int]:
    name, equals, size = part.partition("=")
    if not equals or not size.strip().removeprefix("-").isdecimal():
        raise UsageError(f"mesh {mesh!r}: {part.strip()!r} is not AXIS=RANKS: {_EXAMPLE}")
    return name.strip(), int(size)


def device_ranks(mesh: DeviceMesh) -> Numbers:
    """Return the ranks of torch's ``DeviceMesh`` by coordinates, also in a fake tensor mode."""
    with without_modes():
        return np.array(mesh.mesh.tolist(), dtype=np.int64)


def mesh_text(mesh: DeviceMesh) -> str:
    """Return a device mesh as text, ``"dp=2,tp=4"``; axes without a name are ``dim_0``, ``dim_1``, …"""
    names = axis_names(mesh)
    return ",".join(f"{name}={size}" for name, size in zip(names, mesh.shape, strict=True))


def axis_names(mesh: DeviceMesh) -> tuple[str, ...]:
    """Return the names of a device mesh's axes; ``dim_0``, ``dim_1``, … if it has none."""
    return mesh.mesh_dim_names or tuple(f"dim_{i}" for i in range(mesh.ndim))
