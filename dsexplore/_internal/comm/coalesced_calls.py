"""Collectives on several tensors in one launch: DeepSpeed's ``all_reduce_coalesced`` and ``all_gather_coalesced``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as td

from dsexplore._internal.comm import spellings as s
from dsexplore._internal.comm import switches
from dsexplore._internal.comm.coalesce import coalescing_manager
from dsexplore._internal.comm.faults import explain
from dsexplore._internal.comm.handles import WorkHandle
from dsexplore._internal.comm.issue import issue, live_group, switched_off
from dsexplore._internal.comm.reduce_op import SUM, Reduction, to_torch
from dsexplore._internal.errors import UsageError


def all_reduce_coalesced(
    tensors: Sequence[torch.Tensor] | torch.Tensor,
    op: Reduction = SUM,
    group: td.ProcessGroup | None = None,
    async_op: bool = False,
    prof: bool = False,
    log_name: str = "all_reduce",
    debug: str | None = None,
) -> WorkHandle | None:
    """Reduce several tensors of one dtype in one collective; the log shows them as members of a batch.

    Examples:
        >>> with dsexplore.simulate(4):
        ...     dist.all_reduce_coalesced([torch.ones(8), torch.ones(2)])
    """
    members = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    calls = [(tensor, to_torch(op), group) for tensor in members]
    return _coalesced(
        s.ALL_REDUCE_COALESCED, calls, group, is_async=async_op, prof=prof, log_name=log_name, debug=debug
    )


def all_gather_coalesced(
    output_tensors: Sequence[torch.Tensor | list[torch.Tensor]],
    input_tensors: Sequence[torch.Tensor],
    group: td.ProcessGroup | None = None,
    async_op: bool = False,
    prof: bool = False,
    log_name: str = "all_gather_coalesced",
    debug: str | None = None,
) -> WorkHandle | None:
    """Gather several tensors in one collective; the log shows them as members of a batch.

    Args:
        output_tensors: one tensor per input, which receives that input of all ranks (DeepSpeed); or lists of tensors,
            which are passed to torch's function unchanged.
        input_tensors: tensors of this rank.
        group: the process group; None for the world.
        async_op: return a handle immediately; its ``wait()`` waits for all tensors.
        prof: log the call even if the log does not record all calls.
        log_name: the name to log it under.
        debug: the caller's name in a log in debug mode; None to read it from the stack.

    Examples:
        >>> with dsexplore.simulate(4):
        ...     dist.all_gather_coalesced([torch.empty(32)], [torch.ones(8)])
    """
    if any(isinstance(output, (list, tuple)) for output in output_tensors):
        args = (output_tensors, input_tensors, group, async_op)
        return issue(
            s.ALL_GATHER_COALESCED_LISTS, args, group, is_async=async_op, prof=prof, log_name=log_name, debug=debug
        )
    if len(output_tensors) != len(input_tensors):
        counts = f"{len(output_tensors)} outputs and {len(input_tensors)} inputs"
        raise UsageError(f"all_gather_coalesced: {counts}: give one output for each input")
    calls = [(output, source, group) for output, source in zip(output_tensors, input_tensors, strict=True)]
    return _coalesced(
        s.ALL_GATHER_COALESCED, calls, group, is_async=async_op, prof=prof, log_name=log_name, debug=debug
    )


def _coalesced(
    spelling: s.Spelling,
    calls: list[tuple[Any, ...]],
    group: td.ProcessGroup | None,
    *,
    is_async: bool,
    prof: bool,
    log_name: str,
    debug: str | None,
) -> WorkHandle | None:
    """Launch several calls of one function as one collective; return one handle for all if `is_async`."""
    if not calls:
        raise UsageError(f"{spelling.name}: no tensors: give at least one")
    live = live_group(group)
    if live is None:  # torch warns about a group that this rank is not in, and raises without a process group
        return issue(spelling, calls[0], group)
    if spelling.op in switches.off:
        return switched_off(spelling, live, prof, log_name)
    _check_same_dtype(spelling, calls, group)
    with coalescing_manager(live, async_ops=is_async, call=spelling.name) as batch:
        for args in calls:
            issue(spelling, args, group, prof=prof, log_name=log_name, debug=debug)
    return batch.works[-1] if is_async else None


def _check_same_dtype(spelling: s.Spelling, calls: list[tuple[Any, ...]], group: td.ProcessGroup | None) -> None:
    """Raise UsageError if the tensors of the calls have several dtypes."""
    dtypes = {tensor.dtype for args in calls for tensor in args[:2] if isinstance(tensor, torch.Tensor)}
    if len(dtypes) > 1:
        error = UsageError(f"tensors of several dtypes ({', '.join(sorted(map(str, dtypes)))}): make one call for each")
        explain(error, spelling.name, group)
        raise error
