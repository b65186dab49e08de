"""The collectives on tensors. Each takes the parameters of torch's function, and three for the log.

``prof=True`` logs the call even if the log does not record all calls. ``log_name`` is the name to log it under.
``debug`` is the caller's name in a log in debug mode; if omitted, it is read from the stack. Where DeepSpeed has other
names for torch's parameters, both names are accepted.
"""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as td

from dsexplore._internal.comm import spellings as s
from dsexplore._internal.comm.handles import WorkHandle
from dsexplore._internal.comm.issue import issue
from dsexplore._internal.comm.reduce_op import SUM, Reduction, to_torch
from dsexplore._internal.comm.versions import has_barrier_timeout
from dsexplore._internal.errors import UsageError


def all_reduce(
    tensor: torch.Tensor,
    op: Reduction = SUM,
    group: td.ProcessGroup | None = None,
    async_op: bool = False,
    prof: bool = False,
    log_name: str = "all_reduce",
    debug: str | None = None,
) -> WorkHandle | None:
    """Reduce `tensor` over the group, in place on every rank.

    Examples:
        >>> with dsexplore.simulate(4):
        ...     dist.all_reduce(torch.ones(8))
    """
    args = (tensor, to_torch(op), group, async_op)
    return issue(s.ALL_REDUCE, args, group, is_async=async_op, prof=prof, log_name=log_name, debug=debug)


def inference_all_reduce(
    tensor: torch.Tensor,
    op: Reduction = SUM,
    group: td.ProcessGroup | None = None,
    async_op: bool = False,
    prof: bool = False,
    log_name: str = "all_reduce",
    debug: str | None = None,
) -> torch.Tensor | WorkHandle | None:
    """Run `all_reduce` under the name that inference code uses; return `tensor`, or a handle if `async_op`.

    Examples:
        >>> with dsexplore.simulate(4):
        ...     reduced = dist.inference_all_reduce(torch.ones(8))
        >>> reduced.shape
        torch.Size([8])
    """
    args = (tensor, to_torch(op), group, async_op)
    work = issue(s.INFERENCE_ALL_REDUCE, args, group, is_async=async_op, prof=prof, log_name=log_name, debug=debug)
    return work if async_op else tensor


def reduce(
    tensor: torch.Tensor,
    dst: int | None = None,
    op: Reduction = SUM,
    group: td.ProcessGroup | None = None,
    async_op: bool = False,
    group_dst: int | None = None,
    prof: bool = False,
    log_name: str = "reduce",
    debug: str | None = None,
) -> WorkHandle | None:
    """Reduce `tensor` over the group, in place on rank `dst`; it is undefined on the other ranks.

    Examples:
        >>> with dsexplore.simulate(4):
        ...     dist.reduce(torch.ones(8), dst=0)
    """
    args = (tensor, dst, to_torch(op), group, async_op, group_dst)
    return issue(s.REDUCE, args, group, is_async=async_op, prof=prof, log_name=log_name, debug=debug)


def broadcast(
    tensor: torch.Tensor,
    src: int | None = None,
    group: td.ProcessGroup | None = None,
    async_op: bool = False,
    group_src: int | None = None,
    prof: bool = False,
    log_name: str = "broadcast",
    debug: str | None = None,
) -> WorkHandle | None:
    """Copy the `tensor` of rank `src` to every rank of the group.

    Examples:
        >>> with dsexplore.simulate(4):
        ...     dist.broadcast(torch.ones(8), src=0)
    """
    args = (tensor, src, group, async_op, group_src)
    return issue(s.BROADCAST, args, group, is_async=async_op, prof=prof, log_name=log_name, debug=debug)


def all_gather(
    tensor_list: list[torch.Tensor],
    tensor: torch.Tensor,
    group: td.ProcessGroup | None = None,
    async_op: bool = False,
    prof: bool = False,
    log_name: str = "all_gather",
    debug: str | None = None,
) -> WorkHandle | None:
    """Gather each rank's `tensor` into `tensor_list`, on every rank.

    Examples:
        >>> with dsexplore.simulate(4):
        ...     parts = [torch.empty(8) for _ in range(4)]
        ...     dist.all_gather(parts, torch.ones(8))
    """
    args = (tensor_list, tensor, group, async_op)
    return issue(s.ALL_GATHER, args, group, is_async=async_op, prof=prof, log_name=log_name, debug=debug)


def all_gather_into_tensor(
    output_tensor: torch.Tensor,
    input_tensor: torch.Tensor | None = None,
    group: td.ProcessGroup | None = None,
    async_op: bool = False,
    prof: bool = False,
    log_name: str = "all_gather_into_tensor",
    debug: str | None = None,
    *,
    tensor: torch.Tensor | None = None,
) -> WorkHandle | None:
    """Gather each rank's `input_tensor` (DeepSpeed: ``tensor``) into one tensor, on every rank.

    Examples:
        >>> with dsexplore.simulate(4):
        ...     dist.all_gather_into_tensor(torch.empty(32), torch.ones(8))
    """
    source = _given_once("all_gather_into_tensor", input_tensor=input_tensor, tensor=tensor)
    args = (output_tensor, source, group, async_op)
    return issue(s.ALL_GATHER_INTO_TENSOR, args, group, is_async=async_op, prof=prof, log_name=log_name, debug=debug)


