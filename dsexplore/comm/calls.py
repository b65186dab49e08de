"""The collectives on tensors, with torch's parameters, DeepSpeed's names for them, and three for the log.

``prof=True`` records a call though the log does not record all; ``log_name`` is the name it is recorded under;
``debug`` is the caller's name where the log runs in debug mode (found by itself when left out).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as td

from dsexplore.comm import spellings as s
from dsexplore.comm import switches
from dsexplore.comm.coalesce import coalescing_manager
from dsexplore.comm.faults import explain
from dsexplore.comm.issue import issue, live_group, switched_off
from dsexplore.comm.reduce_op import to_torch
from dsexplore.comm.versions import has_barrier_timeout
from dsexplore.errors import UsageError

_SUM = td.ReduceOp.SUM
Tensors = Sequence[torch.Tensor]


def all_reduce(
    tensor: torch.Tensor,
    op: Any = _SUM,
    group: Any = None,
    async_op: bool = False,
    prof: bool = False,
    log_name: str = "all_reduce",
    debug: str | None = None,
) -> Any:
    """Reduce ``tensor`` over the group, in place on every rank."""
    args = (tensor, to_torch(op), group, async_op)
    return issue(s.ALL_REDUCE, args, group, async_op, prof, log_name, debug)


def inference_all_reduce(
    tensor: torch.Tensor,
    op: Any = _SUM,
    group: Any = None,
    async_op: bool = False,
    prof: bool = False,
    log_name: str = "all_reduce",
    debug: str | None = None,
) -> Any:
    """`all_reduce` under the name that inference code calls it by; returns ``tensor``, an async call a handle."""
    args = (tensor, to_torch(op), group, async_op)
    work = issue(s.INFERENCE_ALL_REDUCE, args, group, async_op, prof, log_name, debug)
    return work if async_op else tensor


def reduce(
    tensor: torch.Tensor,
    dst: int | None = None,
    op: Any = _SUM,
    group: Any = None,
    async_op: bool = False,
    group_dst: int | None = None,
    prof: bool = False,
    log_name: str = "reduce",
    debug: str | None = None,
) -> Any:
    """Reduce ``tensor`` over the group, in place on rank ``dst``; undefined on the others."""
    args = (tensor, dst, to_torch(op), group, async_op, group_dst)
    return issue(s.REDUCE, args, group, async_op, prof, log_name, debug)


def broadcast(
    tensor: torch.Tensor,
    src: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_src: int | None = None,
    prof: bool = False,
    log_name: str = "broadcast",
    debug: str | None = None,
) -> Any:
    """Give every rank of the group the ``tensor`` of rank ``src``."""
    args = (tensor, src, group, async_op, group_src)
    return issue(s.BROADCAST, args, group, async_op, prof, log_name, debug)


def all_gather(
    tensor_list: list[torch.Tensor],
    tensor: torch.Tensor,
    group: Any = None,
    async_op: bool = False,
    prof: bool = False,
    log_name: str = "all_gather",
    debug: str | None = None,
) -> Any:
    """Collect each rank's ``tensor`` in ``tensor_list``, on every rank."""
    args = (tensor_list, tensor, group, async_op)
    return issue(s.ALL_GATHER, args, group, async_op, prof, log_name, debug)


def all_gather_into_tensor(
    output_tensor: torch.Tensor,
    input_tensor: torch.Tensor | None = None,
    group: Any = None,
    async_op: bool = False,
    prof: bool = False,
    log_name: str = "all_gather_into_tensor",
    debug: str | None = None,
    *,
    tensor: torch.Tensor | None = None,
) -> Any:
    """Collect each rank's ``input_tensor`` (DeepSpeed: ``tensor``) in one tensor, on every rank."""
    given = _either("all_gather_into_tensor", "input_tensor", input_tensor, tensor)
    args = (output_tensor, given, group, async_op)
    return issue(s.ALL_GATHER_INTO_TENSOR, args, group, async_op, prof, log_name, debug)


def all_gather_single(
    output_tensor: torch.Tensor,
    input_tensor: torch.Tensor,
    group: Any = None,
    async_op: bool = False,
    prof: bool = False,
    log_name: str = "all_gather_single",
    debug: str | None = None,
) -> Any:
    """torch's newer name for `all_gather_into_tensor`."""
    args = (output_tensor, input_tensor, group, async_op)
    return issue(s.ALL_GATHER_SINGLE, args, group, async_op, prof, log_name, debug)


