"""Describes process groups for a trace: size, ranks, backend, and the mesh axis that each group belongs to."""

from __future__ import annotations

import gc
import os
import re
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from dsexplore._internal.capture.collectives.plain_groups import axes_of_peers, axes_of_ranks, axis_of_description
from dsexplore._internal.capture.timing.work_timing import timing_of
from dsexplore._internal.errors import ClosedWorldError
from dsexplore._internal.mesh import axis_names, mesh_text
from dsexplore._internal.torch_internals.dtensor import GET_GROUP, group_names, group_of_mesh, root_mesh
from dsexplore._internal.torch_internals.patches import Entry, Parts, Patch, Patches, install_all
from dsexplore._internal.torch_internals.process_groups import backend_of, registered_groups, resolve_group
from dsexplore._internal.trace.schema import Timing

_DIM = re.compile(r"dim_\d+")
"""The name of an axis of a mesh without names."""


@dataclass(slots=True)
class Group:
    """One process group, described once."""

    name: str
    size: int
    ranks: tuple[int, ...]
    backend: str
    description: str
    axis: str = ""
    mesh: str = ""
    timing: Timing = "none"
    own_rank: int = 0
    """The global rank of this process."""
    met_axis: str = ""
    """The group's axis in a mesh with named axes when it was first used, as that mesh may be gone by the end."""
    met_mesh: str = ""
    """Text of the mesh of `met_axis`, ``"dp=2,tp=4"``."""
    axis_in_description: str = ""
    """The axis that its description names; empty if it names none."""
    axis_of_peer: Mapping[int, str] = field(default_factory=dict)
    """For a group along no axis: {global rank: the one mesh axis along which that rank differs from this one}."""
    error: str = ""
    """Why its backend gave it up, see `given_up_groups`; else empty."""


@dataclass
class Groups:
    """The process groups that recordings met, and the meshes whose axes name them."""

    _groups: dict[str, tuple[weakref.ref[Any], Group]] = field(default_factory=dict)
    """By name. Groups are not kept alive: a gloo group that is freed too late can abort the process at exit."""
    _by_identity: dict[int, tuple[weakref.ref[Any], Group]] = field(default_factory=dict)
    """The same by the identity of the process group, until recordings end."""
    _meshes: dict[int, DeviceMesh] = field(default_factory=dict)
    """{id of a mesh: the mesh}, for those of parameters and redistributes."""

    def find(self, handle: Any) -> Group:
        """Return the group of an op's argument: a name, a ``ProcessGroup``, or torch's boxed form of one."""
        process_group = resolve_group(handle) if isinstance(handle, str) else _unboxed(handle)
        entry = self._by_identity.get(id(process_group))
        if entry is None or entry[0]() is not process_group:
            entry = self._by_identity[id(process_group)] = weakref.ref(process_group), describe_group(process_group)
            self._groups[process_group.group_name] = entry
            if not entry[1].description.startswith("mesh_"):  # such a description names the axis
                _note_met_axis(entry[1], process_group)
        return entry[1]

    def find_among(self, args: Iterable[Any]) -> Group | None:
        """Return the first group among an op's arguments; None if there is none."""
        for arg in args:
            if isinstance(arg, (dist.ProcessGroup, torch.ScriptObject)):
                with suppress(RuntimeError):  # a Work, or another TorchScript object
                    return self.find(arg)
        return None

    def add_mesh(self, mesh: DeviceMesh) -> None:
        """Note the mesh of a parameter or redistribute, whose axes name its groups."""
        self._meshes[id(mesh)] = mesh

    def described(self) -> list[Group]:
        """Return all groups met so far, with their axes."""
        all_groups = list(self._groups.values())  # a copy, as other threads may add groups
        groups = [group for _, group in all_groups]
        meshes = [mesh for mesh in self._meshes.values() if _is_open(mesh)]
        self._name_axes(meshes)
        if any(not group.mesh for group in groups):
            meshes = _all_meshes()
            self._name_axes(meshes)
        for group in groups:
            if group.met_axis and (not group.axis or _DIM.fullmatch(group.axis)):
                group.axis, group.mesh = group.met_axis, group.met_mesh
        for group in groups:
            if not group.axis and group.description.startswith("mesh_"):
                group.axis = group.description.removeprefix("mesh_")
        for reference, group in all_groups:
            process_group = reference() if group.timing == "cuda" else None
            if process_group is not None:
                group.error = error_of(process_group)
        _name_parts(groups)
        _name_plain([group for group in groups if not group.axis or _DIM.fullmatch(group.axis)], meshes)
        return groups

    def _name_axes(self, meshes: Sequence[DeviceMesh]) -> None:
        """Name groups without an axis by the meshes that have them.

        Meshes of several axes come first: a group gets the name of its axis rather than that of a flattened mesh.
        Meshes with named axes come before others, whose axes are named ``dim_0``.
        """
        roots = {id(root): root for root in map(root_mesh, meshes)}  # of slices such as mesh["dp"]
        for mesh in sorted([*meshes, *roots.values()], key=lambda mesh: (-mesh.ndim, not mesh.mesh_dim_names)):
            for name, axis in mesh_groups(mesh):
                reference, group = self._groups.get(name, (None, None))
                if reference is None or group is None or group.axis:
                    continue
                process_group = reference()
                if process_group is not None and group_of_mesh(mesh, name) is process_group:
                    group.axis, group.mesh = axis, mesh_text(mesh)

    def release(self) -> None:
        """Drop all references to meshes; descriptions stay."""
        self._by_identity.clear()
        self._meshes.clear()


