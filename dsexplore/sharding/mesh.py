"""`Mesh`: ranks and their coordinates on named axes, with or without a process group."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dsexplore.errors import UsageError
from dsexplore.mesh_text import axis_names, parse_mesh
from dsexplore.torch_internals.dispatch import without_modes

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Mesh:
    """A mesh of ranks with named axes, outermost first; a mesh without axes has one rank."""

    axes: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    ranks: Numbers | None = None
    """Ranks by coordinates; None if ranks are numbered from 0 in row-major order."""

    @property
    def size(self) -> int:
        """Number of ranks."""
        return math.prod(self.shape)

    def rank(self, coordinates: Sequence[int]) -> int:
        """Return the rank at those coordinates."""
        if self.ranks is not None:
            return int(self.ranks[tuple(coordinates)])
        return int(np.ravel_multi_index(tuple(coordinates), self.shape)) if self.shape else 0

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """Return the coordinates of a rank.

        Raises:
            UsageError: the rank is not on the mesh.
        """
        if self.ranks is not None:
            found = np.argwhere(self.ranks == rank)
            if len(found):
                return tuple(map(int, found[0]))
        elif isinstance(rank, int) and 0 <= rank < self.size:
            return tuple(map(int, np.unravel_index(rank, self.shape))) if self.shape else ()
        known = "its ranks" if self.ranks is not None else f"ranks 0 to {self.size - 1}"
        raise UsageError(f"rank {rank!r} is not on the mesh {self or 'of one rank'}: give one of {known}")

    def block(self, starts: Sequence[int], lengths: Sequence[int]) -> Numbers:
        """Return all ranks of a block of coordinates, in mesh order."""
        at = tuple(np.arange(start, start + length) for start, length in zip(starts, lengths, strict=True))
        if not at:
            return np.zeros(1, dtype=np.int64)
        grid = np.ix_(*at)
        numbers = self.ranks[grid] if self.ranks is not None else np.ravel_multi_index(grid, self.shape)
        return np.asarray(numbers, dtype=np.int64).ravel()

    def __str__(self) -> str:
        return ",".join(f"{axis}={size}" for axis, size in zip(self.axes, self.shape, strict=True))


def read_mesh(mesh: Any) -> Mesh:
    """Read a mesh from ``"dp=2,tp=4"``, a mapping, or torch's ``DeviceMesh``.

    Raises:
        UsageError: an object of another type, or text that names no mesh.
    """
    if isinstance(mesh, Mesh):
        return mesh
    if mesh is None or isinstance(mesh, (str, Mapping)):
        spec = parse_mesh(mesh)
        if not spec.axes:
            raise UsageError("a plan on paper needs a mesh: write mesh='dp=2,tp=4', or give a DeviceMesh")
        return Mesh(spec.axes, spec.shape)
    if _is_device_mesh(mesh):
        return Mesh(tuple(axis_names(mesh)), tuple(mesh.shape), device_ranks(mesh))
    raise UsageError(f"mesh {mesh!r} is no mesh: write 'dp=2,tp=4', or give a mapping or a DeviceMesh")


def device_ranks(mesh: Any) -> Numbers:
    """Return the ranks of torch's ``DeviceMesh`` by coordinates, also in a fake mode."""
    with without_modes():
        return np.array(mesh.mesh.tolist(), dtype=np.int64)


def _is_device_mesh(mesh: Any) -> bool:
    return hasattr(mesh, "mesh_dim_names") and hasattr(mesh, "mesh")
