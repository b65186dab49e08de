"""Distributed checkpoints in a simulated world, where only one rank plans, writes and reads.

In ``torch.distributed.checkpoint`` the coordinator gathers the plans of all ranks, merges them, and sends each rank its
part. In a simulated world the other ranks have nothing to write or read. So the check that the plans cover each tensor
is skipped, a rank that is not the coordinator computes its part itself, and a checkpoint holds the shards of this rank
only. The collectives are those of a real checkpoint; the bytes of the pickled plans may differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.planner import LoadPlan, SavePlan

from dsexplore._internal.torch_internals import checkpoint
from dsexplore._internal.torch_internals.checkpoint import tensor_info
from dsexplore._internal.torch_internals.patches import Entry, Parts, Patch
from dsexplore._internal.worlds.remarks import Remarks
from dsexplore._internal.worlds.simulated.other_ranks_objects import Objects

_ONLY_PLAYED_RANK = (
    "a checkpoint of a simulated world holds the shards of rank {rank} only: it can be loaded in such a world only"
)
_PLANS: tuple[Any, ...] = (SavePlan, LoadPlan)


def _skip_errors(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    answer = checkpoint.result_of_valid_plan(original)

    def validate(*_: Any, **__: Any) -> bool | list[str]:
        parts[Remarks].say(_ONLY_PLAYED_RANK.format(rank=dist.get_rank()))
        return answer

    return validate


def _coordinates(wrapper: Any) -> bool:
    """Return True if this rank is the coordinator, or if ranks do not coordinate."""
    return bool(wrapper.is_coordinator) or not wrapper.use_dist


def _alone(data: Any, wrapper: Any) -> list[Any]:
    """Return the answers of all ranks: this rank's, and empty ones of the others, without items or write results."""
    empty: Any = data
    if isinstance(data, list):
        empty = []
    elif isinstance(data, _PLANS):
        empty = replace(data, items=[])
    return [data if rank == wrapper.get_rank() else empty for rank in range(wrapper.get_world_size())]


def _local_plan(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    """Wrap the reduce_scatter of plans to compute this rank's part from its own plan."""
    objects = parts[Objects]

    @wraps(original)
    def reduce_scatter(wrapper: Any, /, step: str, map_fun: Callable[[], Any], reduce_fun: Callable[..., Any]) -> Any:
        if _coordinates(wrapper):
            return original(wrapper, step, map_fun, lambda data: reduce_fun(_alone(data[wrapper.get_rank()], wrapper)))
        mapped = map_fun()
        with objects.standing_for(reduce_fun(_alone(mapped, wrapper))[wrapper.get_rank()]):
            return original(wrapper, step, lambda: mapped, reduce_fun)

    return reduce_scatter


def _local_result(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    """Wrap the all_reduce of results to reduce this rank's alone."""
    objects = parts[Objects]

    @wraps(original)
    def all_reduce(wrapper: Any, /, step: str, map_fun: Callable[[], Any], reduce_fun: Callable[..., Any]) -> Any:
        if _coordinates(wrapper):
            return original(wrapper, step, map_fun, lambda data: reduce_fun(_alone(data[wrapper.get_rank()], wrapper)))
        mapped = map_fun()
        with objects.standing_for(reduce_fun(_alone(mapped, wrapper))):
            return original(wrapper, step, lambda: mapped, reduce_fun)

    return all_reduce


def _local_value(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    """Wrap the broadcast of the coordinator's value to compute it on this rank."""
    objects = parts[Objects]

    @wraps(original)
    def broadcast(wrapper: Any, /, step: str, map_fun: Callable[[], Any]) -> Any:
        if _coordinates(wrapper):
            return original(wrapper, step, map_fun)
        with objects.standing_for(map_fun()):
            return original(wrapper, step, map_fun)

    return broadcast


def _use_local_description(original: Callable[..., None], parts: Parts) -> Callable[..., None]:
    """Wrap the broadcast of rank 0's tensor descriptions to describe this rank's tensors instead."""

    def broadcast_state_dict(
        full_state_dict: dict[str, Any], local_state_dict: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        if dist.get_rank() == 0:
            return original(full_state_dict, local_state_dict, *args, **kwargs)
        descriptions = {
            key: tensor_info(value) if torch.is_tensor(value) and value.dim() else value
            for key, value in local_state_dict.items()
        }
        with parts[Objects].standing_for(descriptions):
            return original(full_state_dict, local_state_dict, *args, **kwargs)

    return broadcast_state_dict


_ALONE = "the other ranks of a simulated world have nothing to write or read"

PATCHES: tuple[Entry, ...] = (
    Patch(checkpoint.VALIDATE_GLOBAL_PLAN, "this rank's shards alone do not cover a tensor", _skip_errors),
    Patch(checkpoint.WRAPPER_METHODS["reduce_scatter"], _ALONE, _local_plan),
    Patch(checkpoint.WRAPPER_METHODS["all_reduce"], _ALONE, _local_result),
    Patch(checkpoint.WRAPPER_METHODS["broadcast"], _ALONE, _local_value),
    Patch(checkpoint.BROADCAST_STATE_DICT, "no process plays rank 0", _use_local_description, by_code=True),
)
