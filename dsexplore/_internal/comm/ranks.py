"""Ranks, sizes and members of groups, and new groups."""

from __future__ import annotations

import os
from collections.abc import Sequence
from inspect import signature
from typing import Any

import torch.distributed as td
from torch.distributed import distributed_c10d as c10d

from dsexplore._internal.comm.faults import explain
from dsexplore._internal.errors import NotInitializedError
from dsexplore._internal.signatures import names_arguments, with_options

NOT_INITIALIZED = "Default process group has not been initialized."


def require_initialized(call: str) -> None:
    """Raise if there is no world of processes.

    Raises:
        NotInitializedError: there is none.
    """
    if not is_initialized():
        error = NotInitializedError(NOT_INITIALIZED)
        explain(error, call, None)
        raise error


def is_available() -> bool:
    """Return True if torch was built with torch.distributed.

    Examples:
        >>> dist.is_available()
        True
    """
    return td.is_available()


def is_initialized() -> bool:
    """Return True if there is a world, no matter who initialized it.

    Examples:
        >>> with dsexplore.simulate(4):
        ...     dist.is_initialized()
        True
        >>> dist.is_initialized()
        False
    """
    return td.is_available() and td.is_initialized()


def get_rank(group: td.ProcessGroup | None = None) -> int:
    """Return this rank's number in the group (None: the world); −1 if it is not in the group.

    Examples:
        >>> with dsexplore.simulate(4):
        ...     dist.get_rank()
        0
    """
    require_initialized("get_rank")
    return td.get_rank(group)


def get_world_size(group: td.ProcessGroup | None = None) -> int:
    """Return the size of the group (None: the world); −1 if this rank is not in it.

    Examples:
        >>> with dsexplore.simulate(4):
        ...     dist.get_world_size()
        4
    """
    require_initialized("get_world_size")
    return td.get_world_size(group)


def get_backend(group: td.ProcessGroup | None = None) -> str:
    """Return the name of the group's backend.

    Examples:
        >>> with dsexplore.simulate(4):
        ...     dist.get_backend()
        'fake'
    """
    require_initialized("get_backend")
    return str(td.get_backend(group))


def get_world_group() -> td.ProcessGroup:
    """Return the group of all ranks.

    Examples:
        >>> with dsexplore.simulate(4):
        ...     dist.get_world_group().size()
        4
    """
    require_initialized("get_world_group")
    assert td.group.WORLD is not None
    return td.group.WORLD


def get_local_rank() -> int:
    """Return this rank's number on its machine, from the launcher's environment; 0 without one.

    Examples:
        >>> with dsexplore.simulate(4):
        ...     dist.get_local_rank()
        0
    """
    require_initialized("get_local_rank")
    return get_local_rank_from_launcher()


def get_global_rank(group: td.ProcessGroup | None = None, group_rank: int = 0) -> int:
    """Return the global rank of a rank of the group.

    Examples:
        >>> with dsexplore.simulate(4):
        ...     dist.get_global_rank(dist.new_group([0, 2]), 1)
        2
    """
    require_initialized("get_global_rank")
    live: Any = td.group.WORLD if group is None else group
    try:
        return c10d.get_global_rank(live, group_rank)
    except Exception as error:
        explain(error, "get_global_rank", group)
        raise


def get_all_ranks_from_group(group: td.ProcessGroup | None = None) -> list[int]:
    """Return the global ranks of the group, in the group's order; empty if this rank is not in it.

    Examples:
        >>> with dsexplore.simulate(4):
        ...     dist.get_all_ranks_from_group(dist.new_group([0, 2]))
        [0, 2]
    """
    require_initialized("get_all_ranks_from_group")
    live: Any = td.group.WORLD if group is None else group
    return [] if live == td.GroupMember.NON_GROUP_MEMBER else td.get_process_group_ranks(live)


@names_arguments
@with_options(list(signature(td.new_group).parameters.values())[1:])
def new_group(ranks: Sequence[int] | None = None, *args: Any, **named: Any) -> td.ProcessGroup:
    """Create a group of these ranks; every rank of the world must make the call. Further parameters are torch's.

    Examples:
        >>> with dsexplore.simulate(4):
        ...     dist.new_group([0, 2]).size()
        2
    """
    require_initialized("new_group")
    try:
        group: td.ProcessGroup = td.new_group(None if ranks is None else list(ranks), *args, **named)
        return group
    except Exception as error:
        explain(error, f"new_group({ranks})", None)
        raise


def get_local_rank_from_launcher() -> int:
    """Return the rank on this machine from ``LOCAL_RANK``, else Open MPI's variable, else 0.

    Examples:
        >>> with dsexplore.simulate(4):
        ...     dist.get_local_rank_from_launcher()
        0
    """
    return _launcher_number("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", 0)


def get_world_rank_from_launcher() -> int:
    """Return the rank in the world from ``RANK``, else Open MPI's variable, else 0.

    Examples:
        >>> with dsexplore.simulate(4):
        ...     dist.get_world_rank_from_launcher()
        0
    """
    return _launcher_number("RANK", "OMPI_COMM_WORLD_RANK", 0)


def get_world_size_from_launcher() -> int:
    """Return the size of the world from ``WORLD_SIZE``, else Open MPI's variable, else 1.

    Examples:
        >>> with dsexplore.simulate(4):
        ...     dist.get_world_size_from_launcher()
        4
    """
    return _launcher_number("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", 1)


def _launcher_number(name: str, mpi_name: str, otherwise: int) -> int:
    return int(os.environ.get(name) or os.environ.get(mpi_name) or otherwise)
