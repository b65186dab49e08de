"""Distributed checkpoints in a simulated world, where only one rank plans, writes and reads.

In ``torch.distributed.checkpoint`` the coordinator gathers the plans of all ranks, merges them, and sends each rank its
part. In a simulated world the other ranks have nothing to write or read. So the check that the plans cover each tensor
is skipped, a rank that is not the coordinator computes its part itself, and a checkpoint holds the shards of this rank
only. The collectives are those of a real checkpoint; the bytes of the pickled plans may differ.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from functools import partial, wraps
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.planner import LoadPlan, SavePlan

from dsexplore._internal.torch_internals import checkpoint
from dsexplore._internal.torch_internals.checkpoint import tensor_info
from dsexplore._internal.torch_internals.patches import Entry, Parts, Patch
from dsexplore._internal.worlds.remarks import Remarks
from dsexplore._internal.worlds.simulated.other_ranks_objects import Objects

_HOLDS_ONE_RANK = (
    "a checkpoint of a simulated world holds the shards of rank {rank} only: it can be loaded in such a world only"
)
_PLANS: tuple[Any, ...] = (SavePlan, LoadPlan)


def _skip_errors(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    """Replace the check that the plans of all ranks cover each tensor by one that passes, and makes a remark."""
    answer = checkpoint.result_of_valid_plan(original)

    def validate(*_: Any, **__: Any) -> bool | list[str]:
        parts[Remarks].say(_HOLDS_ONE_RANK.format(rank=dist.get_rank()))
        return answer

    return validate


def _coordinates(wrapper: Any) -> bool:
    """Return True if this rank is the coordinator, or if ranks do not coordinate."""
    return bool(wrapper.is_coordinator) or not wrapper.use_dist


def _with_empty(data: Any, wrapper: Any) -> list[Any]:
    """Return the answers of all ranks: this rank's, and empty ones of the others, without items or write results."""
    empty: Any = data
    if isinstance(data, list):
        empty = []
    elif isinstance(data, _PLANS):
        empty = replace(data, items=[])
    return [data if rank == wrapper.get_rank() else empty for rank in range(wrapper.get_world_size())]


def _reduce_locally(pick: Callable[[Any, int], Any], original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    """Wrap a step that reduces the answers of all ranks, to reduce this rank's and empty ones.

    Args:
        pick: returns what this rank receives, given the reduced value and its rank.
        original: method of torch's wrapper of collectives.
        parts: parts of the world.
    """
    objects = parts[Objects]

    @wraps(original)
    def reduce(wrapper: Any, /, step: str, map_fun: Callable[[], Any], reduce_fun: Callable[..., Any]) -> Any:
        rank = wrapper.get_rank()
        if _coordinates(wrapper):
            return original(wrapper, step, map_fun, lambda data: reduce_fun(_with_empty(data[rank], wrapper)))
        mapped = map_fun()
        with objects.delivering(pick(reduce_fun(_with_empty(mapped, wrapper)), rank)):
            return original(wrapper, step, lambda: mapped, reduce_fun)

    return reduce


def _local_value(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    """Wrap the broadcast of the coordinator's value to compute it on this rank."""
    objects = parts[Objects]

    @wraps(original)
    def broadcast(wrapper: Any, /, step: str, map_fun: Callable[[], Any]) -> Any:
        if _coordinates(wrapper):
            return original(wrapper, step, map_fun)
        with objects.delivering(map_fun()):
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
        with parts[Objects].delivering(descriptions):
            return original(full_state_dict, local_state_dict, *args, **kwargs)

    return broadcast_state_dict


_ALONE = "the other ranks of a simulated world have nothing to write or read"

PATCHES: tuple[Entry, ...] = (
    Patch(checkpoint.VALIDATE_GLOBAL_PLAN, "this rank's shards alone do not cover a tensor", _skip_errors),
    Patch(checkpoint.WRAPPER_METHODS["reduce_scatter"], _ALONE, partial(_reduce_locally, operator.getitem)),
    Patch(checkpoint.WRAPPER_METHODS["all_reduce"], _ALONE, partial(_reduce_locally, lambda result, _rank: result)),
    Patch(checkpoint.WRAPPER_METHODS["broadcast"], _ALONE, _local_value),
    Patch(checkpoint.BROADCAST_STATE_DICT, "no process runs as rank 0", _use_local_description, by_code=True),
)
