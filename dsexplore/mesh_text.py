"""Meshes as text, ``dp=2,tp=4``: parse what users write, and format torch's meshes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from torch.distributed.device_mesh import DeviceMesh

from dsexplore.errors import UsageError

Mesh: TypeAlias = "str | Mapping[str, int] | DeviceMesh"
"""The axes of a mesh, outermost first: ``"dp=2,tp=4"``, a mapping, or a device mesh."""
_EXAMPLE = "write it like 'dp=2,tp=4'"


@dataclass(frozen=True)
class MeshSpec:
    """Names and sizes of mesh axes, outermost first; without axes if the user named none."""

    axes: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Number of ranks of the mesh: the product of its axes."""
        return math.prod(self.shape)

    def __str__(self) -> str:
        return ",".join(f"{axis}={size}" for axis, size in zip(self.axes, self.shape, strict=True))


def parse_mesh(mesh: Mesh | None) -> MeshSpec:
    """Parse ``"dp=2,tp=4"``, ``{"dp": 2, "tp": 4}`` or a device mesh; None or empty gives a mesh without axes.

    Raises:
        UsageError: an axis without a name or a size, a size below 1, a name used twice.
    """
    if mesh is None or (not isinstance(mesh, DeviceMesh) and not mesh):
        return MeshSpec()
    if isinstance(mesh, DeviceMesh):
        return MeshSpec(axis_names(mesh), tuple(mesh.shape))
    if not isinstance(mesh, (str, Mapping)):
        raise UsageError(f"mesh {mesh!r} is no mesh: {_EXAMPLE}")
    pairs = list(mesh.items()) if isinstance(mesh, Mapping) else [_axis(part, mesh) for part in mesh.split(",")]
    axes = tuple(name for name, _ in pairs)
    for name, size in pairs:
        if not str(name).isidentifier():
            raise UsageError(f"mesh {mesh!r}: {name!r} is not a name for an axis: {_EXAMPLE}")
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise UsageError(f"mesh {mesh!r}: axis {name} has {size!r} ranks, not 1 or more: {_EXAMPLE}")
        if axes.count(name) > 1:
            raise UsageError(f"mesh {mesh!r} names axis {name} twice: give each axis a name of its own")
    return MeshSpec(axes, tuple(size for _, size in pairs))


def _axis(part: str, mesh: str) -> tuple[str, int]:
    name, equals, size = part.partition("=")
    if not equals or not size.strip().removeprefix("-").isdecimal():
        raise UsageError(f"mesh {mesh!r}: {part.strip()!r} is not AXIS=RANKS: {_EXAMPLE}")
    return name.strip(), int(size)


def mesh_text(mesh: DeviceMesh) -> str:
    """Return a device mesh as text, ``"dp=2,tp=4"``; axes without a name are ``dim_0``, ``dim_1``, …"""
    names = axis_names(mesh)
    return ",".join(f"{name}={size}" for name, size in zip(names, mesh.shape, strict=True))


def axis_names(mesh: DeviceMesh) -> tuple[str, ...]:
    """Return the names of a device mesh's axes; ``dim_0``, ``dim_1``, … if it has none."""
    return mesh.mesh_dim_names or tuple(f"dim_{i}" for i in range(mesh.ndim))
