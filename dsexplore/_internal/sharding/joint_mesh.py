"""One mesh for tensors on several meshes.

A model's parameters may be on meshes that share their ranks: norm weights on ``dp``, projections on ``dp, tp``, experts
on ``ep``. `join` returns one mesh whose axes are fine enough for all of them, and for each tensor how the coordinates
on its own mesh follow from those on the joint one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from dsexplore._internal.errors import UsageError
from dsexplore._internal.mesh import Mesh, Numbers, axis_names, device_ranks, mesh_text, parse_mesh
from dsexplore._internal.torch_internals.dtensor import root_mesh


@dataclass(frozen=True, slots=True)
class Reading:
    """Map from coordinates on the joint mesh to the coordinate on one axis of a tensor's mesh.

    The coordinate is the sum of ``coordinate[axis] // divisor % modulus * weight`` over ``terms``, each (axis,
    divisor, modulus, weight). Worked example: on ``dp=2,tp=4`` a flattened axis of 8 is ``dp × 4 + tp``, which has
    the terms ``((0, 1, 2, 4), (1, 1, 4, 1))``.
    """

    name: str
    size: int
    terms: tuple[tuple[int, int, int, int], ...]

    def __call__(self, coordinates: Sequence[Any]) -> Any:
        """Return the coordinate on the tensor's axis, for numbers or for arrays that broadcast."""
        return sum(coordinates[axis] // divisor % modulus * weight for axis, divisor, modulus, weight in self.terms)


def plain_readings(mesh: Mesh) -> tuple[Reading, ...]:
    """Return the coordinates of a tensor that lies on the joint mesh itself."""
    pairs = zip(mesh.axes, mesh.shape, strict=True)
    return tuple(Reading(name, size, ((axis, 1, size, 1),)) for axis, (name, size) in enumerate(pairs))


@dataclass(frozen=True, slots=True)
class _Axis:
    """A mesh axis as size and stride, in positions of the root mesh's order of ranks."""

    name: str
    size: int
    stride: int
    """Distance in positions from one coordinate to the next."""

    @property
    def end(self) -> int:
        return self.stride * self.size

    def covers(self, other: _Axis) -> bool:
        return self.stride <= other.stride and other.end <= self.end


def join(meshes: Sequence[Any]) -> tuple[Mesh, list[tuple[Reading, ...]]]:
    """Return the joint mesh of several ``DeviceMesh``, and for each of them the readings of its axes.

    Ranks on axes that none of the meshes has (other pipeline stages, say) are omitted: what they hold is unknown.

    Args:
        meshes: at least one ``DeviceMesh``; all of them contain this process's rank.

    Raises:
        UsageError: the ranks of a mesh form no regular grid, so the ranks of the other copies are unknown.
    """
    distinct = list(dict.fromkeys(meshes))
    shown, readings = _join(distinct)
    readings_of = dict(zip(distinct, readings, strict=True))
    return shown, [readings_of[mesh] for mesh in meshes]


def _join(meshes: Sequence[Any]) -> tuple[Mesh, list[tuple[Reading, ...]]]:
    if len(meshes) == 1:
        only = parse_mesh(meshes[0])
        return only, [plain_readings(only)]
    order = _common_order(meshes)
    grids = [_axes_of(mesh, order) for mesh in meshes]
    used = [axis for grid in grids for axis in grid if axis.size > 1]
    ends = sorted({1}.union(*({axis.stride, axis.end} for axis in used)))
    if any(outer % inner for inner, outer in pairwise(ends)):
        return _mesh_of_ranks(order, grids)
    atoms = [_Axis("", outer // inner, inner) for inner, outer in pairwise(ends)]
    atoms = [atom for atom in reversed(atoms) if any(axis.covers(atom) for axis in used)]
    atoms = _named(atoms, used) or [_Axis("rank", 1, 1)]
    first_rank = int(device_ranks(meshes[0]).flat[0])
    return _mesh_of(atoms, order, first_rank), [tuple(_reading(axis, atoms) for axis in grid) for grid in grids]


def _common_order(meshes: Sequence[Any]) -> Numbers:
    """Return the ranks in the order of the meshes' common root mesh; ascending if there is none."""
    roots = list(map(root_mesh, meshes))
    if all(root == roots[0] for root in roots):
        return device_ranks(roots[0]).ravel()
    return np.arange(max(int(device_ranks(root).max()) for root in roots) + 1)


def _axes_of(mesh: Any, order: Numbers) -> list[_Axis]:
    positions = np.zeros(int(order.max()) + 1, dtype=np.int64)
    positions[order] = np.arange(len(order))
    grid = positions[device_ranks(mesh)]
    origin = (0,) * grid.ndim
    axes, regular = [], np.full_like(grid, grid[origin])
    for number, (name, size) in enumerate(zip(axis_names(mesh), grid.shape, strict=True)):
        step = tuple(int(other == number) for other in range(grid.ndim))
        stride = int(grid[step] - grid[origin]) if size > 1 else 1
        along = (-1,) + (1,) * (grid.ndim - number - 1)
        regular = regular + stride * np.arange(size).reshape(along)
        axes.append(_Axis(str(name), size, stride))
    if not np.array_equal(regular, grid) or any(axis.stride < 1 for axis in axes):
        raise UsageError(
            f"the ranks of mesh {mesh_text(mesh)} form no regular grid on those of the model's other meshes: "
            "show the tensors of one mesh at a time"
        )
    return axes


def _named(atoms: list[_Axis], used: list[_Axis]) -> list[_Axis]:
    """Return the atoms named after axes; ``"ep/4"`` is a part, of stride 4, of an axis that another mesh splits."""
    named: list[_Axis] = []
    for atom in atoms:
        smallest = min((axis for axis in used if axis.covers(atom)), key=lambda axis: axis.size)
        is_used = smallest.name in [other.name for other in named]
        name = f"{smallest.name}/{atom.stride}" if smallest.size > atom.size or is_used else smallest.name
        named.append(_Axis(name, atom.size, atom.stride))
    return named


def _mesh_of(atoms: list[_Axis], order: Numbers, rank: int) -> Mesh:
    position = int(np.flatnonzero(order == rank)[0])
    grid = np.full((1,) * len(atoms), position - sum(position // a.stride % a.size * a.stride for a in atoms))
    for number, atom in enumerate(atoms):
        grid = grid + atom.stride * np.arange(atom.size).reshape((-1,) + (1,) * (len(atoms) - number - 1))
    return Mesh(tuple(atom.name for atom in atoms), tuple(atom.size for atom in atoms), order[grid])


def _reading(axis: _Axis, atoms: list[_Axis]) -> Reading:
    terms = [(i, 1, a.size, a.stride // axis.stride) for i, a in enumerate(atoms) if axis.size > 1 and axis.covers(a)]
    return Reading(axis.name, axis.size, tuple(terms))


def _mesh_of_ranks(order: Numbers, grids: list[list[_Axis]]) -> tuple[Mesh, list[tuple[Reading, ...]]]:
    """Return a joint mesh of one axis over all ranks, for grids without a common refinement such as 2×3 and 3×2."""
    mesh = Mesh(("rank",), (len(order),), order)
    return mesh, [tuple(Reading(a.name, a.size, ((0, a.stride, a.size, 1),)) for a in grid) for grid in grids]
