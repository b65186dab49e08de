"""Distributed checkpoints in a simulated world, where one rank alone plans, writes and reads.

``torch.distributed.checkpoint`` lets one rank gather the plans of all, make one of them, and send each its part. In a
simulated world the other ranks have nothing to write or read. So the check whether the plans cover each tensor is left
out, a rank that does not plan makes its part itself, and a checkpoint holds the shards of this rank only. The
collectives are those of a real checkpoint; the bytes of the pickled plans may differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._state_dict_utils as state_dicts
import torch.distributed.checkpoint.default_planner as planner
from torch.distributed._state_dict_utils import _TensorInfo
from torch.distributed.checkpoint.planner import LoadPlan, SavePlan
from torch.distributed.checkpoint.utils import _DistWrapper

from dsexplore.torch_internals.patches import Patches
from dsexplore.worlds.remarks import Remarks
from dsexplore.worlds.simulated.other_ranks_objects import Objects

_OWN_SHARDS = "a checkpoint of a simulated world holds the shards of rank {rank} only: it is of use in that world alone"
_PLANS: tuple[Any, ...] = (SavePlan, LoadPlan)


def patch_checkpoints(patches: Patches, objects: Objects, remarks: Remarks) -> None:
    """Make ``dcp.save``, ``dcp.load`` and ``broadcast_from_rank0`` work on whichever rank is played."""

    def no_errors(*_: Any, **__: Any) -> list[str]:
        remarks.say(_OWN_SHARDS.format(rank=dist.get_rank()))
        return []

    patches.attribute(planner, "_validate_global_plan", no_errors)
    for name, build in (("reduce_scatter", _own_part), ("all_reduce", _own_result), ("broadcast", _own_value)):
        original = getattr(_DistWrapper, name)
        patches.attribute(_DistWrapper, name, wraps(original)(build(original, objects)))
    patches.function(state_dicts._broadcast_state_dict, lambda original: _described(original, objects))


def _plans(wrapper: _DistWrapper) -> bool:
    """Whether this rank makes the plan, or no rank is asked."""
    return bool(wrapper.is_coordinator) or not wrapper.use_dist


def _alone(data: Any, wrapper: _DistWrapper) -> list[Any]:
    """The answers of all ranks if the others had nothing: no items in their plans, no results of writing."""
    nothing: Any = data
    if isinstance(data, list):
        nothing = []
    elif isinstance(data, _PLANS):
        nothing = replace(data, items=[])
    return [data if rank == wrapper.get_rank() else nothing for rank in range(wrapper.get_world_size())]


def _own_part(original: Callable[..., Any], objects: Objects) -> Callable[..., Any]:
    def reduce_scatter(wrapper: Any, /, step: str, map_fun: Callable[[], Any], reduce_fun: Callable[..., Any]) -> Any:
        if _plans(wrapper):
            return original(wrapper, step, map_fun, lambda data: reduce_fun(_alone(data[wrapper.get_rank()], wrapper)))
        mapped = map_fun()
        with objects.standing_for(reduce_fun(_alone(mapped, wrapper))[wrapper.get_rank()]):
            return original(wrapper, step, lambda: mapped, reduce_fun)

    return reduce_scatter


def _own_result(original: Callable[..., Any], objects: Objects) -> Callable[..., Any]:
    def all_reduce(wrapper: Any, /, step: str, map_fun: Callable[[], Any], reduce_fun: Callable[..., Any]) -> Any:
        if _plans(wrapper):
            return original(wrapper, step, map_fun, lambda data: reduce_fun(_alone(data[wrapper.get_rank()], wrapper)))
        mapped = map_fun()
        with objects.standing_for(reduce_fun(_alone(mapped, wrapper))):
            return original(wrapper, step, lambda: mapped, reduce_fun)

    return all_reduce


def _own_value(original: Callable[..., Any], objects: Objects) -> Callable[..., Any]:
    def broadcast(wrapper: Any, /, step: str, map_fun: Callable[[], Any]) -> Any:
        if _plans(wrapper):
            return original(wrapper, step, map_fun)
        with objects.standing_for(map_fun()):
            return original(wrapper, step, map_fun)

    return broadcast


def _described(original: Callable[..., None], objects: Objects) -> Callable[..., None]:
    """Describe rank 0's tensors as this rank's own, which have the same names."""

    def broadcast_state_dict(
        full_state_dict: dict[str, Any], local_state_dict: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        if dist.get_rank() == 0:
            return original(full_state_dict, local_state_dict, *args, **kwargs)
        own = {
            key: _TensorInfo(value.size(), value.dtype) if torch.is_tensor(value) and value.dim() else value
            for key, value in local_state_dict.items()
        }
        with objects.standing_for(own):
            return original(full_state_dict, local_state_dict, *args, **kwargs)

    return broadcast_state_dict