_axes_given: weakref.WeakKeyDictionary[dist.ProcessGroup, tuple[str, str]] = weakref.WeakKeyDictionary()
"""{group that a mesh with named axes returned to the program: (its axis, the mesh)}."""


def observe_meshes() -> Callable[[], None]:
    """Note the axis of each group that ``DeviceMesh.get_group`` returns; return a function that ends this."""
    patches = Patches()
    install_all(PATCHES, {"always"}, patches, Parts())
    return patches.undo


def _noting_axes(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    """Wrap ``DeviceMesh.get_group`` to note the axes of the mesh's groups."""

    @wraps(original)
    def get_group(mesh: DeviceMesh, *args: Any, **kwargs: Any) -> Any:
        group = original(mesh, *args, **kwargs)
        if group not in _axes_given:
            _note_axes(mesh)
        return group

    return get_group


PATCHES: tuple[Entry, ...] = (Patch(GET_GROUP, "a mesh may die before the group that it gave is used", _noting_axes),)
"""Functions that are replaced while meshes are observed."""


def _note_axes(mesh: DeviceMesh) -> None:
    """Note the axes of all groups of a mesh with named axes."""
    for name, axis in mesh_groups(mesh) if mesh.mesh_dim_names else ():
        process_group = group_of_mesh(mesh, name)
        if process_group is not None:
            _axes_given.setdefault(process_group, (axis, mesh_text(mesh)))


def _note_met_axis(group: Group, process_group: Any) -> None:
    """Set the axis of a group from the meshes with named axes that exist now."""
    group.met_axis, group.met_mesh = _axes_given.get(process_group, ("", ""))
    named = [mesh for mesh in _all_meshes() if mesh.mesh_dim_names]
    for mesh in sorted(named, key=lambda mesh: -mesh.ndim):
        for name, axis in mesh_groups(mesh):
            if name == group.name and group_of_mesh(mesh, name) is process_group:
                group.met_axis, group.met_mesh = axis, mesh_text(mesh)
                return


def _all_meshes() -> list[DeviceMesh]:
    """Return all meshes of the process.

    torch has no registry of meshes, so they are found as the referrers of their class. A list of all objects would
    include tuples that other threads are still building, which then fail with a ``SystemError``.
    """
    return [mesh for mesh in gc.get_referrers(DeviceMesh) if type(mesh) is DeviceMesh]


def _is_open(mesh: DeviceMesh) -> bool:
    """Return False for a mesh of a simulated world that was closed: all its methods raise."""
    try:
        return bool(mesh.ndim)
    except ClosedWorldError:
        return False


def _name_parts(groups: list[Group]) -> None:
    """Name groups of meshes without names by the named axis whose group contains them.

    FSDP creates such a group for ``reshard_after_forward=2``.
    """
    named = [group for group in groups if group.axis and not _DIM.fullmatch(group.axis)]
    for group in groups:
        if _DIM.fullmatch(group.axis):
            whole = next((other for other in named if set(group.ranks) < set(other.ranks)), None)
            if whole is not None:
                group.axis, group.mesh = whole.axis, whole.mesh


def _name_plain(groups: list[Group], meshes: Iterable[DeviceMesh]) -> None:
    """Name groups without a named axis by the axis in their description, or else by their ranks."""
    if not groups:
        return
    named = [along for mesh in meshes if mesh.mesh_dim_names and (along := _ranks_along(mesh))]
    axes = {axis for along in named for axis in along}
    for group in groups:
        described = group.description if group.description in axes else group.axis_in_description
        if described:
            group.axis = described
            continue
        matching = {name for along in named for name in axes_of_ranks(group.ranks, along, group.own_rank)}
        if len(matching) == 1:
            group.axis = matching.pop()
        if not group.axis:
            group.axis_of_peer = axes_of_peers(along for along in named if _contains_axes(group, along))


def _contains_axes(group: Group, along: Mapping[str, Sequence[int]]) -> bool:
    """Return True if a group contains this process's groups along all axes of a mesh."""
    return set(group.ranks).issuperset(rank for ranks in along.values() for rank in ranks)


def _ranks_along(mesh: DeviceMesh) -> dict[str, tuple[int, ...]]:
    """Return {axis: ranks of this process's group along it}; empty if a group of the mesh was destroyed."""
    along, registered = {}, registered_groups()
    for name, axis in mesh_groups(mesh):
        process_group = group_of_mesh(mesh, name)
        if process_group is None or process_group not in registered:
            return {}
        along[axis] = tuple(registered[process_group])
    return along


def _unboxed(handle: Any) -> Any:
    """Return the ``ProcessGroup`` of an op's argument: itself, or boxed as a (fake) script object."""
    if isinstance(handle, torch.ScriptObject):  # first, as attribute access on it is slow
        return dist.ProcessGroup.unbox(handle)
    if isinstance(handle, dist.ProcessGroup):
        return handle
    return dist.ProcessGroup.unbox(handle.real_obj)  # a FakeScriptObject


def size_of(group: Group | None) -> int:
    """Return the number of ranks of a group; 1 for None, such as for an unknown op without a group."""
    return group.size if group is not None else 1


def describe_group(process_group: Any) -> Group:
    """Describe a live process group as plain data, without its axis."""
    name = process_group.group_name
    size = process_group.size()
    try:
        ranks = tuple(dist.get_process_group_ranks(process_group))
    except (KeyError, ValueError, RuntimeError):
        ranks = tuple(range(size))
    backend = backend_name(process_group)
    return Group(
        name,
        size,
        ranks=ranks,
        backend=backend,
        description=process_group.group_desc,
        axis_in_description=axis_of_description(process_group.group_desc, registered_groups()),
        timing=timing_of(backend),
        own_rank=own_rank(),
    )


def error_of(process_group: Any) -> str:
    """Return why NCCL aborted a group, ``"TIMEOUT"``, ``"COMM_ERROR"`` or ``"REMOTE_ERROR"``; else empty."""
    try:
        backend = backend_of(process_group, torch.device("cuda"))
    except RuntimeError:  # it has no backend for GPUs
        return ""
    get_error = getattr(backend, "get_error", None)  # only NCCL's has it
    name = get_error().name if get_error is not None else "SUCCESS"
    return "" if name == "SUCCESS" else str(name)


def own_rank() -> int:
    """Return the global rank of this process; unlike ``get_rank``, it is an int under ``LocalTensorMode`` too."""
    world = dist.group.WORLD
    return world.rank() if world is not None else 0


def launched_rank() -> int:
    """Return the global rank of this process; before it has a process group, the rank that its launcher gave it."""
    return own_rank() if dist.is_initialized() else int(os.environ.get("RANK", "0"))


def backend_name(process_group: Any) -> str:
    """Return ``fake``, ``gloo``, ``nccl``, or ``cpu:gloo,cuda:nccl`` for a group with several backends."""
    try:
        return str(dist.get_backend(process_group))
    except (KeyError, ValueError, RuntimeError):
        return str(process_group.name())


def mesh_groups(mesh: DeviceMesh) -> list[tuple[str, str]]:
    """Return (group name, axis name) pairs; empty for a mesh without groups, such as one that is only planned."""
    return [(str(name), axis) for name, axis in zip(group_names(mesh), axis_names(mesh), strict=False) if name]
