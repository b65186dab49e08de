"""`Stopwatch` measures when each collective began and ended, on the host's clock or on its device's."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from dsexplore._internal.capture.timing.device_timing import (
    CudaAnchor,
    CudaSpan,
    DeviceBatches,
    Mark,
    Spanned,
    device_of,
    is_captured,
    mark_stream,
)
from dsexplore._internal.capture.timing.work_timing import Clock, InFlight, end_at_completion, fail, work_of
from dsexplore._internal.torch_internals.dispatch import leave_to_python
from dsexplore._internal.trace.schema import Timing


class Stopwatch:
    """Measures collectives, each with the timing of its backend.

    Args:
        now: returns nanoseconds since the epoch.
        mark: records events on devices.
        ticks: returns nanoseconds of a monotonic clock, to measure how long the program waits.
    """

    def __init__(self, now: Clock, mark: Mark = mark_stream, ticks: Clock = time.perf_counter_ns) -> None:
        self.now = now
        self._ticks = ticks
        self._mark = mark
        self._in_flight = InFlight()
        self._batches = DeviceBatches()
        self._anchors: dict[int, CudaAnchor] = {}
        self._latest: dict[tuple[object, int], CudaSpan] = {}
        """{(communicator, device): span of its latest collective}."""
        self._wait: Any = None
        """torch's ``Work.wait`` while it is wrapped; else None."""

    def install(self) -> None:
        """Wrap ``Work.wait`` to measure how long programs wait in it."""
        self._batches.install()
        if self._wait is not None:
            return
        self._wait = original = dist.Work.wait
        event_of, batch_waited = self._in_flight.events.get, self._batches.waited
        ticks, now = self._ticks, self.now

        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            event = event_of(id(work))
            if event is None:
                result = original(work, *args, **kwargs)
                batch_waited(work)
                return result
            ends_here = event.ends_at_return and not event.waited  # the first wait shows when the work is over
            if ends_here:
                event.end = None
            begun = ticks()
            try:
                result = original(work, *args, **kwargs)
            except Exception as error:
                if ends_here:
                    fail(event, error)
                raise
            finally:
                event.waited = (event.waited or 0) + ticks() - begun
            if ends_here:
                event.end = now()
            return result

        leave_to_python(wait.__code__)
        dist.Work.wait = wait  # type: ignore[method-assign, assignment]

    def begin(self, event: Spanned, timing: Timing, args: Sequence[Any], communicator: object = None) -> None:
        """Record the start of a collective that is about to be issued.

        A collective that is captured in a CUDA graph does not run now, and gets no times.

        Args:
            event: the collective.
            timing: how its group's collectives are timed.
            args: the op's arguments.
            communicator: a key that all collectives share that a device runs in sequence; None if it is unknown.
        """
        device = device_of(args) if timing == "cuda" else None
        if device is None:
            event.start = self.now()
            return
        if is_captured():
            return
        anchor = self._anchors.get(device)
        if anchor is None:
            anchor = self._anchors[device] = CudaAnchor(device, self.now, self._mark)
        event.span = CudaSpan(anchor, self._mark, self._latest.get((communicator, device)))
        if communicator is not None:
            self._latest[communicator, device] = event.span

    def follow(self, event: Spanned, result: Any) -> None:
        """Record the end of a collective when its work completes; its op has returned ``result``."""
        if event.span is not None:
            if not self._batches.takes(event):
                event.span.watch(result, runs_here=not event.is_async)
            return
        if event.start is None:
            return
        work = work_of(result)
        end_at_completion(event, work, self.now)
        self._in_flight.add(event, work)

    def end(self, event: Spanned) -> None:
        """Record the end of a collective now; on a device, when its current stream reaches this point."""
        if event.span is not None:
            event.span.finish()
        else:
            self.end_on_host(event)

    def end_on_host(self, event: Spanned) -> None:
        """Record the end of a collective now, if it is measured on the host and has no end yet."""
        if event.end is None and event.start is not None and not event.failure:
            now = self.now()
            if event.end is None:  # another thread may have set it while the clock was read
                event.end = now

    def settle(self) -> None:
        """Record the ends of completed works whose callbacks have not run yet, see `InFlight.settle`."""
        self._in_flight.settle(self.now)

    def release(self) -> None:
        """Drop all references, and restore ``Work.wait``."""
        if self._wait is not None:
            dist.Work.wait, self._wait = self._wait, None  # type: ignore[method-assign]
        self._batches.release()
        self._in_flight.release()
        self._anchors.clear()
        self._latest.clear()
