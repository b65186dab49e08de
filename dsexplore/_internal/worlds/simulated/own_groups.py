"""Meshes that create only the process groups of the simulated rank.

On each rank, torch calls `new_group` for all groups of a mesh: 3,200 for pp=16 × dp=128 × tp=8, although the rank is in
only three. Real ranks need the other calls to stay in step; a simulated rank does not, so they are skipped.
"""

from __future__ import annotations

from inspect import signature
from typing import Any

from dsexplore._internal.torch_internals.dtensor import INIT_MESH_GROUPS, flat_layout, ranks_of_groups
from dsexplore._internal.torch_internals.patches import Entry, Parts, Patch
from dsexplore._internal.torch_internals.process_groups import skip_group_numbers
from dsexplore._internal.worlds.world_settings import WorldSettings

_ARGUMENTS = ["sub_layout", "rank_map", "dim_name", "backend_override"]
"""First arguments of torch's method that creates the groups of an axis, up to torch 2.15."""


def _make_groups_of_rank(make: Any, parts: Parts) -> Any:
    """Wrap the creation of an axis's groups to create only those of this rank, with torch's names.

    This has no effect on versions of torch whose method has other arguments.
    """
    if list(signature(make).parameters)[: len(_ARGUMENTS)] != _ARGUMENTS:
        return staticmethod(make)
    rank = parts[WorldSettings].rank

    def make_groups_of_rank(
        sub_layout: Any, rank_map: Any, dim_name: str, backend_override: Any, *args: Any, **kwargs: Any
    ) -> Any:
        groups = ranks_of_groups(sub_layout, rank_map)
        rows = (groups == rank).any(dim=1).nonzero().flatten().tolist()
        if len(groups) == 1 or len(rows) > 1:  # one group of all ranks, or a mistake that torch reports
            return make(sub_layout, rank_map, dim_name, backend_override, *args, **kwargs)
        if not rows:
            skip_group_numbers(len(groups))
            return None
        (index,) = rows
        skip_group_numbers(index)
        layout, ranks = flat_layout(groups.shape[1]), groups[index].contiguous()
        name = make(layout, ranks, dim_name, backend_override, *args, **kwargs)
        skip_group_numbers(len(groups) - 1 - index)
        return name

    return staticmethod(make_groups_of_rank)


PATCHES: tuple[Entry, ...] = (
    Patch(
        INIT_MESH_GROUPS,
        "a mesh of many ranks makes thousands of groups that this rank is not in",
        _make_groups_of_rank,
    ),
)
