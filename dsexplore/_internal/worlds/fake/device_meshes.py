"""Meshes under a mode of fake tensors: their tables of ranks stay real, and the same mesh is made once.

Measured on torch 2.13, where under ``FakeTensorMode``

* making and slicing a `DeviceMesh` raises, because it reads values of its rank table: here it leaves the mode for that
  moment;
* ``fully_shard`` lists all ranks anew for each parameter that is tensor parallel too, half a megabyte at 16,384 ranks:
  here it does so once.
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
    """Return a function that remembers meshes: FSDP2 joins the same ones anew for each parameter, and each result lists
    all ranks."""
    joined: dict[tuple[int, ...], tuple[list[DeviceMesh], DeviceMesh]] = {}

    def concatenate_once(device_mesh_list: list[DeviceMesh]) -> DeviceMesh:
        key = tuple(map(id, device_mesh_list))
        if key not in joined:  # the list keeps those identities from being used again
            joined[key] = list(device_mesh_list), concatenate(device_mesh_list)
        return joined[key][1]

    return concatenate_once


def _slice_once(getitem: Method) -> Method:
    """Return a method that gives the same mesh for the same axes: DTensors compare theirs for each op, and two that are
    equal rank by rank, 16,384 of them in 15 µs; a mesh is equal to itself at once."""
    sliced: dict[tuple[int, Any], tuple[DeviceMesh, DeviceMesh]] = {}

    def slice_once(self: DeviceMesh, mesh_dim_names: Any) -> DeviceMesh:
        if not isinstance(mesh_dim_names, (str, tuple)):
            return getitem(self, mesh_dim_names)  # type: ignore[no-any-return]
        key = (id(self), mesh_dim_names)
        if key not in sliced:
            sliced[key] = (self, getitem(self, mesh_dim_names))  # the mesh keeps its identity from being used again
        return sliced[key][1]

    return slice_once


_REMEMBERED: dict[str, Callable[[Method], Method]] = {"_concatenate": _concatenate_once, "__getitem__": _slice_once}


def _patch(target: TorchName) -> Patch:
    def make(original: Method, _parts: Parts) -> Any:
        method = outside_fake_mode(original)
        if target.attribute in _REMEMBERED:
            method = _REMEMBERED[target.attribute](method)
        return staticmethod(method) if isinstance(vars(DeviceMesh)[target.attribute], staticmethod) else method

    return Patch(target, "it reads the table of ranks, which would be fake", make)


def _copy_outside(patches: Patches, _parts: Parts) -> None:
    patches.attribute(DeviceMesh, "__deepcopy__", outside_fake_mode(_copy))


PATCHES: tuple[Entry, ...] = (
    *(_patch(target) for target in MESH_METHODS_THAT_READ_RANKS),
    Change("the copy of a mesh", "its table of ranks would be fake", _copy_outside),
    Patch(
        MESH_RANKS,
        "it makes the table of ranks, which would be fake",
        lambda original, _parts: property(outside_fake_mode(original.fget), doc=original.__doc__),
    ),
)
