"""The handles of asynchronous calls, and what happens when a call is over."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as td

from dsexplore.comm.faults import explain
from dsexplore.comm.logger import comms_logger
from dsexplore.comm.records import Record

CopyBack = tuple[torch.Tensor, torch.Tensor]
"""A tensor of the caller, and the contiguous one that was sent in its place."""


def copy_back(copies: list[CopyBack]) -> None:
    if copies:
        with torch.no_grad():
            for tensor, copy in copies:
                tensor.copy_(copy)


def finish(records: Sequence[Record], copies: list[CopyBack]) -> None:
    """A call is over (on CUDA: all of it is on the current stream)."""
    comms_logger.end(records)
    for record in records:
        if record.device is not None:
            record.device.finish()
    copy_back(copies)


def fail(records: Sequence[Record], error: BaseException) -> None:
    """A call raised."""
    for record in records:
        comms_logger.fail(record, error)


def note_outcome(records: Sequence[Record], copies: list[CopyBack], future: Any) -> Any:
    """What a future that is done gave, once the log knows how its call ended and the copies are back."""
    try:
        value = future.value()
    except Exception as error:
        fail(records, error)
        raise
    finish(records, copies)
    return value


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

            def done(future: Any) -> None:
                with contextlib.suppress(Exception):  # torch would print it; who waits gets it raised
                    note_outcome(records, [], future)

            future.add_done_callback(done)

    def _future(self) -> Any:
        if isinstance(self._work, torch._C.Future):
            return self._work
        try:
            future: Any = self._work.get_future()
            return future
        except RuntimeError:  # gloo's send, recv and reduce_scatter have none
            return None

    def wait(self, *timeout: Any, **named: Any) -> Any:
        """Wait until the op is over (on CUDA: until the current stream may use the result)."""
        try:
            done = self._work.wait(*timeout, **named)
        except Exception as error:
            fail(self._records, error)
            explain(error, self._call, self._group)
            raise
        self._over()
        return done

    def is_completed(self) -> bool:
        """Whether the op is over, without waiting."""
        work = self._work
        done: bool = work.done() if isinstance(work, torch._C.Future) else work.is_completed()
        if done and not any(record.device is not None for record in self._records):
            self._over()
        return done

    def get_future(self) -> Any:
        """torch's future of the op; of one that is logged or has copies, its successor, done once they are."""
        work = self._work
        future: Any = work if isinstance(work, torch._C.Future) else work.get_future()
        if self._copies or self._records:
            return future.then(self._value_when_over)
        return future

    def _value_when_over(self, future: Any) -> Any:
        return note_outcome(self._records, self._copies_left(), future)

    def _over(self) -> None:
        finish(self._records, self._copies_left())

    def _copies_left(self) -> list[CopyBack]:
        """The copies, which go back once."""
        copies, self._copies = self._copies, []
        return copies

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
