"""How every call of this package reaches torch.

The usual call (nothing logged, nothing switched off, not asynchronous, tensors contiguous) goes straight on; it
costs one more Python call than torch's own function. All else is `_attended`.

Tensors that are not contiguous: gloo reads and writes their storage as if they were, without a word. So they
go through contiguous copies, which are copied back when the op is over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as td
from torch.distributed import distributed_c10d as c10d

from dsexplore.comm import coalesce, switches
from dsexplore.comm.faults import explain
from dsexplore.comm.logger import comms_logger
from dsexplore.comm.records import Record
from dsexplore.comm.spellings import Message, Spelling
from dsexplore.comm.switches import Noop

CopyBack = tuple[torch.Tensor, torch.Tensor]
"""A tensor of the caller, and the contiguous one that was sent in its place."""


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
    if not (comms_logger.enabled or switches.off or is_async) and _contiguous(spelling, args):
        try:
            return spelling.call(*args)
        except Exception as error:
            explain(error, spelling.name, group)
            raise
    return _attended(spelling, args, group, is_async, prof, log_name or spelling.name, debug)


def _contiguous(spelling: Spelling, args: Sequence[Any]) -> bool:
    for position in spelling.tensors:
        value = args[position]
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(tensor, torch.Tensor) and not tensor.is_contiguous():
                return False
    return True


def _attended(
    spelling: Spelling, args: tuple[Any, ...], group: Any, is_async: bool, prof: bool, log_name: str, debug: str | None
) -> Any:
    live = td.group.WORLD if group is None else group
    member = isinstance(live, td.ProcessGroup) and c10d.get_rank(live) >= 0
    if member and spelling.op in switches.off:
        switch = switches.suppress(spelling.op, live)
        if comms_logger.wants(spelling, log_name, prof):
            comms_logger.note_switched_off(spelling, live, log_name, switch)
        return Noop()
    batch = coalesce.open_batch(live) if member else None
    record = None
    if member and comms_logger.wants(spelling, log_name, prof) and not torch.compiler.is_compiling():
        try:
            message = Message(0) if spelling.is_object else spelling.measure(args, live.size())
        except Exception:  # bad arguments, which torch is about to refuse
            message = Message(0)
        record = comms_logger.begin(spelling, message, live, log_name, debug)
        record.is_async = is_async
    args, copies = _stage(spelling, args) if member else (args, [])
    if record is not None:
        comms_logger.start_clock(record, _first_tensor(spelling, args))
    try:
        work = spelling.call(*args)
    except Exception as error:
        if record is not None:
            comms_logger.fail(record, error)
        explain(error, spelling.name, group)
        raise
    if batch is not None:
        batch.add(record, copies)
        return work
    if record is not None and spelling.is_object:
        comms_logger.end(record)
        record.message = spelling.measure(args, live.size())
    if is_async and work is not None:
        return Handle(work, spelling.name, group, [record] if record is not None else [], copies)
    _finish([record] if record is not None else [], copies)
    return work


def _stage(spelling: Spelling, args: tuple[Any, ...]) -> tuple[tuple[Any, ...], list[CopyBack]]:
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


def _first_tensor(spelling: Spelling, args: Sequence[Any]) -> torch.Tensor | None:
    for position in spelling.tensors:
        value = args[position]
        first = value[0] if isinstance(value, (list, tuple)) and value else value
        if isinstance(first, torch.Tensor):
            return first
    return None


def _copy_back(copies: list[CopyBack]) -> None:
    with torch.no_grad():
        for tensor, copy in copies:
            tensor.copy_(copy)


def _finish(records: Sequence[Record], copies: list[CopyBack]) -> None:
    """A call is over (on CUDA: all of it is on the current stream)."""
    for record in records:
        if record.device is not None:
            record.device.finish()
        comms_logger.end(record)
    _copy_back(copies)


class Handle(td.Work):
    """The handle of an asynchronous call; torch's own, which tells where an error happened and when it was over."""

    def __init__(
        self, work: Any, call: str, group: Any, records: Sequence[Record] = (), copies: Sequence[CopyBack] = ()
    ) -> None:
        super().__init__()
        self._work = work
        self._call = call
        self._group = group
        self._records = list(records)
        self._copies = list(copies)
        if self._records:
            self._watch()

    def _watch(self) -> None:
        """Have the work itself say when it is over; where it cannot, `wait` and `is_completed` do."""
        future = self._future()
        if future is not None:
            records = self._records
            future.add_done_callback(lambda _: _finish(records, []))

    def _future(self) -> torch.futures.Future[Any] | None:
        if isinstance(self._work, torch.futures.Future):
            return self._work
        try:
            return self._work.get_future()
        except RuntimeError:  # gloo's send, recv and reduce_scatter have none
            return None

    def wait(self, *timeout: Any, **named: Any) -> Any:
        """Wait until the op is over (on CUDA: until the current stream may use the result)."""
        try:
            done = self._work.wait(*timeout, **named)
        except Exception as error:
            for record in self._records:
                comms_logger.fail(record, error)
            explain(error, self._call, self._group)
            raise
        self._over()
        return done

    def is_completed(self) -> bool:
        """Whether the op is over, without waiting."""
        done: bool = self._work.is_completed()
        if done and not any(record.device is not None for record in self._records):
            self._over()
        return done

    def get_future(self) -> torch.futures.Future[Any]:
        """torch's future of the op."""
        future: torch.futures.Future[Any] = self._work.get_future()
        if self._copies:
            return future.then(self._value_after_copies)
        return future

    def _value_after_copies(self, future: torch.futures.Future[Any]) -> Any:
        value = future.value()
        self._over()
        return value

    def _over(self) -> None:
        for record in self._records:
            comms_logger.end(record)
        copies, self._copies = self._copies, []
        _copy_back(copies)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def _handed_on(name: str) -> Callable[..., Any]:
    def method(self: Handle, *args: Any, **named: Any) -> Any:
        return getattr(self._work, name)(*args, **named)

    method.__name__ = name
    return method


for _name in set(dir(td.Work)) - set(dir(object)) - set(vars(Handle)):
    if not _name.startswith("__") and "pybind" not in _name:
        setattr(Handle, _name, _handed_on(_name))
