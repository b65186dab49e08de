"""When a collective began and when it was done, on the process group's own terms.

| backend | timing | start | end |
|---|---|---|---|
| fake | none | – | – |
| nccl, on tensors of a GPU | cuda | event on the device's current stream | event behind the work, on its stream |
| nccl, in a batch | cuda | event on the device's current stream | event on that stream, behind the wait for the batch |
| gloo, mpi, ucc | work | host clock at issue | host clock when the work's future completes |
| works without a future (send, recv) | host | host clock at issue | host clock when `wait` returned, or else the call |

NCCL runs what is not async on the current stream, and the collectives of a group one after the other: one starts no
earlier than the one before it has ended.

What `dsexplore.comm` issues and waits for itself ends on the host's clock when its call returns, see `labels`.

Nothing waits for any of them, so overlap stays as it was. The ends of works are here, CUDA events in `device_timing`;
`stopwatch` uses both.
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
    end: int | None
    failure: str
    """``"failed: RuntimeError"`` for one that has no end, as it failed."""
    ends_at_return: bool
    """True if the end is the time at which the op returned, until the program waits for it: its work has no future that
    says when it was over."""
    waited: int | None
    """Nanoseconds for which the program stood still for it; None where that was not seen."""
    is_async: bool


def timing_of(backend: str) -> Timing:
    """Return the way in which a backend's collectives are timed."""
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
    """Return the work's future; None if it has none, as gloo's send and recv."""
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
    """Fill in the end of an event with a finished future, or how it failed."""
    now = clock()
    try:
        future.value()
    except Exception as error:
        fail(event, error)
    else:
        if event.end is None:  # no other thread said so while the clock was read
            event.end = now


_OF_TRANSPORT = re.compile(r"\[(?!enforce )[^\]]*/gloo/transport/[^\]]*:\d+\] ")
"""The beginning of a message of gloo's about a connection: closed by a peer that is gone, or out of time."""


def is_failure(error: BaseException) -> bool:
    """Return True if a backend could not communicate; False if it refused the call, as for a tensor of a wrong shape.

    Gloo raises plain errors for both; those of its connections name the file that they come from.
    """
    return isinstance(error, dist.DistError) or _OF_TRANSPORT.match(str(error)) is not None


def fail(event: Timed, error: BaseException) -> None:
    """Note that a collective raised: it has no end, and no duration."""
    event.end = None
    event.failure = f"failed: {type(error).__name__}"


class InFlight:
    """Works that may still run, each held until the next one after its end.

    None is held longer, since a work holds its tensors: if their memory is not free when the next step asks for it,
    more comes from the system. When gradients were held for a second, the steps of tutorial 05 took 1.5 times as long.
    """

    def __init__(self) -> None:
        self._works: deque[tuple[Timed, Any]] = deque()
        self.events: dict[int, Timed] = {}
        """{id of a work: its event}, for works that are held, or alive and unable to report their end."""
        self._there: dict[int, weakref.ref[Any]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._works)

    def add(self, event: Timed, work: Any) -> None:
        """Hold a work, and release earlier ones that are done."""
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
        """Keep the event of a work as long as the program holds the work, and so may wait for it."""
        identity = id(work)

        def forget(_: object) -> None:
            self.events.pop(identity, None)
            self._there.pop(identity, None)

        self._there[identity] = weakref.ref(work, forget)

    def settle(self, clock: Clock) -> None:
        """Record the end of works that are done but whose callbacks have not run yet, for lack of the GIL.

        A program that waits for a work's future, as DDP does, continues before the callbacks are called.
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