def all_gather_single(
    output_tensor: torch.Tensor,
    input_tensor: torch.Tensor,
    group: td.ProcessGroup | None = None,
    async_op: bool = False,
    prof: bool = False,
    log_name: str = "all_gather_single",
    debug: str | None = None,
) -> WorkHandle | None:
    """Run `all_gather_into_tensor` under torch's newer name.

    Examples:
        >>> with dsexplore.simulate(4):
        ...     dist.all_gather_single(torch.empty(32), torch.ones(8))
    """
    args = (output_tensor, input_tensor, group, async_op)
    return issue(s.ALL_GATHER_SINGLE, args, group, is_async=async_op, prof=prof, log_name=log_name, debug=debug)


def all_gather_base(
    output_tensor: torch.Tensor,
    input_tensor: torch.Tensor,
    group: td.ProcessGroup | None = None,
    async_op: bool = False,
    prof: bool = False,
    log_name: str = "all_gather_base",
    debug: str | None = None,
) -> WorkHandle | None:
    """Run `all_gather_into_tensor` under its original name.

    Examples:
        >>> with dsexplore.simulate(4):
        ...     dist.all_gather_base(torch.empty(32), torch.ones(8))
    """
    args = (output_tensor, input_tensor, group, async_op)
    return issue(s.ALL_GATHER_BASE, args, group, is_async=async_op, prof=prof, log_name=log_name, debug=debug)


def reduce_scatter(
    output: torch.Tensor,
    input_list: list[torch.Tensor],
    op: Reduction = SUM,
    group: td.ProcessGroup | None = None,
    async_op: bool = False,
    prof: bool = False,
    log_name: str = "reduce_scatter",
    debug: str | None = None,
) -> WorkHandle | None:
    """Reduce the lists over the group; each rank keeps the tensor at its position.

    Examples:
        >>> with dsexplore.simulate(4):
        ...     dist.reduce_scatter(torch.empty(8), [torch.ones(8) for _ in range(4)])
    """
    args = (output, input_list, to_torch(op), group, async_op)
    return issue(s.REDUCE_SCATTER, args, group, is_async=async_op, prof=prof, log_name=log_name, debug=debug)


def reduce_scatter_tensor(
    output: torch.Tensor | None = None,
    input: torch.Tensor | None = None,  # noqa: A002 - torch's name
    op: Reduction = SUM,
    group: td.ProcessGroup | None = None,
    async_op: bool = False,
    prof: bool = False,
    log_name: str = "reduce_scatter_tensor",
    debug: str | None = None,
    *,
    output_tensor: torch.Tensor | None = None,
    tensor: torch.Tensor | None = None,
) -> WorkHandle | None:
    """Reduce `input` over the group and scatter it to `output` (DeepSpeed: ``tensor``, ``output_tensor``).

    Examples:
        >>> with dsexplore.simulate(4):
        ...     dist.reduce_scatter_tensor(torch.empty(8), torch.ones(32))
    """
    result = _given_once("reduce_scatter_tensor", output=output, output_tensor=output_tensor)
    source = _given_once("reduce_scatter_tensor", input=input, tensor=tensor)
    args = (result, source, to_torch(op), group, async_op)
    return issue(s.REDUCE_SCATTER_TENSOR, args, group, is_async=async_op, prof=prof, log_name=log_name, debug=debug)


def reduce_scatter_single(
    output: torch.Tensor,
    input: torch.Tensor,  # noqa: A002 - torch's name
    op: Reduction = SUM,
    group: td.ProcessGroup | None = None,
    async_op: bool = False,
    prof: bool = False,
    log_name: str = "reduce_scatter_single",
    debug: str | None = None,
) -> WorkHandle | None:
    """Run `reduce_scatter_tensor` under torch's newer name.

    Examples:
        >>> with dsexplore.simulate(4):
        ...     dist.reduce_scatter_single(torch.empty(8), torch.ones(32))
    """
    args = (output, input, to_torch(op), group, async_op)
    return issue(s.REDUCE_SCATTER_SINGLE, args, group, is_async=async_op, prof=prof, log_name=log_name, debug=debug)


def all_to_all_single(
    output: torch.Tensor,
    input: torch.Tensor | None = None,  # noqa: A002 - torch's name
    output_split_sizes: list[int] | None = None,
    input_split_sizes: list[int] | None = None,
    group: td.ProcessGroup | None = None,
    async_op: bool = False,
    prof: bool = False,
    log_name: str = "all_to_all_single",
    debug: str | None = None,
    *,
    tensor: torch.Tensor | None = None,
) -> WorkHandle | None:
    """Send a part of `input` (DeepSpeed: ``tensor``) to each rank, and gather a part from each into `output`.

    Examples:
        >>> with dsexplore.simulate(4):
        ...     dist.all_to_all_single(torch.empty(8), torch.ones(8))
    """
    source = _given_once("all_to_all_single", input=input, tensor=tensor)
    args = (output, source, output_split_sizes, input_split_sizes, group, async_op)
    return issue(s.ALL_TO_ALL_SINGLE, args, group, is_async=async_op, prof=prof, log_name=log_name, debug=debug)


