"""Meshes that make the process groups of the rank that is played, and none of the others'.

torch makes all groups of a mesh on each rank: 3,201 for pp=16 × dp=128 × tp=8, of which a rank is in three, and for the
others `new_group` returns no group. A simulated rank waits for no other, so these calls are left out.
"""

from __future__ import annotations

from inspect import signature
from typing import Any

import torch.distributed.distributed_c10d as c10d
from torch.distributed import device_mesh
from torch.distributed.device_mesh import DeviceMesh

from dsexplore.torch_internals.patches import Patches

_METHOD = "_init_one_process_group"
_ARGUMENTS = ["sub_layout", "rank_map", "dim_name", "backend_override"]
_LAYOUTS = ("_MeshLayout", "_FlatLayout")


def patch_mesh_groups(patches: Patches, rank: int) -> None:
    """Make a `DeviceMesh` make the groups that ``rank`` is in, with the names that torch would give them; versions of
    torch that make groups in another way are left as they are."""
    make: Any = getattr(DeviceMesh, _METHOD, None)
    of_groups, of_ranks = (getattr(device_mesh, name, None) for name in _LAYOUTS)
    if make is None or of_groups is None or of_ranks is None or list(signature(make).parameters) != _ARGUMENTS:
        return

    def make_own(sub_layout: Any, rank_map: Any, dim_name: str, backend_override: Any) -> Any:
        groups = of_groups([sub_layout]).remap_to_tensor(rank_map).flatten(1)
        own = (groups == rank).any(dim=1).nonzero().flatten().tolist()
        if len(groups) == 1 or len(own) > 1:  # the group of all, or a mistake that torch says
            return make(sub_layout, rank_map, dim_name, backend_override)
        if not own:
            c10d._world.group_count += len(groups)
            return None
        c10d._world.group_count += own[0]  # torch's names are these numbers
        name = make(of_ranks(groups.shape[1]), groups[own[0]].contiguous(), dim_name, backend_override)
        c10d._world.group_count += len(groups) - 1 - own[0]
        return name

    patches.attribute(DeviceMesh, _METHOD, staticmethod(make_own))
