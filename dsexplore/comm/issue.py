"""How every call of this package reaches torch.

The usual call (synchronous, nothing switched off, tensors contiguous) goes straight on, and in the log it is one
tuple. All else is `_attended`.

Tensors that are not contiguous: gloo reads and writes their storage as if they were, without a word. So they
go through contiguous copies, which are copied back when the op is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed import ProcessGroup as _ProcessGroup
from torch.distributed.distributed_c10d import _world

from dsexplore.comm import coalesce, switches
from dsexplore.comm.faults import check_peers, explain
from dsexplore.comm.handles import CopyBack, Handle, fail, finish
from dsexplore.comm.logger import Mode, comms_logger
from dsexplore.comm.records import Record
from dsexplore.comm.spellings import Spelling
from dsexplore.comm.switches import Noop

OFF, CHOOSY = Mode.OFF, Mode.CHOOSY
_is_compiling = torch.compiler.is_compiling


def issue(
    spelling: Spelling,
    args: tuple[Any, ...],
    group: Any,
    is_async: bool = False,
    prof: bool = False,
    log_name: str | None = None,
    debug: str | None = None,
) -> Any:
    """Make a call: ``spelling.call(*args)``, with switches, log, handles, and errors that tell where.

    Args:
        spelling: what is called.
        args: torch's positional arguments.
        group: the process group among them; None for the world.
        is_async: whether torch returns a handle.
        prof: record this call though not all are recorded.
        log_name: the name to record it under.
        debug: the caller's name, for a log in debug mode.
    """
    if spelling.peers is not None or spelling.check is not None:
        _check(spelling, args, group)
    mode = comms_logger.mode
    name = log_name or spelling.name
    if mode < CHOOSY and not (is_async or switches.off) and _contiguous(spelling, args):
        if mode == OFF:
            try:
                return spelling.call(*args)
            except Exception as error:
                explain(error, spelling.name, group)
                raise
        live = _world.default_pg if group is None else group
        if isinstance(live, _ProcessGroup) and not (spelling.is_object or _world.pg_coalesce_state):
            info = comms_logger.group_info(live)
            if info.timing != "cuda" and not _is_compiling():
                start = comms_logger.clock()
                try:
                    result = spelling.call(*args)
                except Exception as error:
                    comms_logger.note_failed(spelling, args, live, name, debug, error)
                    explain(error, spelling.name, group)
                    raise
                comms_logger.note(spelling, name, info, args, start, comms_logger.clock())
                return result
    return _attended(spelling, args, group, is_async, prof, name, debug)


def _check(spelling: Spelling, args: Sequence[Any], group: Any) -> None:
    live = live_group(group)
    if live is None:
        return
    if spelling.peers is not None:
        in_world, in_group = spelling.peers
        check_peers((args[in_world], args[in_group]), spelling.name, live)
    wrong = spelling.check(args, live.size()) if spelling.check is not None else ""
    if wrong:
        error = ValueError(wrong)
        explain(error, spelling.name, group)
        raise error


def _contiguous(spelling: Spelling, args: Sequence[Any]) -> bool:
    for position in spelling.tensors:
        value = args[position]
        if isinstance(value, torch.Tensor):
            if not value.is_contiguous():
                return False
        elif isinstance(value, (list, tuple)):
            for tensor in value:
                if isinstance(tensor, torch.Tensor) and not tensor.is_contiguous():
                    return False
    return True


def _attended(
    spelling: Spelling, args: tuple[Any, ...], group: Any, is_async: bool, prof: bool, log_name: str, debug: str | None
) -> Any:
    live = live_group(group)
    if live is None:
        return _plain(spelling, args, group)
    if spelling.op in switches.off:
        return switched_off(spelling, live, prof, log_name)
    if not comms_logger.wants(spelling, log_name, prof) or _is_compiling():
        records: list[Record] = []
        args, copies = stage(spelling, args)
    else:
        record = comms_logger.begin(spelling, spelling.size(args, live.size()), live, log_name, debug)
        record.is_async = is_async
        records = [record]
        args, copies = stage(spelling, args)
        comms_logger.start_clock(record, spelling, args)
    try:
        work = spelling.call(*args)
    except Exception as error:
        fail(records, error)
        explain(error, spelling.name, group)
        raise
    batch = coalesce.open_batch(live)
    if batch is not None:
        batch.add(records, copies)
        return work
    if is_async and work is not None:
        return Handle(work, spelling.name, group, records, copies)
    if records or copies:
        finish(records, copies)
    if records and spelling.is_object:
        records[0].bytes, records[0].dtype, records[0].shape = spelling.measure(args, live.size())
    return work


def live_group(group: Any) -> Any:
    """The process group that a call is on; None where there is none, or this rank is not in it."""
    live = _world.default_pg if group is None else group
    return live if isinstance(live, _ProcessGroup) else None  # torch has a number for "not a member"


def switched_off(spelling: Spelling, live: Any, prof: bool, log_name: str) -> Noop:
    """What a call gives that a switch keeps from being made."""
    switch = switches.suppress(spelling.op, live)
    if comms_logger.wants(spelling, log_name, prof):
        comms_logger.note_switched_off(spelling, live, log_name, switch)
    return Noop()


def _plain(spelling: Spelling, args: tuple[Any, ...], group: Any) -> Any:
    try:
        return spelling.call(*args)
    except Exception as error:
        explain(error, spelling.name, group)
        raise


def stage(spelling: Spelling, args: tuple[Any, ...]) -> tuple[tuple[Any, ...], list[CopyBack]]:
    """The arguments with contiguous copies of tensors that are not, and what to copy back."""
    if _contiguous(spelling, args):
        return args, []
    copies: list[CopyBack] = []

    def staged(tensor: Any, written: bool) -> Any:
        if not isinstance(tensor, torch.Tensor) or tensor.is_contiguous():
            return tensor
        copy = tensor.detach().contiguous()
        if written:
            copies.append((tensor, copy))
        return copy

    changed = list(args)
    for position in spelling.tensors:
        value, written = args[position], position in spelling.writes
        many = isinstance(value, (list, tuple))
        changed[position] = [staged(one, written) for one in value] if many else staged(value, written)
    return tuple(changed), copies
