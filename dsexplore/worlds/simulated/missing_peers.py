"""Calls of ``torch.distributed`` that need an answer of another rank, in a simulated world where none answers."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any

import torch.distributed as dist
from torch.distributed.algorithms.join import Join

from dsexplore.torch_internals.patches import Patches
from dsexplore.worlds.remarks import Remarks

JOINED = (
    "Join asks how many ranks still have inputs, and no process plays the others: here all of them end with this rank; "
    "on a real cluster a rank that ends sooner takes part in the collectives of the others until they end"
)


def patch_calls(patches: Patches, remarks: Remarks) -> None:
    """Make calls that wait for another rank return as if it had answered."""
    patches.function(dist.monitored_barrier, _take_monitored_barrier)
    of_group = dist.ProcessGroup.monitored_barrier  # type: ignore[attr-defined] # torch's stub lacks it
    patches.attribute(dist.ProcessGroup, "monitored_barrier", _take_monitored_barrier_of_group(of_group))
    patches.function(dist.recv, lambda original: _take_recv(original, remarks))
    patches.function(dist.split_group, _take_split_group)
    patches.attribute(Join, "_get_num_nonjoined_procs", _say_joined(Join._get_num_nonjoined_procs, remarks))


def _take_monitored_barrier(original: Callable[..., None]) -> Callable[..., None]:
    parameters = signature(original)

    def monitored_barrier(*args: Any, **kwargs: Any) -> None:
        group = parameters.bind(*args, **kwargs).arguments.get("group")
        if dist.get_backend(group) in (dist.Backend.GLOO, "fake"):
            dist.barrier(group=group)
        else:
            original(*args, **kwargs)  # raises, as on a cluster

    return monitored_barrier


def _take_monitored_barrier_of_group(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def monitored_barrier(group: dist.ProcessGroup, *args: Any, **kwargs: Any) -> None:
        backend = dist.get_backend(group)
        if "gloo" in backend or backend == "fake":  # also of a group with NCCL for GPUs
            dist.barrier(group=group)
        else:
            original(group, *args, **kwargs)  # raises, as on a cluster

    return monitored_barrier


def _say_joined(count: Callable[[Join], float], remarks: Remarks) -> Callable[[Join], float]:
    @wraps(count)
    def number_of_others(join: Join) -> float:
        if dist.get_world_size(join._process_group) > 1:
            remarks.say(JOINED)
        return count(join)

    return number_of_others


def _take_recv(original: Callable[..., int], remarks: Remarks) -> Callable[..., int]:
    parameters = signature(original)

    def recv(*args: Any, **kwargs: Any) -> int:
        given = parameters.bind(*args, **kwargs).arguments
        try:
            return original(*args, **kwargs)
        except RuntimeError as error:  # asks the work who sent, where no source was given
            if "sourceRank" not in str(error):
                raise
        source = next(rank for rank in dist.get_process_group_ranks(_group(given)) if rank != dist.get_rank())
        remarks.say(f"recv without a source receives from whoever sends first: here it returns rank {source}")
        return source

    return recv


def _group(given: dict[str, Any]) -> dist.ProcessGroup:
    group = given.get("group") or dist.group.WORLD
    assert group is not None
    return group


def _take_split_group(original: Callable[..., Any]) -> Callable[..., Any]:
    parameters = signature(original)

    def split_group(*args: Any, **kwargs: Any) -> dist.ProcessGroup | None:
        given = parameters.bind(*args, **kwargs).arguments
        parent = _group({"group": given.get("parent_pg")})
        members = dist.get_process_group_ranks(parent)
        parts = given.get("split_ranks") or []
        taken = [rank for part in parts for rank in part]
        if not parts or len(set(taken)) < len(taken) or not set(taken) <= set(range(len(members))):
            raise ValueError(
                f"split_ranks={parts!r} must list ranks of the parent group, 0 to {len(members) - 1}, each at most once"
            )
        own = members.index(dist.get_rank())
        for part in parts:
            if own in part:
                group: dist.ProcessGroup = dist.new_group(
                    [members[rank] for rank in sorted(part)],
                    use_local_synchronization=True,
                    group_desc=given.get("group_desc") or f"{parent.group_desc}:split",
                )
                return group
        return None

    return split_group
