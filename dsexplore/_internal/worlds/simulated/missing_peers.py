"""Calls of ``torch.distributed`` that wait for an answer of another rank, which a simulated world does not have."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any

import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from dsexplore._internal.torch_internals.ddp import COMMON_RANK
from dsexplore._internal.torch_internals.patches import Entry, Parts, Patch
from dsexplore._internal.torch_internals.process_groups import (
    COUNT_JOINED,
    MONITORED_BARRIER,
    MONITORED_BARRIER_OF_GROUP,
    RECV,
    SPLIT_GROUP,
    group_of_join,
    takes_any_cpu_backend,
)
from dsexplore._internal.worlds.remarks import Remarks

JOINED = (
    "Join asks how many ranks still have inputs, and no process runs the others: here all ranks end with this rank; "
    "on a real cluster a rank that ends earlier joins the collectives of the others until they end"
)


def _monitored_barrier(original: Callable[..., None], _parts: Parts) -> Callable[..., None]:
    """Wrap ``monitored_barrier`` to call ``barrier``, or raise torch's error for a backend without it."""
    parameters = signature(original)

    def monitored_barrier(*args: Any, **kwargs: Any) -> None:
        group = parameters.bind(*args, **kwargs).arguments.get("group")
        backend = dist.get_backend(group)
        if backend in (dist.Backend.GLOO, "fake") or ("gloo" in backend and takes_any_cpu_backend()):
            dist.barrier(group=group)
            return
        try:
            original(*args, **kwargs)  # raises, as on a cluster
        except RuntimeError:  # the simulated group has CPU tensors, so torch calls its barrier
            raise ValueError(
                f"monitored_barrier requires a group with a CPU-capable backend (e.g. GLOO), not {backend}"
            ) from None

    return monitored_barrier


def _monitored_barrier_of_group(original: Callable[..., None], _parts: Parts) -> Callable[..., None]:
    """Wrap the method of a group likewise."""

    @wraps(original)
    def monitored_barrier(group: dist.ProcessGroup, *args: Any, **kwargs: Any) -> None:
        backend = dist.get_backend(group)
        if "gloo" in backend or backend == "fake":  # such as "cpu:gloo,cuda:nccl"
            dist.barrier(group=group)
        else:
            original(group, *args, **kwargs)  # raises, as on a cluster

    return monitored_barrier


def _count_joined(count: Callable[[Join], float], parts: Parts) -> Callable[[Join], float]:
    """Wrap the count of ranks that still have inputs to make a remark."""
    remarks = parts[Remarks]

    @wraps(count)
    def count_joined(join: Join) -> float:
        if dist.get_world_size(group_of_join(join)) > 1:
            remarks.say(JOINED)
        return count(join)

    return count_joined


def _common_rank(find: Callable[..., int], _parts: Parts) -> Callable[..., int]:
    """Wrap DDP's search for the largest rank that meets a condition: if this rank meets it, all do."""

    @wraps(find)
    def find_common_rank(model: DistributedDataParallel, input_rank: int, rank_cond: bool) -> int:
        rank = find(model, input_rank, rank_cond)
        return dist.get_world_size(model.process_group) - 1 if rank_cond else rank  # torch takes the largest rank

    return find_common_rank


def _recv(original: Callable[..., int], parts: Parts) -> Callable[..., int]:
    """Wrap ``recv`` to return the first other rank of the group if the call names no source."""
    remarks, parameters = parts[Remarks], signature(original)

    def recv(*args: Any, **kwargs: Any) -> int:
        arguments = parameters.bind(*args, **kwargs).arguments
        try:
            return original(*args, **kwargs)
        except RuntimeError as error:  # without a source, torch asks the work for the sender
            if "sourceRank" not in str(error):
                raise
        ranks = dist.get_process_group_ranks(_group(arguments.get("group")))
        source = next(rank for rank in ranks if rank != dist.get_rank())
        remarks.say(f"recv without a source receives from the first rank that sends: here it returns rank {source}")
        return source

    return recv


def _split_group(original: Callable[..., Any], _parts: Parts) -> Callable[..., Any]:
    """Replace ``split_group`` by a ``new_group`` of the part that this rank is in."""
    parameters = signature(original)

    def split_group(*args: Any, **kwargs: Any) -> dist.ProcessGroup | None:
        arguments = parameters.bind(*args, **kwargs).arguments
        parent = _group(arguments.get("parent_pg"))
        members = dist.get_process_group_ranks(parent)
        splits = arguments.get("split_ranks") or []
        ranks = [rank for split in splits for rank in split]
        has_duplicates = len(set(ranks)) < len(ranks)
        if not splits or has_duplicates or not set(ranks) <= set(range(len(members))):
            raise ValueError(
                f"split_ranks={splits!r} must list ranks of the parent group, 0 to {len(members) - 1}, each at most "
                "once"
            )
        group_rank = members.index(dist.get_rank())
        for split in splits:
            if group_rank in split:
                group: dist.ProcessGroup = dist.new_group(
                    [members[rank] for rank in sorted(split)],
                    use_local_synchronization=True,
                    group_desc=arguments.get("group_desc") or f"{parent.group_desc}:split",
                )
                return group
        return None

    return split_group


def _group(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """Return the group; for None, that of all ranks."""
    group = group or dist.group.WORLD
    assert group is not None
    return group


_WHY = "no other rank answers"
PATCHES: tuple[Entry, ...] = (
    Patch(MONITORED_BARRIER, _WHY, _monitored_barrier, by_code=True),
    Patch(MONITORED_BARRIER_OF_GROUP, _WHY, _monitored_barrier_of_group),
    Patch(RECV, "the work of a simulated message has no sender", _recv, by_code=True),
    Patch(SPLIT_GROUP, "the backend of a simulated group cannot split", _split_group, by_code=True),
    Patch(COUNT_JOINED, _WHY, _count_joined),
    Patch(COMMON_RANK, _WHY, _common_rank),
)