def all_gather_base(
    output_tensor: torch.Tensor,
    input_tensor: torch.Tensor,
    group: Any = None,
    async_op: bool = False,
    prof: bool = False,
    log_name: str = "all_gather_base",
    debug: str | None = None,
) -> Any:
    """`all_gather_into_tensor`, under the name it had at first."""
    args = (output_tensor, input_tensor, group, async_op)
    return issue(s.ALL_GATHER_BASE, args, group, async_op, prof, log_name, debug)


def reduce_scatter(
    output: torch.Tensor,
    input_list: list[torch.Tensor],
    op: Any = _SUM,
    group: Any = None,
    async_op: bool = False,
    prof: bool = False,
    log_name: str = "reduce_scatter",
    debug: str | None = None,
) -> Any:
    """Reduce the lists over the group; each rank keeps the tensor at its place."""
    args = (output, input_list, to_torch(op), group, async_op)
    return issue(s.REDUCE_SCATTER, args, group, async_op, prof, log_name, debug)


def reduce_scatter_tensor(
    output: torch.Tensor | None = None,
    input: torch.Tensor | None = None,  # noqa: A002 - torch's name
    op: Any = _SUM,
    group: Any = None,
    async_op: bool = False,
    prof: bool = False,
    log_name: str = "reduce_scatter_tensor",
    debug: str | None = None,
    *,
    output_tensor: torch.Tensor | None = None,
    tensor: torch.Tensor | None = None,
) -> Any:
    """Reduce ``input`` over the group; each rank keeps its part in ``output``. DeepSpeed: ``tensor, output_tensor``."""
    kept = _either("reduce_scatter_tensor", "output", output, output_tensor, "output_tensor")
    given = _either("reduce_scatter_tensor", "input", input, tensor)
    args = (kept, given, to_torch(op), group, async_op)
    return issue(s.REDUCE_SCATTER_TENSOR, args, group, async_op, prof, log_name, debug)


def reduce_scatter_single(
    output: torch.Tensor,
    input: torch.Tensor,  # noqa: A002 - torch's name
    op: Any = _SUM,
    group: Any = None,
    async_op: bool = False,
    prof: bool = False,
    log_name: str = "reduce_scatter_single",
    debug: str | None = None,
) -> Any:
    """torch's newer name for `reduce_scatter_tensor`."""
    args = (output, input, to_torch(op), group, async_op)
    return issue(s.REDUCE_SCATTER_SINGLE, args, group, async_op, prof, log_name, debug)


def all_to_all_single(
    output: torch.Tensor,
    input: torch.Tensor | None = None,  # noqa: A002 - torch's name
    output_split_sizes: list[int] | None = None,
    input_split_sizes: list[int] | None = None,
    group: Any = None,
    async_op: bool = False,
    prof: bool = False,
    log_name: str = "all_to_all_single",
    debug: str | None = None,
    *,
    tensor: torch.Tensor | None = None,
) -> Any:
    """Send a part of ``input`` (DeepSpeed: ``tensor``) to each rank, and collect one from each in ``output``."""
    given = _either("all_to_all_single", "input", input, tensor)
    args = (output, given, output_split_sizes, input_split_sizes, group, async_op)
    return issue(s.ALL_TO_ALL_SINGLE, args, group, async_op, prof, log_name, debug)


def all_to_all(
    output_tensor_list: list[torch.Tensor],
    input_tensor_list: list[torch.Tensor],
    group: Any = None,
    async_op: bool = False,
    prof: bool = False,
    log_name: str = "all_to_all",
    debug: str | None = None,
) -> Any:
    """Send one tensor to each rank, and collect one from each."""
    args = (output_tensor_list, input_tensor_list, group, async_op)
    return issue(s.ALL_TO_ALL, args, group, async_op, prof, log_name, debug)


def gather(
    tensor: torch.Tensor,
    gather_list: list[torch.Tensor] | None = None,
    dst: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_dst: int | None = None,
    prof: bool = False,
    log_name: str = "gather",
    debug: str | None = None,
) -> Any:
    """Collect each rank's ``tensor`` in ``gather_list`` on rank ``dst``; global rank 0 by default."""
    args = (tensor, gather_list, dst, group, async_op, group_dst)
    return issue(s.GATHER, args, group, async_op, prof, log_name, debug)


def scatter(
    tensor: torch.Tensor,
    scatter_list: list[torch.Tensor] | None = None,
    src: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_src: int | None = None,
    prof: bool = False,
    log_name: str = "scatter",
    debug: str | None = None,
) -> Any:
    """Give each rank one tensor of the ``scatter_list`` of rank ``src``; global rank 0 by default."""
    args = (tensor, scatter_list, src, group, async_op, group_src)
    return issue(s.SCATTER, args, group, async_op, prof, log_name, debug)


