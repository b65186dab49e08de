"""Collectives on Python objects. torch sends their pickles as tensors; the log counts the bytes of these tensors.

With ``weights_only``, torch unpickles only tensors and plain containers. torch 2.13 has no such option: there, it is a
`UsageError` rather than an unsafe load.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.distributed as td

from dsexplore._internal.comm import spellings as s
from dsexplore._internal.comm import versions
from dsexplore._internal.comm.issue import issue
from dsexplore._internal.comm.spellings import Spelling
from dsexplore._internal.comm.switches import Noop
from dsexplore._internal.errors import UsageError


def _issue(
    spelling: Spelling,
    args: tuple[Any, ...],
    group: td.ProcessGroup | None,
    weights_only: bool,
    *,
    prof: bool,
    log_name: str,
    debug: str | None,
) -> Noop | None:
    """Issue an object collective; return torch's value (the sender's rank of a receive), or the handle of a switch.

    Raises:
        UsageError: `weights_only` is True, but this version of torch does not have it.
    """
    if versions.has_weights_only_objects():
        args = (*args, weights_only)
    elif weights_only:
        raise UsageError(
            f"{spelling.name}(weights_only=True): torch {torch.__version__} has no such option; install a newer torch, "
            "or omit it if you trust the peers"
        )
    return cast("Noop | None", issue(spelling, args, group, prof=prof, log_name=log_name, debug=debug))


def all_gather_object(
    object_list: list[object],
    obj: object,
    group: td.ProcessGroup | None = None,
    weights_only: bool = False,
    prof: bool = False,
    log_name: str = "all_gather_object",
    debug: str | None = None,
) -> Noop | None:
    """Gather each rank's `obj` into `object_list`, on every rank.

    Examples:
        >>> with dsexplore.simulate(4):
        ...     objects = [None] * 4
        ...     dist.all_gather_object(objects, {"step": 1})
    """
    return _issue(
        s.ALL_GATHER_OBJECT, (object_list, obj, group), group, weights_only, prof=prof, log_name=log_name, debug=debug
    )


def broadcast_object_list(
    object_list: list[object],
    src: int | None = None,
    group: td.ProcessGroup | None = None,
    device: torch.device | None = None,
    group_src: int | None = None,
    weights_only: bool = False,
    prof: bool = False,
    log_name: str = "broadcast_object_list",
    debug: str | None = None,
) -> Noop | None:
    """Copy the objects of rank `src` to every rank.

    Examples:
        >>> with dsexplore.simulate(4):
        ...     dist.broadcast_object_list([{"step": 1}], src=0)
    """
    args = (object_list, src, group, device, group_src)
    return _issue(s.BROADCAST_OBJECT_LIST, args, group, weights_only, prof=prof, log_name=log_name, debug=debug)


def gather_object(
    obj: object,
    object_gather_list: list[object] | None = None,
    dst: int | None = None,
    group: td.ProcessGroup | None = None,
    group_dst: int | None = None,
    weights_only: bool = False,
    prof: bool = False,
    log_name: str = "gather_object",
    debug: str | None = None,
) -> Noop | None:
    """Gather each rank's `obj` on rank `dst`.

    Examples:
        >>> with dsexplore.simulate(4):
        ...     dist.gather_object({"step": 1}, [None] * 4, dst=0)
    """
    args = (obj, object_gather_list, dst, group, group_dst)
    return _issue(s.GATHER_OBJECT, args, group, weights_only, prof=prof, log_name=log_name, debug=debug)


def scatter_object_list(
    scatter_object_output_list: list[object],
    scatter_object_input_list: list[object] | None = None,
    src: int | None = None,
    group: td.ProcessGroup | None = None,
    group_src: int | None = None,
    weights_only: bool = False,
    prof: bool = False,
    log_name: str = "scatter_object_list",
    debug: str | None = None,
) -> Noop | None:
    """Send each rank one object of rank `src`.

    Examples:
        >>> with dsexplore.simulate(4):
        ...     part = [None]
        ...     dist.scatter_object_list(part, ["a", "b", "c", "d"], src=0)
        >>> part
        ['a']
    """
    args = (scatter_object_output_list, scatter_object_input_list, src, group, group_src)
    return _issue(s.SCATTER_OBJECT_LIST, args, group, weights_only, prof=prof, log_name=log_name, debug=debug)


def send_object_list(
    object_list: list[object],
    dst: int | None = None,
    group: td.ProcessGroup | None = None,
    device: torch.device | None = None,
    group_dst: int | None = None,
    use_batch: bool = False,
    weights_only: bool = False,
    prof: bool = False,
    log_name: str = "send_object_list",
    debug: str | None = None,
) -> Noop | None:
    """Send objects to rank `dst`.

    Examples:
        >>> with dsexplore.simulate(4):
        ...     dist.send_object_list([{"step": 1}], dst=1)
    """
    args = (object_list, dst, group, device, group_dst, use_batch)
    return _issue(s.SEND_OBJECT_LIST, args, group, weights_only, prof=prof, log_name=log_name, debug=debug)


def recv_object_list(
    object_list: list[object],
    src: int | None = None,
    group: td.ProcessGroup | None = None,
    device: torch.device | None = None,
    group_src: int | None = None,
    use_batch: bool = False,
    weights_only: bool = False,
    prof: bool = False,
    log_name: str = "recv_object_list",
    debug: str | None = None,
) -> int:
    """Receive objects into the list from rank `src`, or from any; return the sender's rank.

    Examples:
        >>> def exchange():
        ...     received = [None]
        ...     if dist.get_rank() == 0:
        ...         dist.send_object_list([{"step": 1}], dst=1)
        ...     else:
        ...         dist.recv_object_list(received, src=0)
        ...     return received
        >>> dsexplore.run_ranks(exchange, 2).values
        [[None], [{'step': 1}]]
    """
    args = (object_list, src, group, device, group_src, use_batch)
    return cast("int", _issue(s.RECV_OBJECT_LIST, args, group, weights_only, prof=prof, log_name=log_name, debug=debug))
