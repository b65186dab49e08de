"""When a collective began and when it was done, on the process group's own terms.

| backend | timing | start | end |
|---|---|---|---|
| fake | none | – | – |
| nccl, on tensors of a GPU | cuda | event on the device's current stream | event behind the work, on its stream |
| gloo, mpi, ucc | work | host clock at issue | host clock when the work's future completes |
| works without a future (send, recv) | host | host clock at issue | host clock when `wait` returned, or else the call |

NCCL runs what is not async on the current stream.

What `dsexplore.comm` issues and waits for itself ends on the host's clock when its call returns, see `labels`.

Nothing waits here, but once for each device to relate its clock to the host's: overlap stays as it was.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist

from dsexplore.capture.uncompiled import leave_to_python
from dsexplore.trace.schema import Timing

Clock = Callable[[], int]
"""Nanoseconds since the Unix epoch."""


class Timed(Protocol):
    """The times of one collective, which a measurement fills in."""

    start: int | None
    end: int | None
    failure: str
    """``"failed: RuntimeError"`` for one that has no end, as it failed."""
    ends_at_return: bool
    """Whether the end is the time at which the op returned, until the program waits for it: its work has no future that
    says when it was over."""
    waited: int | None
    """Nanoseconds for which the program stood still for it; None where that was not seen."""
    is_async: bool


def timing_of(backend: str) -> Timing:
    """How a backend's collectives are measured."""
    if backend == "fake" or backend.endswith(":fake"):
        return "none"
    return "cuda" if "nccl" in backend else "work"


def work_of(result: Any) -> Any:
    """The ``Work`` in a c10d op's result; None where there is none."""
    candidate = result[-1] if isinstance(result, tuple) and result else result
    if isinstance(candidate, dist.Work):
        return candidate
    if isinstance(candidate, torch.ScriptObject):
        try:
            return dist.Work.unbox(candidate)
        except (RuntimeError, AttributeError):
            return None
    return None


def future_of(work: Any) -> Any:
    """The work's future; None where it has none, as gloo's send and recv."""
    if work is None or isinstance(work, torch.futures.Future):
        return work
    try:
        return work.get_future()
    except RuntimeError:
        return None


def end_at_completion(event: Timed, work: Any, clock: Clock) -> None:
    """Fill in ``event.end`` when the work is done; at once, if it cannot say when (`Timed.ends_at_return`)."""
    future = future_of(work)
    if future is None:
        event.ends_at_return = True
        event.end = clock()
        return

    def done(future: Any) -> None:
        if event.end is None:
            _end(event, future, clock)

    future.add_done_callback(done)


def _end(event: Timed, future: Any, clock: Clock) -> None:
    """Fill in the end of an event whose future is done, or how it failed."""
    now = clock()
    try:
        future.value()
    except Exception as error:
        fail(event, error)
    else:
        if event.end is None:  # no other thread said so while the clock was read
            event.end = now


def fail(event: Timed, error: BaseException) -> None:
    """Note that a collective raised: it has no end, and no duration."""
    event.end = None
    event.failure = f"failed: {type(error).__name__}"


class InFlight:
    """Works that may still run, each held until the next one after its end.

    None is held longer: a work holds its tensors, and memory that is not free when the next step asks for it has to
    come from the system (half as long again for the steps of tutorial 05, whose gradients were held for a second).
    """

    def __init__(self) -> None:
        self._works: deque[tuple[Timed, Any]] = deque()
        self.events: dict[int, Timed] = {}
        """By the identity of a work that is held, or that says nothing of its end and is there: its event."""
        self._there: dict[int, weakref.ref[Any]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._works)

    def add(self, event: Timed, work: Any) -> None:
        """Hold a work, and let go of those before it that are done."""
        works = self._works
        with self._lock:
            while works and (works[0][0].end is not None or works[0][0].failure):
                over, of_it = works.popleft()
                if over.ends_at_return and of_it is not None:
                    self._expect_wait(of_it)
                else:
                    self.events.pop(id(of_it), None)
                if over.waited is None and over.is_async and not over.failure:
                    over.waited = 0  # it ended while the program went on
            works.append((event, work))
            if work is not None:
                self.events[id(work)] = event

    def _expect_wait(self, work: Any) -> None:
        """Know the event of a work as long as the program holds it, which may still wait for it."""
        identity = id(work)

        def forget(_: object) -> None:
            self.events.pop(identity, None)
            self._there.pop(identity, None)

        self._there[identity] = weakref.ref(work, forget)

    @property
    def ended(self) -> int:
        """How many of the works held have ended."""
        with self._lock:
            return sum(event.end is not None or bool(event.failure) for event, _ in self._works)

    def settle(self, clock: Clock) -> None:
        """Fill in the end of works that are done, but whose thread has not got Python's lock yet to say so.

        Who waits for a work's future, as DDP does, goes on before its callbacks are called.
        """
        with self._lock:
            running = [(event, work) for event, work in self._works if event.end is None and not event.failure]
        for event, work in running:
            future = future_of(work)
            if future is not None and future.done() and event.end is None:
                _end(event, future, clock)

    def release(self) -> None:
        """Drop the references to all works."""
        self._works.clear()
        self.events.clear()
        self._there.clear()


class Spanned(Timed, Protocol):
    """A collective that is measured on a device, where its backend works there."""

    span: CudaSpan | None
    batch: int | None
    """The number of those that are launched together; None for one alone."""


Mark = Callable[[int], Any]
"""Records a timing event on the current stream of the device of that number, and returns it."""


def mark_stream(device: int) -> Any:
    """Record a CUDA event on the device's current stream."""
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