def barrier(
    group: Any = None,
    async_op: bool = False,
    device_ids: list[int] | None = None,
    timeout: timedelta | None = None,
    prof: bool = False,
    log_name: str = "barrier",
    debug: str | None = None,
) -> Any:
    """Wait until every rank of the group is here.

    Raises:
        UsageError: ``timeout`` is given, and torch takes none.
    """
    if timeout is not None and not has_barrier_timeout():
        raise UsageError("torch's barrier takes a timeout from version 2.13 on: call monitored_barrier(timeout=…)")
    args = (group, async_op, device_ids) if timeout is None else (group, async_op, device_ids, timeout)
    return issue(s.BARRIER, args, group, async_op, prof, log_name, debug)


def monitored_barrier(
    group: Any = None,
    timeout: timedelta | None = None,
    wait_all_ranks: bool = False,
    prof: bool = False,
    log_name: str = "monitored_barrier",
    debug: str | None = None,
) -> Any:
    """A barrier that names the ranks that are missing; gloo only."""
    args = (group, timeout, wait_all_ranks)
    return issue(s.MONITORED_BARRIER, args, group, False, prof, log_name, debug)


def all_reduce_coalesced(
    tensors: Tensors | torch.Tensor,
    op: Any = _SUM,
    group: Any = None,
    async_op: bool = False,
    prof: bool = False,
    log_name: str = "all_reduce",
    debug: str | None = None,
) -> Any:
    """Reduce several tensors of one dtype as one; in the log they are the members of a batch."""
    members = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    calls = [(tensor, to_torch(op), group) for tensor in members]
    return _as_one(s.ALL_REDUCE_COALESCED, calls, group, async_op, prof, log_name, debug)


def all_gather_coalesced(
    output_tensors: Sequence[Any],
    input_tensors: Tensors,
    group: Any = None,
    async_op: bool = False,
    prof: bool = False,
    log_name: str = "all_gather_coalesced",
    debug: str | None = None,
) -> Any:
    """Gather several tensors as one; in the log they are the members of a batch.

    Args:
        output_tensors: for each input one tensor that takes all ranks' (DeepSpeed); or lists of tensors, which go
            to torch's function as they are.
        input_tensors: this rank's.
        group: the process group; None for the world.
        async_op: return a handle at once, whose ``wait()`` waits for all of them.
        prof: record the call though the log does not record all.
        log_name: the name it is recorded under.
        debug: the caller's name.
    """
    if any(isinstance(output, (list, tuple)) for output in output_tensors):
        args = (output_tensors, input_tensors, group, async_op)
        return issue(s.ALL_GATHER_COALESCED_LISTS, args, group, async_op, prof, log_name, debug)
    if len(output_tensors) != len(input_tensors):
        many = f"{len(output_tensors)} outputs and {len(input_tensors)} inputs"
        raise UsageError(f"all_gather_coalesced: {many}: give one output for each input")
    calls = [(output, given, group) for output, given in zip(output_tensors, input_tensors, strict=True)]
    return _as_one(s.ALL_GATHER_COALESCED, calls, group, async_op, prof, log_name, debug)


def _as_one(
    spelling: s.Spelling,
    calls: list[tuple[Any, ...]],
    group: Any,
    async_op: bool,
    prof: bool,
    log_name: str,
    debug: str | None,
) -> Any:
    """Launch several calls of one function as one collective; returns one handle for all."""
    if not calls:
        raise UsageError(f"{spelling.name}: no tensors: give at least one")
    live = live_group(group)
    if live is None:  # torch warns of a group that this rank is not in, and refuses to work without any
        return issue(spelling, calls[0], group)
    if spelling.op in switches.off:
        return switched_off(spelling, live, prof, log_name)
    _same_dtype(spelling, calls, group)
    with coalescing_manager(live, async_ops=async_op, call=spelling.name) as batch:
        for args in calls:
            issue(spelling, args, group, False, prof, log_name, debug)
    return batch.works[-1] if async_op else None


def _same_dtype(spelling: s.Spelling, calls: list[tuple[Any, ...]], group: Any) -> None:
    dtypes = {tensor.dtype for args in calls for tensor in args[:2] if isinstance(tensor, torch.Tensor)}
    if len(dtypes) > 1:
        error = UsageError(f"tensors of several dtypes ({', '.join(sorted(map(str, dtypes)))}): make one call for each")
        explain(error, spelling.name, group)
        raise error


def _either(call: str, name: str, value: Any, other: Any, other_name: str = "tensor") -> Any:
    """The argument that was given under one of two names of a parameter: torch's, or DeepSpeed's."""
    if (value is None) == (other is None):
        problem = "missing" if value is None else "given twice"
        raise TypeError(f"{call}: {name} / {other_name} is {problem}: give it once")
    return other if value is None else value
