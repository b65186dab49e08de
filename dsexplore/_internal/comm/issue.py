"""Pass every call of this package on to torch.

A synchronous call on contiguous tensors goes directly to torch, unless calls are logged or switched off. All other
calls take `_issue_slow_path`.

gloo sends the first bytes of a tensor's storage even if the tensor is not contiguous. So contiguous copies are sent
instead, and copied back when the op completes. A tensor whose storage was freed would crash the process, so it is
refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed import ProcessGroup as _ProcessGroup
from torch.distributed import group as _groups

from dsexplore._internal.capture.collectives.issued_collective import current
from dsexplore._internal.comm import coalesce, switches
from dsexplore._internal.comm.faults import check_peers, explain
from dsexplore._internal.comm.handles import CopyBack, Handle, WorkHandle, copy_back
from dsexplore._internal.comm.logs.log_records import LoggedCall
from dsexplore._internal.comm.logs.logger import comms_logger
from dsexplore._internal.comm.spellings import Spelling
from dsexplore._internal.comm.switches import Noop
from dsexplore._internal.errors import UsageError
from dsexplore._internal.tensor_memory import storage_of
from dsexplore._internal.torch_internals.dispatch import active_dispatch_modes

_is_compiling = torch.compiler.is_compiling
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_LISTS_PER_RANK = frozenset({"all_gather", "gather", "scatter", "reduce_scatter"})
"""Ops that take a list of tensors per rank, a list of lists, in which torch looks for no ``__torch_dispatch__``."""


def issue(
    spelling: Spelling,
    args: tuple[Any, ...],
    group: Any,
    *,
    is_async: bool = False,
    prof: bool = False,
    log_name: str | None = None,
    debug: str | None = None,
) -> WorkHandle | None:
    """Call ``spelling.call(*args)`` with switches, the log, handles, and errors that name op, group and rank.

    Args:
        spelling: the function to call.
        args: torch's positional arguments.
        group: the process group among them; None for the world.
        is_async: True if torch returns a handle.
        prof: log this call even if not all calls are logged.
        log_name: the name to log it under; None for the function's name.
        debug: the caller's name, for a log in debug mode; None to read it from the stack.
    """
    if spelling.is_checked:
        _check(spelling, args, group)
    if comms_logger.is_on or is_async or switches.off or not _can_send_as_is(spelling, args):
        live = live_group(group)
        if live is not None:
            return _issue_slow_path(
                spelling, args, live, is_async=is_async, prof=prof, log_name=log_name or spelling.name, debug=debug
            )
    try:
        work: WorkHandle | None = spelling.call(*args)
        return work
    except Exception as error:
        explain(error, spelling.name, group)
        raise


def _check(spelling: Spelling, args: Sequence[Any], group: Any) -> None:
    """Raise ValueError for a peer that does not exist, and for arguments that torch would accept wrongly."""
    peer, group_peer = None, None
    if spelling.peers is not None:
        peer, group_peer = (args[position] for position in spelling.peers)
    if spelling.check is None and not peer and not group_peer:  # rank 0 is in the world and in every group
        return
    live = live_group(group)
    if live is None:
        return
    check_peers(spelling.name, live, peer=peer, group_peer=group_peer)
    wrong = spelling.check(args, live.size()) if spelling.check is not None else ""
    if wrong:
        error = ValueError(wrong)
        explain(error, spelling.name, group)
        raise error


def _can_send_as_is(spelling: Spelling, args: Sequence[Any]) -> bool:
    """Return True if torch can send all tensors as they are: contiguous, with memory, and with their class's code."""
    for position in spelling.tensors:
        argument = args[position]
        if type(argument) in _PLAIN or isinstance(argument, torch.Tensor):
            if not argument.is_contiguous() or _is_freed(argument):
                return False
        elif isinstance(argument, (list, tuple)):
            for tensor in argument:
                if not isinstance(tensor, torch.Tensor):
                    continue
                if not tensor.is_contiguous() or _is_freed(tensor) or _bypasses_its_class(spelling, tensor):
                    return False
    return True


def _is_freed(tensor: torch.Tensor) -> bool:
    """Return True if a contiguous tensor's storage is shorter than the tensor, or has no address."""
    if type(tensor) not in _PLAIN or _is_compiling():
        return False
    storage = tensor.untyped_storage()
    return storage.nbytes() < tensor.nbytes or (tensor.nbytes > 0 and not tensor.is_meta and not storage.data_ptr())


