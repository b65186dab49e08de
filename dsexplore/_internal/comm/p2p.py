"""Sends and receives between two ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
import torch.distributed as td

from dsexplore._internal.capture.collectives.issued_collective import current
from dsexplore._internal.comm import spellings as s
from dsexplore._internal.comm.faults import check_peers, explain
from dsexplore._internal.comm.handles import CopyBack, Handle, WorkHandle
from dsexplore._internal.comm.issue import issue, live_group, stage
from dsexplore._internal.comm.logs.log_records import LoggedCall
from dsexplore._internal.comm.logs.logger import comms_logger


class SendOrReceive:
    """A replacement of ``torch.distributed.isend`` or ``irecv`` that compares equal to it, as torch's `P2POp` requires.

    Args:
        function: the function to call.
        torch_function: torch's function that this object is equal to.
    """

    def __init__(self, function: Callable[..., Any], torch_function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self.torch_function = torch_function

    def __call__(self, *args: Any, **named: Any) -> WorkHandle | None:
        """Call the function; torch's batch_isend_irecv passes ``group_src`` to isend, which is its ``group_dst``."""
        if "group_src" in named and self.torch_function is td.isend:
            named["group_dst"] = named.pop("group_src")
        work: WorkHandle | None = self._function(*args, **named)
        return work

    def __eq__(self, other: object) -> bool:
        if isinstance(other, SendOrReceive):
            return other.torch_function is self.torch_function
        return other is self.torch_function

    def __hash__(self) -> int:
        return hash(self.torch_function)


def _equal_to(torch_function: Callable[..., Any]) -> Callable[[Callable[..., Any]], SendOrReceive]:
    """Return a decorator that makes a function compare equal to torch's."""
    return functools.partial(SendOrReceive, torch_function=torch_function)


def send(
    tensor: torch.Tensor,
    dst: int | None = None,
    group: td.ProcessGroup | None = None,
    tag: int = 0,
    group_dst: int | None = None,
    prof: bool = False,
    log_name: str = "send",
    debug: str | None = None,
) -> None:
    """Send `tensor` to rank `dst`, and wait until it may be modified.

    Examples:
        >>> with dsexplore.simulate(4):
        ...     dist.send(torch.ones(8), dst=1)
    """
    issue(s.SEND, (tensor, dst, group, tag, group_dst), group, prof=prof, log_name=log_name, debug=debug)


def recv(
    tensor: torch.Tensor,
    src: int | None = None,
    group: td.ProcessGroup | None = None,
    tag: int = 0,
    group_src: int | None = None,
    prof: bool = False,
    log_name: str = "recv",
    debug: str | None = None,
) -> int:
    """Receive into `tensor` from rank `src`, or from any; return the sender's rank.

    Examples:
        >>> with dsexplore.simulate(4):
        ...     dist.recv(torch.empty(8), src=1)
        1
    """
    args = (tensor, src, group, tag, group_src)
    return cast("int", issue(s.RECV, args, group, prof=prof, log_name=log_name, debug=debug))  # td.recv returns a rank


@_equal_to(td.isend)
def isend(
    tensor: torch.Tensor,
    dst: int | None = None,
    group: td.ProcessGroup | None = None,
    tag: int = 0,
    group_dst: int | None = None,
    prof: bool = False,
    log_name: str = "isend",
    debug: str | None = None,
) -> WorkHandle | None:
    """Start to send `tensor` to rank `dst`, and return a handle.

    Examples:
        >>> with dsexplore.simulate(4):
        ...     work = dist.isend(torch.ones(8), dst=1)
        ...     _ = work.wait()
    """
    return issue(
        s.ISEND, (tensor, dst, group, tag, group_dst), group, is_async=True, prof=prof, log_name=log_name, debug=debug
    )


@_equal_to(td.irecv)
def irecv(
    tensor: torch.Tensor,
    src: int | None = None,
    group: td.ProcessGroup | None = None,
    tag: int = 0,
    group_src: int | None = None,
    prof: bool = False,
    log_name: str = "irecv",
    debug: str | None = None,
) -> WorkHandle | None:
    """Start to receive into `tensor` from rank `src`, or from any, and return a handle.

    Examples:
        >>> with dsexplore.simulate(4):
        ...     work = dist.irecv(torch.empty(8), src=1)
        ...     _ = work.wait()
    """
    return issue(
        s.IRECV, (tensor, src, group, tag, group_src), group, is_async=True, prof=prof, log_name=log_name, debug=debug
    )


