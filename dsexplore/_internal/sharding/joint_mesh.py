"""Join the meshes of several tensors into one.

A model's parameters may be on meshes that share their ranks: norm weights on ``dp``, projections on ``dp, tp``, experts
on ``ep``. `join` returns one mesh with axes fine enough for all of them, and for each tensor the map from coordinates
on the joint mesh to those on its own mesh.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from dsexplore._internal.errors import UsageError
from dsexplore._internal.mesh import Mesh, Numbers, axis_names, device_ranks, mesh_text, parse_mesh
from dsexplore._internal.torch_internals.dtensor import root_mesh


class Term(NamedTuple):
    """A summand of `Reading`: ``coordinate[axis] // divisor % modulus * weight``."""

    axis: int
    """Number of the axis on the joint mesh."""
    divisor: int
    modulus: int
    weight: int


@dataclass(frozen=True, slots=True)
class Reading:
    """Map from coordinates on the joint mesh to the coordinate on one axis of a tensor's mesh.

    The coordinate is the sum over ``terms``. Worked example: on ``dp=2,tp=4`` a flattened axis of 8 is ``dp × 4 + tp``,
    which has the terms (axis 0, divisor 1, modulus 2, weight 4) and (axis 1, divisor 1, modulus 4, weight 1).
    """

    name: str
    """Name of the tensor's axis."""
    size: int
    """Size of the tensor's axis."""
    terms: tuple[Term, ...]

    def __call__(self, coordinates: Sequence[Any]) -> Any:
        """Return the coordinate on the tensor's axis, for numbers or for arrays that broadcast."""
        return sum(coordinates[term.axis] // term.divisor % term.modulus * term.weight for term in self.terms)


def plain_readings(mesh: Mesh) -> tuple[Reading, ...]:
    """Return the readings of a tensor that is on the joint mesh itself, whose coordinates are the same."""
    return tuple(
        Reading(name, size, (Term(axis, divisor=1, modulus=size, weight=1),))
        for axis, (name, size) in enumerate(zip(mesh.axes, mesh.shape, strict=True))
    )


@dataclass(frozen=True, slots=True)
class _Axis:
    """A mesh axis as size and stride, in positions of the root mesh's order of ranks."""

    name: str
    size: int
    stride: int
    """Distance in positions from one coordinate to the next."""

    @property
    def end(self) -> int:
        """Number of positions over which the axis repeats."""
        return self.stride * self.size

    def covers(self, other: _Axis) -> bool:
        """Return True if the other axis is a part of this one."""
        return self.stride <= other.stride and other.end <= self.end


def join(meshes: Sequence[Any]) -> tuple[Mesh, list[tuple[Reading, ...]]]:
    """Return the joint mesh of several ``DeviceMesh``, and for each of them the readings of its axes.

    Ranks on axes that none of the meshes has, such as other pipeline stages, are omitted: it is unknown what they hold.

    Args:
        meshes: at least one ``DeviceMesh``; all of them contain this process's rank.

    Raises:
        UsageError: the ranks of a mesh do not form a regular grid, so that the ranks of other copies are unknown.
    """
    distinct = list(dict.fromkeys(meshes))
    joint, readings = _join(distinct)
    readings_of = dict(zip(distinct, readings, strict=True))
    return joint, [readings_of[mesh] for mesh in meshes]


def _join(meshes: Sequence[Any]) -> tuple[Mesh, list[tuple[Reading, ...]]]:
    """Return the joint mesh and the readings of meshes that are all different, see `join`.

    Each mesh is a grid in the order of ranks. The strides and ends of all axes divide that order into the smallest
    parts that an axis needs, the atoms, which are the axes of the joint mesh.
    """
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
    """Return the axes of a mesh as sizes and strides in the order of ranks.

    Raises:
        UsageError: the ranks do not form a regular grid.
    """
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
    """Return the atoms with names of axes; ``"ep/4"`` is the part with stride 4 of an axis that another mesh splits."""
    named: list[_Axis] = []
    for atom in atoms:
        smallest = min((axis for axis in used if axis.covers(atom)), key=lambda axis: axis.size)
        is_used = smallest.name in [other.name for other in named]
        name = f"{smallest.name}/{atom.stride}" if smallest.size > atom.size or is_used else smallest.name
        named.append(_Axis(name, atom.size, atom.stride))
    return named


def _mesh_of(atoms: list[_Axis], order: Numbers, rank: int) -> Mesh:
    """Return the joint mesh of atoms that contains a rank."""
    position = int(np.flatnonzero(order == rank)[0])
    grid = np.full((1,) * len(atoms), position - sum(position // a.stride % a.size * a.stride for a in atoms))
    for number, atom in enumerate(atoms):
        grid = grid + atom.stride * np.arange(atom.size).reshape((-1,) + (1,) * (len(atoms) - number - 1))
    return Mesh(tuple(atom.name for atom in atoms), tuple(atom.size for atom in atoms), order[grid])


def _reading(axis: _Axis, atoms: list[_Axis]) -> Reading:
    """Return the map from coordinates on the atoms to the coordinate on an axis."""
    terms = [
        Term(number, divisor=1, modulus=atom.size, weight=atom.stride // axis.stride)
        for number, atom in enumerate(atoms)
        if axis.size > 1 and axis.covers(atom)
    ]
    return Reading(axis.name, axis.size, tuple(terms))


def _mesh_of_ranks(order: Numbers, grids: list[list[_Axis]]) -> tuple[Mesh, list[tuple[Reading, ...]]]:
    """Return a joint mesh of one axis over all ranks, for grids without a common refinement such as 2×3 and 3×2."""
    mesh = Mesh(("rank",), (len(order),), order)
    readings = []
    for grid in grids:
        terms = [Term(0, divisor=axis.stride, modulus=axis.size, weight=1) for axis in grid]
        readings.append(tuple(Reading(axis.name, axis.size, (term,)) for axis, term in zip(grid, terms, strict=True)))
    return mesh, readings