def _bypasses_its_class(spelling: Spelling, tensor: torch.Tensor) -> bool:
    """Return True for a subclass in a list per rank: there, torch ignores its ``__torch_dispatch__``."""
    return type(tensor) not in _PLAIN and spelling.op in _LISTS_PER_RANK and not active_dispatch_modes()


def _issue_slow_path(
    spelling: Spelling,
    args: tuple[Any, ...],
    live: Any,
    *,
    is_async: bool,
    prof: bool,
    log_name: str,
    debug: str | None,
) -> WorkHandle | None:
    """Issue a call with all that it may need: switches, contiguous copies, batches, the log and handles."""
    if spelling.op in switches.off:
        return switched_off(spelling, live, prof, log_name)
    args, copies = stage(spelling, args, spelling.name, live)
    batch = coalesce.open_batch(live)
    call: LoggedCall | None = None
    try:
        if not comms_logger.is_on or _is_compiling():
            work: WorkHandle | None = spelling.call(*args)
        else:
            ends_later = is_async or batch is not None
            reduction = spelling.reduction_of(args)
            call = comms_logger.begin(
                spelling, log_name, prof=prof, caller=debug, is_async=ends_later, reduction=reduction
            )
            work = _call_labeled(call, args, live)
    except Exception as error:
        if call is not None:
            comms_logger.fail(call, error, args, live)
        explain(error, spelling.name, live)
        raise
    if batch is not None:
        batch.add(call, args, copies)
        return work
    if is_async and work is not None:
        return Handle(work, spelling.name, group=live, call=call, copies=copies)
    if call is not None:
        comms_logger.end(call)
    copy_back(copies)
    return work


def _call_labeled(call: LoggedCall, args: tuple[Any, ...], live: Any) -> Any:
    """Issue a call; the recorder gives its label to each collective that it issues."""
    outer = current.label
    current.label = call
    try:
        if call.spelling.is_custom:
            comms_logger.begin_custom(call, args, live)
        return call.spelling.call(*args)
    finally:
        current.label = outer


def live_group(group: Any) -> Any:
    """Return the process group that a call is on; None if there is none, or this rank is not in it."""
    live = _groups.WORLD if group is None else group
    return live if isinstance(live, _ProcessGroup) else None  # for a non-member, torch's group is a number


def switched_off(spelling: Spelling, live: Any, prof: bool, log_name: str) -> Noop:
    """Record a call that a switch suppresses, and return a completed handle."""
    outer = current.label
    current.label = comms_logger.begin(spelling, log_name, prof=prof)
    try:
        switches.suppress(spelling.op, live)
    finally:
        current.label = outer
    return Noop()


def stage(spelling: Spelling, args: tuple[Any, ...], name: str, live: Any) -> tuple[tuple[Any, ...], list[CopyBack]]:
    """Return the arguments with contiguous copies of tensors that are not contiguous, and the copies to copy back.

    Args:
        spelling: the function to call.
        args: torch's positional arguments.
        name: name of the call in errors.
        live: the process group.

    Raises:
        UsageError: a tensor whose storage was freed, or a wrapper of other tensors in a list per rank.
    """
    if _can_send_as_is(spelling, args):
        return args, []
    staged_args = list(args)
    copies: list[CopyBack] = []
    for position in spelling.tensors:
        argument = args[position]
        is_list = isinstance(argument, (list, tuple))
        staged = []
        for tensor in argument if is_list else [argument]:
            if not isinstance(tensor, torch.Tensor):
                staged.append(tensor)
            elif tensor.is_contiguous():
                if _is_freed(tensor) or (is_list and _bypasses_its_class(spelling, tensor)):
                    _refuse(tensor, name, live)
                staged.append(tensor)
            else:
                copy = tensor.detach().contiguous()
                staged.append(copy)
                if position in spelling.writes:
                    copies.append((tensor, copy))
        staged_args[position] = staged if is_list else staged[0]
    return tuple(staged_args), copies


def _refuse(tensor: torch.Tensor, name: str, live: Any) -> None:
    """Raise UsageError if a tensor has no memory of its own."""
    try:
        storage_of(tensor)
    except UsageError as error:
        explain(error, name, live)
        raise