class P2POp(td.P2POp):
    """A send or receive for `batch_isend_irecv`; ``op`` is `isend` or `irecv` of this package or of torch."""

    def __new__(cls, op: Callable[..., Any], *args: Any, **named: Any) -> P2POp:
        """Create torch's object, which checks the arguments."""
        return super().__new__(cls, _in_torch(op), *args, **named)  # type: ignore[no-any-return]

    def __init__(self, op: Callable[..., Any], *args: Any, **named: Any) -> None:
        super().__init__(_in_torch(op), *args, **named)


def _in_torch(op: Callable[..., Any]) -> Callable[..., Any]:
    """Return torch's function for `isend` or `irecv` of this package; any other function as it is."""
    return op.torch_function if isinstance(op, SendOrReceive) else op


def batch_isend_irecv(
    p2p_op_list: list[td.P2POp],
    prof: bool = False,
    log_name: str = "batch_isend_irecv",
    debug: str | None = None,
) -> list[td.Work]:
    """Start all sends and receives of the list and return their handles. In the log, the operations are one batch.

    Examples:
        >>> with dsexplore.simulate(4):
        ...     operations = [dist.P2POp(dist.isend, torch.ones(8), 1), dist.P2POp(dist.irecv, torch.empty(8), 3)]
        ...     handles = dist.batch_isend_irecv(operations)
        ...     _ = [handle.wait() for handle in handles]
    """
    group = getattr(p2p_op_list[0], "group", None) if p2p_op_list else None
    live = live_group(group)
    staged = [_Staged(operation) for operation in p2p_op_list]
    if live is not None and all(isinstance(operation, td.P2POp) for operation in p2p_op_list):
        for operation in p2p_op_list:
            check_peers("batch_isend_irecv", live, peer=operation.peer)
        staged = [_stage(operation, live) for operation in p2p_op_list]
    operations = [each.operation for each in staged]
    call = _label(operations, prof, log_name, debug) if comms_logger.is_on else None
    outer, current.label = current.label, call
    try:
        works = td.batch_isend_irecv(operations)
    except Exception as error:
        if call is not None:
            comms_logger.fail(call, error)
        explain(error, "batch_isend_irecv", group)
        raise
    finally:
        current.label = outer
    return _handles(works, group, call, [each.copies for each in staged])


def _spelling(operation: Any) -> s.Spelling:
    return s.ISEND if operation.op == td.isend else s.IRECV


@dataclass(frozen=True)
class _Staged:
    """An operation as torch gets it."""

    operation: Any
    copies: list[CopyBack] = field(default_factory=list)
    """Copies to the caller's tensor, once the operation is done."""


def _stage(operation: Any, live: Any) -> _Staged:
    """Give an operation torch's function and a contiguous tensor."""
    (tensor,), copies = stage(_spelling(operation), (operation.tensor,), "batch_isend_irecv", live)
    if tensor is operation.tensor and not isinstance(operation.op, SendOrReceive):
        return _Staged(operation)
    peer = {"group": operation.group, "tag": operation.tag, "group_peer": operation.group_peer}
    return _Staged(td.P2POp(_in_torch(operation.op), tensor, **peer), copies)


def _label(operations: list[Any], prof: bool, log_name: str, debug: str | None) -> LoggedCall:
    """Return the label of a batch of operations, with the ops that are logged."""
    call = comms_logger.begin(s.ISEND, log_name, prof=prof, caller=debug, is_async=True)
    spellings = {_spelling(operation) for operation in operations if isinstance(operation, td.P2POp)}
    call.ops = {spelling.op for spelling in spellings if comms_logger.wants(spelling, log_name, prof)}
    call.is_wanted = bool(call.ops)
    return call


def _handles(
    works: list[Any], group: td.ProcessGroup | None, call: LoggedCall | None, copies: Sequence[list[CopyBack]]
) -> list[td.Work]:
    """Return one handle per operation if torch returns one each; NCCL returns one for the whole batch."""
    if len(works) != len(copies):
        copies = [[copy for operation_copies in copies for copy in operation_copies]] * len(works)
    logged = call if call is not None and call.issued else None
    labels: Sequence[LoggedCall | None] = [logged] * len(works)
    if logged is not None and len(logged.issued) == len(works):
        labels = logged.parts()
    return [
        Handle(work, "batch_isend_irecv", group=group, call=label, copies=copy)
        for work, label, copy in zip(works, labels, copies, strict=True)
    ]
