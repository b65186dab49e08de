"""Records when a collective began and ended, in the way that its backend allows.

| backend | timing | start | end |
|---|---|---|---|
| fake | none | – | – |
| nccl, on tensors of a GPU | cuda | event on the device's current stream | event after the work, on its stream |
| nccl, in a batch | cuda | event on the device's current stream | event on that stream, after the wait for the batch |
| gloo, mpi, ucc | work | host clock at issue | host clock when the work's future completes |
| works without a future (send, recv) | work | host clock at issue | host clock when `wait` or else the call returns |

NCCL runs collectives that are not async on the current stream, and those of one group in sequence: each starts when the
one before has ended. Collectives that `dsexplore.comm` issues and waits for end when its call returns, see `Label`.

The recorder waits for no collective, so it does not change overlap. This module records the ends of works, and
`device_timing` records CUDA events. `stopwatch` uses both.
"""

from __future__ import annotations

import re
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist

from dsexplore._internal.trace.schema import Timing

Clock = Callable[[], int]
"""Nanoseconds since the Unix epoch."""


class Timed(Protocol):
    """The times of one collective, which a measurement fills in."""

    start: int | None
    """Nanoseconds since the epoch; None if it is not measured on the host."""
    end: int | None
    """Nanoseconds since the epoch; None while it runs, and if it is not measured on the host."""
    failure: str
    """``"failed: RuntimeError"`` for one that failed, which has no end; else empty."""
    ends_at_return: bool
    """True if the end is the time at which the op returned, until the program waits for it: its work has no future that
    reports the end."""
    waited: int | None
    """Nanoseconds for which it blocked the program; None if that was not observed."""
    is_async: bool


def timing_of(backend: str) -> Timing:
    """Return how the collectives of a backend are timed; ``backend`` is the text that torch gives a process group."""
    if backend == "fake" or backend.endswith(":fake"):
        return "none"
    return "cuda" if "nccl" in backend else "work"


def work_of(result: Any) -> Any:
    """Return the ``Work`` in a c10d op's result; None if there is none."""
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
    """Return the future of a work; None if it has none, such as gloo's send and recv."""
    if work is None or isinstance(work, torch.futures.Future):
        return work
    try:
        return work.get_future()
    except RuntimeError:
        return None


def end_at_completion(event: Timed, work: Any, clock: Clock) -> None:
    """Set ``event.end`` when the work is done; at once if the work has no future (`Timed.ends_at_return`)."""
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
    """Set the end, or the failure, of a collective whose future has completed."""
    now = clock()
    try:
        future.value()
    except Exception as error:
        fail(event, error)
    else:
        if event.end is None:  # another thread may have set it while the clock was read
            event.end = now


_OF_TRANSPORT = re.compile(r"\[(?!enforce )[^\]]*/gloo/transport/[^\]]*:\d+\] ")
"""The beginning of gloo's messages about a connection that a peer has closed or that has timed out."""


def is_failure(error: BaseException) -> bool:
    """Return True if a backend could not communicate; False if it refused the call, as for a tensor of a wrong shape.

    Gloo raises a RuntimeError in both cases. Errors of its connections name a source file of its transport.
    """
    return isinstance(error, dist.DistError) or _OF_TRANSPORT.match(str(error)) is not None


def fail(event: Timed, error: BaseException) -> None:
    """Record that a collective failed; it has no end then."""
    event.end = None
    event.failure = f"failed: {type(error).__name__}"


class InFlight:
    """Works that may still run. Each is held until the first collective after its end.

    They are not held longer, as a work keeps its tensors alive, and the next step would need more memory. When
    gradients were held for a second, the steps of tutorial 05 took 1.5 times as long.
    """

    def __init__(self) -> None:
        self._works: deque[tuple[Timed, Any]] = deque()
        """(collective, work) pairs that are held, in order of issue."""
        self.events: dict[int, Timed] = {}
        """{id of a work: its collective}, for works that are held, and for works without a future while they live."""
        self._awaitable: dict[int, weakref.ref[Any]] = {}
        """{id of a work without a future: weak reference}; the program may still wait for the work."""
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._works)

    def add(self, event: Timed, work: Any) -> None:
        """Hold a work, and release earlier ones that are done."""
        works = self._works
        with self._lock:
            while works and (works[0][0].end is not None or works[0][0].failure):
                ended, ended_work = works.popleft()
                if ended.ends_at_return and ended_work is not None:
                    self._expect_wait(ended_work)
                else:
                    self.events.pop(id(ended_work), None)
                if ended.waited is None and ended.is_async and not ended.failure:
                    ended.waited = 0  # it ended while the program went on
            works.append((event, work))
            if work is not None:
                self.events[id(work)] = event

    def _expect_wait(self, work: Any) -> None:
        """Keep the collective of a work as long as the work lives, as the program may wait for it."""
        identity = id(work)

        def forget(_: object) -> None:
            self.events.pop(identity, None)
            self._awaitable.pop(identity, None)

        self._awaitable[identity] = weakref.ref(work, forget)

    def settle(self, clock: Clock) -> None:
        """Record the ends of works that are done but whose callbacks still wait for the GIL.

        A program that waits for a work's future, as DDP does, may continue before the callbacks run.
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
        self._awaitable.clear()