def all_to_all(
    output_tensor_list: list[torch.Tensor],
    input_tensor_list: list[torch.Tensor],
    group: td.ProcessGroup | None = None,
    async_op: bool = False,
    prof: bool = False,
    log_name: str = "all_to_all",
    debug: str | None = None,
) -> WorkHandle | None:
    """Send one tensor to each rank, and receive one from each.

    Examples:
        >>> with dsexplore.simulate(4):
        ...     received = [torch.empty(2) for _ in range(4)]
        ...     dist.all_to_all(received, [torch.ones(2) for _ in range(4)])
    """
    args = (output_tensor_list, input_tensor_list, group, async_op)
    return issue(s.ALL_TO_ALL, args, group, is_async=async_op, prof=prof, log_name=log_name, debug=debug)


def gather(
    tensor: torch.Tensor,
    gather_list: list[torch.Tensor] | None = None,
    dst: int | None = None,
    group: td.ProcessGroup | None = None,
    async_op: bool = False,
    group_dst: int | None = None,
    prof: bool = False,
    log_name: str = "gather",
    debug: str | None = None,
) -> WorkHandle | None:
    """Gather each rank's `tensor` into `gather_list` on rank `dst`; global rank 0 by default.

    Examples:
        >>> with dsexplore.simulate(4):
        ...     parts = [torch.empty(8) for _ in range(4)]
        ...     dist.gather(torch.ones(8), parts, dst=0)
    """
    args = (tensor, gather_list, dst, group, async_op, group_dst)
    return issue(s.GATHER, args, group, is_async=async_op, prof=prof, log_name=log_name, debug=debug)


def scatter(
    tensor: torch.Tensor,
    scatter_list: list[torch.Tensor] | None = None,
    src: int | None = None,
    group: td.ProcessGroup | None = None,
    async_op: bool = False,
    group_src: int | None = None,
    prof: bool = False,
    log_name: str = "scatter",
    debug: str | None = None,
) -> WorkHandle | None:
    """Send each rank one tensor of the `scatter_list` of rank `src`; global rank 0 by default.

    Examples:
        >>> with dsexplore.simulate(4):
        ...     dist.scatter(torch.empty(8), [torch.ones(8) for _ in range(4)], src=0)
    """
    args = (tensor, scatter_list, src, group, async_op, group_src)
    return issue(s.SCATTER, args, group, is_async=async_op, prof=prof, log_name=log_name, debug=debug)


def barrier(
    group: td.ProcessGroup | None = None,
    async_op: bool = False,
    device_ids: list[int] | None = None,
    timeout: timedelta | None = None,
    prof: bool = False,
    log_name: str = "barrier",
    debug: str | None = None,
) -> WorkHandle | None:
    """Wait until every rank of the group has reached this call.

    Raises:
        UsageError: `timeout` is given, but this version of torch does not accept it.

    Examples:
        >>> with dsexplore.simulate(4):
        ...     dist.barrier()
    """
    if timeout is not None and not has_barrier_timeout():
        raise UsageError("torch's barrier takes a timeout from version 2.13 on: call monitored_barrier(timeout=…)")
    args = (group, async_op, device_ids) if timeout is None else (group, async_op, device_ids, timeout)
    return issue(s.BARRIER, args, group, is_async=async_op, prof=prof, log_name=log_name, debug=debug)


def monitored_barrier(
    group: td.ProcessGroup | None = None,
    timeout: timedelta | None = None,
    wait_all_ranks: bool = False,
    prof: bool = False,
    log_name: str = "monitored_barrier",
    debug: str | None = None,
) -> None:
    """Wait as `barrier`, and name the missing ranks in the error; gloo only.

    Examples:
        >>> with dsexplore.simulate(4, hardware="cpu"):
        ...     dist.monitored_barrier()
    """
    args = (group, timeout, wait_all_ranks)
    issue(s.MONITORED_BARRIER, args, group, prof=prof, log_name=log_name, debug=debug)


def _given_once(call: str, **by_name: torch.Tensor | None) -> torch.Tensor:
    """Return the argument of a parameter with several names, torch's and DeepSpeed's.

    Raises:
        TypeError: the argument is given under none of the names, or under more than one.
    """
    tensors = [tensor for tensor in by_name.values() if tensor is not None]
    if len(tensors) != 1:
        problem = "given twice" if tensors else "missing"
        raise TypeError(f"{call}: {' / '.join(by_name)} is {problem}: give it once")
    return tensors[0]