class Stopwatch:
    """Measures collectives, each on its backend's own terms.

    Args:
        now: nanoseconds since the epoch.
        mark: records events on devices.
        ticks: nanoseconds of a clock that does not jump, for how long programs stand still.
    """

    def __init__(self, now: Clock, mark: Mark = mark_stream, ticks: Clock = time.perf_counter_ns) -> None:
        self.now = now
        self._ticks = ticks
        self._mark = mark
        self._in_flight = InFlight()
        self._anchors: dict[int, CudaAnchor] = {}
        self._wait: Any = None

    def install(self) -> None:
        """Measure how long programs stand still in ``Work.wait``: its original is called by a function of ours."""
        if self._wait is not None:
            return
        self._wait = original = dist.Work.wait
        event_of, ticks, now = self._in_flight.events.get, self._ticks, self.now

        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            event = event_of(id(work))
            if event is None:
                return original(work, *args, **kwargs)
            ends_here = event.ends_at_return and not event.waited  # its first wait says when it is over
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

    def begin(self, event: Spanned, timing: Timing, args: Sequence[Any]) -> None:
        """Record the start of ``event``, a collective with these arguments that is about to be issued."""
        device = device_of(args) if timing == "cuda" else None
        if device is None:
            event.start = self.now()
            return
        anchor = self._anchors.get(device)
        if anchor is None:
            anchor = self._anchors[device] = CudaAnchor(device, self.now, self._mark)
        event.span = CudaSpan(anchor, self._mark)

    def follow(self, event: Spanned, result: Any) -> None:
        """Record the end of ``event`` when its work completes; its op has returned ``result``."""
        if event.span is not None:
            event.span.watch(result, runs_here=not event.is_async and event.batch is None)
            return
        work = work_of(result)
        end_at_completion(event, work, self.now)
        self._in_flight.add(event, work)

    def end(self, event: Spanned) -> None:
        """Record the end of ``event`` now; on a device, when its current stream reaches this point."""
        if event.span is not None:
            event.span.finish()
        else:
            self.end_on_host(event)

    def end_on_host(self, event: Spanned) -> None:
        """Record now as the end of ``event``, if it is measured on the host and has no end yet."""
        if event.end is None and event.start is not None and not event.failure:
            now = self.now()
            if event.end is None:  # no other thread said so while the clock was read
                event.end = now

    @property
    def ended(self) -> int:
        """How many of the collectives that may still run have ended, of those held; changes whenever one ends."""
        return self._in_flight.ended

    def settle(self) -> None:
        """See `InFlight.settle`."""
        self._in_flight.settle(self.now)

    def release(self) -> None:
        """Hold nothing any more, and give ``Work.wait`` back."""
        if self._wait is not None:
            dist.Work.wait, self._wait = self._wait, None  # type: ignore[method-assign]
        self._in_flight.release()
        self._anchors.clear()


def device_of(args: Sequence[Any]) -> int | None:
    """The CUDA device of a collective's first tensor; None for one on the CPU, which is timed on the host.

    A collective without tensors works on the current device, where there is one.
    """
    tensor = next(_tensors(args), None)
    if tensor is not None:
        return tensor.get_device() if tensor.is_cuda else None
    return torch.cuda.current_device() if torch.cuda.is_initialized() else None


def _tensors(args: Sequence[Any]) -> Iterator[torch.Tensor]:
    for arg in args:
        if isinstance(arg, torch.Tensor):
            yield arg
        elif isinstance(arg, (list, tuple)):
            yield from _tensors(arg)


class CudaSpan:
    """Start and end of a collective on its device, as CUDA events, which are read when a table is made.

    Args:
        anchor: of the device.
        mark: records events on it.
    """

    def __init__(self, anchor: CudaAnchor, mark: Mark = mark_stream) -> None:
        self._anchor = anchor
        self._mark = mark
        self._start = mark(anchor.device)
        self._end: Any = None

    def watch(self, result: Any, runs_here: bool) -> None:
        """Record the end behind the work, on the stream that its future's callbacks run on.

        Args:
            result: what the op returned.
            runs_here: whether a work without a future runs on the current stream, as NCCL's do that are not async; of
                one that is launched later, in a batch, the end is not known.
        """
        future = future_of(work_of(result))
        if future is not None:
            future.then(lambda _future: self.finish())
        elif runs_here:
            self.finish()

    def finish(self) -> None:
        """Record the end on the current stream; the first call counts."""
        if self._end is None:
            self._end = self._mark(self._anchor.device)

    @property
    def has_end(self) -> bool:
        """Whether its end stands on a stream, which may not have got there."""
        return self._end is not None

    @property
    def is_over(self) -> bool:
        """Whether the device has got to the end."""
        return self._end is not None and bool(self._end.query())

    def read(self) -> tuple[int, int]:
        """Start and end in nanoseconds since the epoch, once it `has_end`; waits for the device."""
        self._end.synchronize()
        return self._anchor.when(self._start), self._anchor.when(self._end)


class CudaAnchor:
    """A moment known on both clocks, the host's and one device's: events of two devices cannot be compared.

    Args:
        device: its number.
        now: the host's clock.
        mark: records events on the device.
    """

    def __init__(self, device: int, now: Clock, mark: Mark = mark_stream) -> None:
        self.device = device
        self._event = mark(device)
        self._event.synchronize()  # once per device and recording
        self._host = now()

    def when(self, event: Any) -> int:
        """Host nanoseconds of a completed event."""
        return self._host + round(float(self._event.elapsed_time(event)) * 1e6)
