"""Patches of `DeviceMesh` for a fake tensor mode: rank tables stay real, and equal meshes are created once.

Under ``FakeTensorMode`` of torch 2.13,

* creating or slicing a `DeviceMesh` raises, because it reads values of its rank table: here, these methods run outside
  the mode;
* ``fully_shard`` lists all ranks for each parameter that is tensor parallel too, half a megabyte at 16,384 ranks: here
  it does so once.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torch.distributed.device_mesh import DeviceMesh

from dsexplore._internal.torch_internals.dtensor import MESH_METHODS_THAT_READ_RANKS, MESH_RANKS
from dsexplore._internal.torch_internals.names import TorchName
from dsexplore._internal.torch_internals.patches import Change, Entry, Parts, Patch, Patches
from dsexplore._internal.worlds.fake.fake_workarounds import outside_fake_mode

Method = Callable[..., Any]


def _copy(mesh: DeviceMesh, memo: dict[int, Any]) -> Any:
    return copy._reconstruct(mesh, memo, *mesh.__reduce_ex__(4))  # type: ignore[attr-defined]


def _concatenate_once(concatenate: Method) -> Method:
    """Return a function that caches joined meshes, which FSDP2 joins again for each parameter."""
    results: dict[tuple[int, ...], DeviceMesh] = {}
    joined: list[list[DeviceMesh]] = []  # keeps the meshes alive, so that their ids stay unique

    def concatenate_once(device_mesh_list: list[DeviceMesh]) -> DeviceMesh:
        key = tuple(map(id, device_mesh_list))
        if key not in results:
            joined.append(list(device_mesh_list))
            results[key] = concatenate(device_mesh_list)
        return results[key]

    return concatenate_once


def _slice_once(getitem: Method) -> Method:
    """Return a method that caches slices of meshes.

    DTensors compare their meshes for each op, which takes 15 µs for two equal meshes of 16,384 ranks, and no time for
    one and the same mesh.
    """
    slices: dict[tuple[int, Any], DeviceMesh] = {}
    sliced: list[DeviceMesh] = []  # keeps the meshes alive, so that their ids stay unique

    def slice_once(self: DeviceMesh, mesh_dim_names: Any) -> DeviceMesh:
        if not isinstance(mesh_dim_names, (str, tuple)):
            return getitem(self, mesh_dim_names)  # type: ignore[no-any-return]
        key = (id(self), mesh_dim_names)
        if key not in slices:
            sliced.append(self)
            slices[key] = getitem(self, mesh_dim_names)
        return slices[key]

    return slice_once


_CACHED: dict[str, Callable[[Method], Method]] = {"_concatenate": _concatenate_once, "__getitem__": _slice_once}


def _patch(target: TorchName) -> Patch:
    def make(original: Method, _parts: Parts) -> Any:
        method = outside_fake_mode(original)
        if target.attribute in _CACHED:
            method = _CACHED[target.attribute](method)
        return staticmethod(method) if isinstance(vars(DeviceMesh)[target.attribute], staticmethod) else method

    return Patch(target, "it reads the table of ranks, which would be fake", make)


def _copy_outside(patches: Patches, _parts: Parts) -> None:
    """Replace ``copy.deepcopy`` of a mesh by a copy outside the fake tensor mode."""
    patches.attribute(DeviceMesh, "__deepcopy__", outside_fake_mode(_copy))


PATCHES: tuple[Entry, ...] = (
    *(_patch(target) for target in MESH_METHODS_THAT_READ_RANKS),
    Change("the copy of a mesh", "its table of ranks would be fake", _copy_outside),
    Patch(
        MESH_RANKS,
        "it creates the table of ranks, which would be fake",
        lambda original, _parts: property(outside_fake_mode(original.fget), doc=original.__doc__),
    ),
)
