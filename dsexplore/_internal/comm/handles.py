"""The handles of asynchronous calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as td

from dsexplore._internal.capture.timing.work_timing import future_of
from dsexplore._internal.comm.faults import explain
from dsexplore._internal.comm.logs.log_records import LoggedCall
from dsexplore._internal.comm.logs.logger import comms_logger
from dsexplore._internal.comm.switches import Noop

WorkHandle = td.Work | Noop
"""Handle of a call: torch's, or a completed one if a switch suppressed the call."""

CopyBack = tuple[torch.Tensor, torch.Tensor]
"""A tensor of the caller, and the contiguous copy that was sent instead."""


def copy_back(copies: Sequence[CopyBack]) -> None:
    """Copy received data from the contiguous copies that were sent back to the callers' tensors."""
    if copies:
        with torch.no_grad():
            for tensor, copy in copies:
                tensor.copy_(copy)


class Handle(td.Work):
    """torch's handle of an asynchronous call, with errors that name op, group and rank.

    When the call completes, data received into contiguous copies is copied back to the callers' tensors.

    Args:
        work: torch's handle: a work or a future.
        name: name of the call in errors.
        group: process group of the call.
        call: label of the call in the log; None if it is not logged.
        copies: tensors to copy back once the op has completed.
    """

    def __init__(
        self, work: Any, name: str, group: Any, call: LoggedCall | None = None, copies: Sequence[CopyBack] = ()
    ) -> None:
        super().__init__()
        self._work = work
        self._name = name
        self._group = group
        self._call = call
        self._copies = copies
        if call is not None and (call.spelling.is_custom or comms_logger.verbose):
            future = future_of(work)  # gloo's send, recv and reduce_scatter have none
            if future is not None:
                future.add_done_callback(self._on_future_done)

    def _on_future_done(self, future: Any) -> None:
        """End and print the call's line in the thread that completed the work, before the caller waits."""
        assert self._call is not None
        try:
            future.value()
        except Exception as error:
            comms_logger.fail(self._call, error)
        else:
            comms_logger.end(self._call)

    def wait(self, *timeout: Any, **named: Any) -> Any:
        """Wait until the op has completed (on CUDA: until the current stream may use the result)."""
        try:
            done = self._work.wait(*timeout, **named)
        except Exception as error:
            if self._call is not None:
                comms_logger.fail(self._call, error)
            explain(error, self._name, self._group)
            raise
        self._finish()
        return done

    def is_completed(self) -> bool:
        """Return True if the op has completed, without waiting."""
        work = self._work
        done: bool = work.done() if hasattr(work, "done") else work.is_completed()  # a future, or a work
        if done:
            self._finish()
        return done

    def get_future(self) -> Any:
        """Return torch's future of the op; with copies, a future that is done once they are copied back."""
        work = self._work
        future: Any = work.get_future() if hasattr(work, "get_future") else work
        return future.then(self._finished_value) if self._copies else future

    def _finished_value(self, future: Any) -> Any:
        value = future.value()
        self._finish()
        return value

    def _finish(self) -> None:
        """End the call in the log, and copy received data back once."""
        if self._call is not None:
            comms_logger.end(self._call)
        copies = self._copies
        self._copies = ()
        copy_back(copies)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def _delegated(name: str) -> Callable[..., Any]:
    """Return a method of `Handle` that calls the same method of torch's handle."""

    def method(self: Handle, *args: Any, **named: Any) -> Any:
        return getattr(self._work, name)(*args, **named)

    method.__name__ = name
    return method


for _name in set(dir(td.Work)) - set(dir(object)) - set(vars(Handle)):
    if not _name.startswith("__") and "pybind" not in _name:
        setattr(Handle, _name, _delegated(_name))
