"""When a collective began and when it was done, on the process group's own terms.

| backend | timing | start | end |
|---|---|---|---|
| fake | none | – | – |
| nccl and others on an accelerator | cuda | event on the issuing stream | event after the work, on the work's stream |
| gloo, mpi, ucc | work | host clock at issue | host clock when the work's future completes |
| works without a future (send, recv) | host | host clock at issue | host clock when the call returned |

Nothing waits and nothing synchronises a device here: overlap stays as it was.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist

from dsexplore.trace.schema import Timing

Clock = Callable[[], int]
"""Nanoseconds since the Unix epoch."""


class Timed(Protocol):
    """What a measurement fills in."""

    start: int | None
    end: int | None


def timing_of(backend: str) -> Timing:
    """How a backend's collectives are measured."""
    if backend == "fake" or backend.endswith(":fake"):
        return "none"
    return "cuda" if "nccl" in backend else "work"


def work_of(result: Any) -> Any:
    """The ``Work`` in a c10d op's result; None where there is none."""
    candidate = result[-1] if isinstance(result, tuple) and result else result
    if isinstance(candidate, torch.ScriptObject):
        try:
            return dist.Work.unbox(candidate)
        except (RuntimeError, AttributeError):
            return None
    return None


def future_of(work: Any) -> Any:
    """The work's future; None where it has none, as gloo's send and recv."""
    if work is None:
        return None
    try:
        return work.get_future()
    except RuntimeError:
        return None


def end_at_completion(event: Timed, work: Any, clock: Clock) -> None:
    """Fill in ``event.end`` when the work is done; at once, if it cannot say when."""
    future = future_of(work)
    if future is None:
        event.end = clock()
        return

    def done(_future: Any) -> None:
        if event.end is None:
            event.end = clock()

    future.add_done_callback(done)


class InFlight:
    """Works that a thread of the backend may still refer to, each held until it has been done for a while.

    The kernels that the recorder calls run with Python's lock taken, where torch's own calls run without. A gloo
    thread that drops the last reference to a finished work does so with its queue locked, and needs Python's lock
    for it; a kernel that waits for that queue would then wait forever. So the last reference is this one.

    Args:
        held: for how many nanoseconds after its end a work is held; a gloo thread needs some microseconds.
    """

    def __init__(self, held: int = 1_000_000_000) -> None:
        self._held = held
        self._works: deque[tuple[Timed, Any]] = deque()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._works)

    def add(self, event: Timed, work: Any) -> None:
        """Hold a work, and let go of those that ended long ago."""
        works = self._works
        long_ago = (event.start or 0) - self._held
        with self._lock:
            while works and works[0][0].end is not None and works[0][0].end < long_ago:
                works.popleft()
            works.append((event, work))

    def settle(self, clock: Clock) -> None:
        """Fill in the end of works that are done, but whose thread has not got Python's lock yet to say so.

        Who waits for a work's future, as DDP does, goes on before its callbacks are called.
        """
        with self._lock:
            running = [(event, work) for event, work in self._works if event.end is None]
        for event, work in running:
            future = future_of(work)
            if future is not None and future.done() and event.end is None:
                event.end = clock()

    def release(self) -> None:
        """Let go of all, once torch calls its kernels itself again."""
        self._works.clear()


class Spanned(Timed, Protocol):
    """What is measured on a device, where its backend works there."""

    span: CudaSpan | None


class Stopwatch:
    """Measures collectives, each on its backend's own terms.

    Args:
        clock: nanoseconds since the epoch.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._in_flight = InFlight()
        self._anchor: CudaAnchor | None = None

    def begin(self, event: Spanned, timing: Timing) -> None:
        """A collective of a backend that is measured in that way is about to be issued."""
        if timing != "cuda":
            event.start = self._clock()
            return
        if self._anchor is None:
            self._anchor = CudaAnchor(self._clock)
        event.span = CudaSpan(self._anchor)

    def follow(self, event: Spanned, result: Any) -> None:
        """It has returned that, which it may not have finished."""
        if event.span is not None:
            event.span.watch(result)
            return
        work = work_of(result)
        end_at_completion(event, work, self._clock)
        self._in_flight.add(event, work)

    def settle(self) -> None:
        """See `InFlight.settle`."""
        self._in_flight.settle(self._clock)

    def release(self) -> None:
        """Hold nothing any more."""
        self._in_flight.release()
        self._anchor = None


class CudaSpan:
    """Start and end of a collective on the device, as CUDA events; read once, at the end of the recording.

    Args:
        anchor: an event recorded at a known host time, to which both are related.
    """

    def __init__(self, anchor: CudaAnchor) -> None:
        self._anchor = anchor
        self._start = torch.cuda.Event(enable_timing=True)
        self._end: Any = None
        self._start.record()

    def watch(self, result: Any) -> None:
        """Record the end behind the work, on the stream that its future's callbacks run on."""
        work = work_of(result)
        if work is None:
            return
        end = torch.cuda.Event(enable_timing=True)

        def done(_future: Any) -> None:
            end.record()
            self._end = end

        work.get_future().then(done)

    def read(self) -> tuple[int | None, int | None]:
        """Start and end in nanoseconds since the epoch; waits for the device."""
        if self._end is None:
            return None, None
        self._end.synchronize()
        return self._anchor.when(self._start), self._anchor.when(self._end)


class CudaAnchor:
    """A moment known on both clocks, the host's and the device's."""

    def __init__(self, clock: Clock) -> None:
        self._event = torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        self._host = clock()
        self._event.record()

    def when(self, event: Any) -> int:
        """Host nanoseconds of a completed event."""
        return self._host + round(float(self._event.elapsed_time(event)) * 1e6)
