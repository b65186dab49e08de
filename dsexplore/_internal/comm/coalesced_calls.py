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
    return _coalesced(s.ALL_REDUCE_COALESCED, calls, group, async_op, prof, log_name, debug)


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
        output_tensors: for each input one tensor that takes all ranks' (DeepSpeed); or lists of tensors, which are
            passed to torch's function unchanged.
        input_tensors: this rank's.
        group: the process group; None for the world.
        async_op: return a handle immediately; its ``wait()`` waits for all of them.
        prof: record the call even if the log does not record all.
        log_name: the name it is recorded under.
        debug: the caller's name.

    Examples:
        >>> with dsexplore.simulate(4):
        ...     dist.all_gather_coalesced([torch.empty(32)], [torch.ones(8)])
    """
    if any(isinstance(output, (list, tuple)) for output in output_tensors):
        args = (output_tensors, input_tensors, group, async_op)
        return issue(s.ALL_GATHER_COALESCED_LISTS, args, group, async_op, prof, log_name, debug)
    if len(output_tensors) != len(input_tensors):
        many = f"{len(output_tensors)} outputs and {len(input_tensors)} inputs"
        raise UsageError(f"all_gather_coalesced: {many}: give one output for each input")
    calls = [(output, given, group) for output, given in zip(output_tensors, input_tensors, strict=True)]
    return _coalesced(s.ALL_GATHER_COALESCED, calls, group, async_op, prof, log_name, debug)


def _coalesced(
    spelling: s.Spelling,
    calls: list[tuple[Any, ...]],
    group: td.ProcessGroup | None,
    async_op: bool,
    prof: bool,
    log_name: str,
    debug: str | None,
) -> WorkHandle | None:
    """Launch several calls of one function as one collective; return one handle for all if `async_op`."""
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


def _same_dtype(spelling: s.Spelling, calls: list[tuple[Any, ...]], group: td.ProcessGroup | None) -> None:
    dtypes = {tensor.dtype for args in calls for tensor in args[:2] if isinstance(tensor, torch.Tensor)}
    if len(dtypes) > 1:
        error = UsageError(f"tensors of several dtypes ({', '.join(sorted(map(str, dtypes)))}): make one call for each")
        explain(error, spelling.name, group)
        raise error
