"""Measures start and end of collectives on a device, by CUDA events on its streams."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from dsexplore._internal.capture.collectives.ops import tensors_in
from dsexplore._internal.capture.timing.work_timing import Clock, Timed, future_of, work_of
from dsexplore._internal.torch_internals.dispatch import leave_to_python
from dsexplore._internal.torch_internals.patches import Entry, Parts, Patch, Patches, install_all
from dsexplore._internal.torch_internals.process_groups import END_COALESCING, START_COALESCING


class Spanned(Timed, Protocol):
    """A collective that may be measured on a device."""

    span: CudaSpan | None
    """Start and end on the device; None if it is measured on the host."""


Mark = Callable[[int], Any]
"""Records a timing event on the current stream of the device with this index, and returns it."""


def mark_stream(device: int) -> Any:
    """Record a CUDA event on the device's current stream."""
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def is_captured() -> bool:
    """Return True while GPU work of this thread is captured in a CUDA graph, to run later."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def device_of(args: Sequence[Any]) -> int | None:
    """Return the index of the CUDA device of a collective's first tensor; None for a CPU tensor.

    A collective without tensors uses the current device, if CUDA is initialized.
    """
    tensor = next(tensors_in(args), None)
    if tensor is not None:
        return tensor.get_device() if tensor.is_cuda else None
    return torch.cuda.current_device() if torch.cuda.is_initialized() else None


class CudaSpan:
    """Start and end of a collective on its device, as CUDA events that are read when a table is made.

    Args:
        anchor: the anchor of the device.
        mark: records events on the device.
        previous: span of the previous collective of the communicator, None for the first one. A communicator runs its
            collectives in sequence, so this one begins when that one has ended, even if its stream is ready earlier.
    """

    def __init__(self, anchor: CudaAnchor, mark: Mark = mark_stream, previous: CudaSpan | None = None) -> None:
        self._anchor = anchor
        self._mark = mark
        self._previous = previous
        self._start = mark(anchor.device)
        self._end: Any = None
        self._ended_at = 0

    def watch(self, result: object, runs_here: bool) -> None:
        """Record the end after the work, on the stream on which its future's callbacks run.

        Args:
            result: the op's result.
            runs_here: whether a work without a future runs on the current stream, as NCCL's synchronous works do.
        """
        future = future_of(work_of(result))
        if future is not None:
            future.then(lambda _future: self.finish())
        elif runs_here:
            self.finish()

    def finish(self) -> None:
        """Record the end on the current stream; later calls have no effect."""
        if self._end is None:
            self._end = self._mark(self._anchor.device)

    @property
    def has_end(self) -> bool:
        """True if its end was recorded on a stream, even if the stream has not reached it."""
        return self._end is not None

    @property
    def is_over(self) -> bool:
        """True if the device has reached the end."""
        return self._end is not None and bool(self._end.query())

    def read(self) -> tuple[int, int]:
        """Return start and end in nanoseconds since the epoch, if it `has_end`; waits for the device."""
        self._end.synchronize()
        start, self._ended_at = self._anchor.when(self._start), self._anchor.when(self._end)
        if self._previous is not None:  # spans are read in order, so its end is known
            start = min(max(start, self._previous._ended_at), self._ended_at)
            self._previous = None
        return start, self._ended_at


class CudaAnchor:
    """One moment on the clocks of both host and device, as CUDA events only measure differences on one device.

    Args:
        device: index of the device.
        now: the host's clock.
        mark: records events on the device.
    """

    def __init__(self, device: int, now: Clock, mark: Mark = mark_stream) -> None:
        self.device = device
        self._event = mark(device)
        self._event.synchronize()  # once per device and recording
        self._host = now()

    def when(self, event: Any) -> int:
        """Return the host time of a completed event, in nanoseconds since the epoch."""
        return self._host + round(float(self._event.elapsed_time(event)) * 1e6)


class DeviceBatches:
    """The ends of collectives that are launched together, as NCCL does for ``batch_isend_irecv``.

    They share one work, which has no future. When the program waits for it, the current stream waits. The end of a
    batch is recorded after that wait, so it is late if the stream was busy until later.
    """

    def __init__(self) -> None:
        self._open = _OpenBatch()
        self._launched: dict[int, tuple[weakref.ref[Any], list[Spanned]]] = {}
        """{id of a work that the program may still wait for: its collectives}."""
        self._patches = Patches()
        self._is_installed = False

    def install(self) -> None:
        """Observe where each batch begins and which work it launches."""
        if not self._is_installed:
            self._is_installed = True
            install_all(PATCHES, {"always"}, self._patches, Parts(self))

    def begin(self, _result: object = None) -> None:
        """Begin a batch of this thread."""
        self._open.members = []

    def takes(self, event: Spanned) -> bool:
        """Add a collective to this thread's open batch; return False if none is open."""
        members = self._open.members
        if members is not None:
            members.append(event)
        return members is not None

    def launch(self, work: Any) -> None:
        """Close this thread's batch, which was launched as `work`; None means that nothing was launched."""
        members, self._open.members = self._open.members, None
        if work is not None and members:
            identity = id(work)
            self._launched[identity] = weakref.ref(work, lambda _: self._launched.pop(identity, None)), members

    def waited(self, work: Any) -> None:
        """Record the end of a batch, if `work` is that of a batch: the current stream now waits for it."""
        if not self._launched:
            return
        _, members = self._launched.pop(id(work), (None, ()))
        for event in members:
            if event.span is not None:
                event.span.finish()

    def release(self) -> None:
        """Drop all batches, and restore the group's methods."""
        self._patches.undo()
        self._is_installed = False
        self._open.members = None
        self._launched.clear()


class _OpenBatch(threading.local):
    """The members of the batch that a thread has open; None outside a batch."""

    members: list[Spanned] | None = None


def _followed(original: Callable[..., Any], after: Callable[[Any], None]) -> Callable[..., Any]:
    """Wrap a method of a process group to call `after` with its result."""

    def method(group: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(group, *args, **kwargs)
        after(result)
        return result

    leave_to_python(method.__code__)
    return method


PATCHES: tuple[Entry, ...] = (
    Patch(
        START_COALESCING,
        "a group's launches from here on are one batch",
        lambda original, parts: _followed(original, parts[DeviceBatches].begin),
    ),
    Patch(
        END_COALESCING,
        "it returns the work of a batch",
        lambda original, parts: _followed(original, parts[DeviceBatches].launch),
    ),
)
"""Functions that are replaced while collectives on devices are measured."""
