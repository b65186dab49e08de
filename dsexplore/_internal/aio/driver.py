"""Move a table of requests through an engine, with DeepSpeed's ways of submitting and reaping.

Users' transfers and the sweep's measurements share this one loop. Guarantees, with every engine:

- ``overlap_events=False``: up to ``depth`` requests are submitted, and all of them reaped before the next batch;
  ``True``: the queue is kept full, and at least one request is reaped at a time.
- ``single_submit=True``: one request per submission; otherwise as many as fit the queue.
- A full queue is kept full by the engine's own loop if it has one, in C (`compiled_loop`) or in Python.
- Finished requests are replaced before Python examines them: the disk does not wait for Python. A request that fails is
  noticed after at most 64 more, and two queues; by C immediately.
- The result of every request is checked. A short one is completed, an interrupted one repeated, a failed one is raised
  as OSError after all others in flight have finished, since they still write into the caller's memory. While a
  `DriveMonitor` measures, each of the three is an error.
- An exception of any kind leaves nothing in flight.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Any, NamedTuple

import numpy as np

from dsexplore._internal.aio.backends.base import LAP, CompiledEngine, Completions, Engine, FlowingEngine, Requests
from dsexplore._internal.aio.backends.compiled_loop import Steady
from dsexplore._internal.aio.staging import Slots

_SUBMISSION_TRIES = 50
"""Number of times a submission is retried, a millisecond apart, if the system has no room and nothing is in flight."""
_LONGEST_CALL = 0.1
"""Seconds of one call of the compiled loop. Python takes some 0.4 ms between two calls, during which a queue of one
request is empty."""


class Policy(NamedTuple):
    """Way to submit and reap requests; see the module's docstring."""

    single_submit: bool
    overlap_events: bool


@dataclass(slots=True)
class DriveMonitor:
    """Stops drives at a deadline, and records their bytes and each request's latency; threads may share one."""

    deadline: float
    """Time on ``clock`` after which nothing is submitted, except one batch by a drive that starts late."""
    clock: Callable[[], float] = time.perf_counter
    latencies: list[float] = field(default_factory=list)
    """Seconds from the submission of each request until its completion was noticed."""
    ranges: list[tuple[int, int]] = field(default_factory=list)
    """(file offset, bytes) of each drive."""


class _Times:
    """Times of submission and completion of each request of one table.

    One reading of the clock serves both: what is submitted right after a wait starts when the wait ends.
    """

    def __init__(self, watch: DriveMonitor, total: int) -> None:
        self._watch, self.begun, self.latencies = watch, np.zeros(total), np.empty(total)
        self._begun: Any = self.begun.data
        self._finished = 0
        self._looks: list[tuple[int, float]] = []
        self.look(0)

    def look(self, following: int) -> None:
        """Record the time after a wait; `following` is the index of the next request to submit."""
        self._now = self._watch.clock()
        self._looks.append((following, self._now))

    def note(self, completions: Completions, following: int) -> list[tuple[int, int]]:
        """Record the latencies of the requests that completed since the last call, in order, and return them.

        Each wait but the last returned as many completions as requests were submitted after it.
        """
        done = list(completions)
        looks, begun, latencies, rest = self._looks, self._begun, self._watch.latencies, iter(done)
        for (first, now), (after, _) in pairwise([*looks, (following, 0.0)]):
            for index in range(first, after):
                begun[index] = now
        for (first, now), (after, _) in pairwise(looks):
            latencies.extend(now - begun[index] for index, _ in islice(rest, after - first))
        latencies.extend(self._now - begun[index] for index, _ in rest)
        self._looks = [(following, self._now)]
        return done

    def ran(self, steady: Steady) -> None:
        """Continue after the compiled loop, which has recorded start times and latencies itself."""
        self._now, self._finished = steady.now, steady.finished
        self._looks = [(steady.first, steady.now)]
        if not steady.ready:  # its last wait failed, and the engine has waited anew
            self.look(steady.first)

    def close(self, offset: int, nbytes: int) -> None:
        """Pass the latencies of the compiled loop, and the bytes of the table, to the watch."""
        self._watch.latencies.extend(self.latencies[: self._finished].tolist())
        self._watch.ranges.append((offset, nbytes))

    @property
    def deadline(self) -> float:
        """Watch's deadline, which may change at any time."""
        return self._watch.deadline

    @property
    def is_monotonic(self) -> bool:
        """True if the clock is the one that the compiled loop reads."""
        return self._watch.clock is time.perf_counter

    @property
    def is_over(self) -> bool:
        """True if the watch's deadline had passed at the last reading of the clock."""
        return self._now >= self._watch.deadline


class _Compiled:
    """The steady part of one transfer in C, in short calls, since Python handles signals only in between."""

    def __init__(
        self, engine: CompiledEngine, requests: Requests, policy: Policy, slots: Slots | None, times: _Times | None
    ) -> None:
        self._engine, self._requests, self._times = engine, requests, times
        depth = engine.depth
        self._steady = Steady(
            minimum=1 if policy.overlap_events else depth,
            depth=depth,
            step=1 if policy.single_submit else depth,
            length=int(requests.lengths[0]),
            addresses=None if slots is None else requests.addresses.ctypes.data,
            begun=None if times is None else times.begun.ctypes.data,
            latencies=None if times is None else times.latencies.ctypes.data,
        )

    def __call__(self, first: int, end: int) -> tuple[int, int]:
        steady, times = self._steady, self._times
        steady.first, steady.end, steady.until = first, end, time.perf_counter() + _LONGEST_CALL
        if times is not None:
            steady.until = min(steady.until, times.deadline)
        ready = self._engine.run(steady)
        if times is not None:
            times.ran(steady)
        return steady.first, self._engine.in_flight - ready


def _steady_part(
    engine: Engine, requests: Requests, policy: Policy, slots: Slots | None, times: _Times | None
) -> Callable[[int, int], tuple[int, int]] | None:
    """Return the engine's own loop, which keeps a full queue full; None if it has none.

    It takes the range of requests that may be started, as first and end, and returns the index after the last one
    started and the number of unfinished ones.
    """
    if isinstance(engine, CompiledEngine) and engine.is_compiled:
        can_lend, can_time = slots is None or slots.passes_on, times is None or times.is_monotonic
        if can_lend and can_time:
            return _Compiled(engine, requests, policy, slots, times)
    if not isinstance(engine, FlowingEngine) or slots is not None or policy.single_submit:
        return None
    flow, minimum = engine.flow, 1 if policy.overlap_events else engine.depth
    if times is None:
        return lambda first, end: flow(first, end, minimum)
    look = times.look
    return lambda first, end: flow(first, min(end, first + LAP - 1), minimum, look)


def drive(
    engine: Engine,
    requests: Requests,
    policy: Policy,
    plain_fd: Callable[[], int],
    slots: Slots | None,
    watch: DriveMonitor | None = None,
) -> None:
    """Move all requests; return when every byte has been moved, or at the watch's deadline.

    Args:
        plain_fd: opens the same file without O_DIRECT, to complete short direct requests.
        slots: the memory for requests that have no address of their own.
        watch: records the latencies of requests.

    Raises:
        OSError: the first request that failed; with a watch, also one that fell short. None is in flight any more.
    """
    total, depth, (single, overlap) = len(requests), engine.depth, policy
    if total == 0:
        return
    engine.load(requests)
    wait, take, lengths = engine.wait, engine.take, requests.lengths.tolist()
    times = None if watch is None else _Times(watch, total)
    look = None if times is None else times.look
    steady_part = _steady_part(engine, requests, policy, slots, times)
    odd: list[tuple[int, int]] = []
    following = pending = 0
    try:
        while True:
            if following < total and (overlap or not pending) and not odd:
                accepted = _submit(engine, requests, slots, following, min(depth - pending, total - following), single)
                following += accepted
                pending += accepted
            finished = take() if times is None else times.note(take(), following)
            returned = _sort_out(finished, lengths, odd, slots)
            if times is not None and times.is_over:
                total = following
            if returned and following < total:
                continue  # the queue is filled before the next wait, with the memory that has just come back
            if steady_part is not None and pending == depth and following < total and not odd:
                following, pending = steady_part(following, total)
            elif pending:
                pending -= wait(1 if overlap else pending)
                if look is not None:
                    look(following)
            elif odd:
                _settle(requests, odd, plain_fd, slots, may_complete=watch is None)
                odd.clear()
            elif following == total:
                break
    finally:
        drain(engine)
    if times is not None:
        times.close(int(requests.offsets[0]), sum(lengths[:total]))


def _sort_out(finished: Completions, lengths: list[int], odd: list[tuple[int, int]], slots: Slots | None) -> bool:
    """Add requests that fell short or failed to `odd`, give back the memory of the others; return True if any was."""
    returned = False
    for index, result in finished:
        if result != lengths[index]:
            odd.append((index, result))
        elif slots is not None:
            slots.give(index, completed=True)
            returned = True
    return returned


def drain(engine: Engine) -> None:
    """Wait for requests in flight, ignoring their results, because an exception is being raised."""
    engine.take()
    while engine.in_flight:
        engine.wait(engine.in_flight)
        engine.take()


def _submit(engine: Engine, requests: Requests, slots: Slots | None, first: int, count: int, single: bool) -> int:
    """Submit up to `count` requests, as many as have memory and as the system accepts now; return their number."""
    if slots is not None:
        count = _lend(engine, requests, slots, first, count)
    if count == 0:
        return 0
    accepted = engine.submit(first, 1 if single else count)
    if accepted < count:
        accepted += _submit_rest(engine, first + accepted, count - accepted, single, slots)
    return accepted


def _submit_rest(engine: Engine, first: int, count: int, single: bool, slots: Slots | None) -> int:
    """Submit as many of `count` requests as the system accepts now; wait for room if nothing is in flight.

    Slots lent to requests that were not accepted are returned.
    """
    accepted = tries = 0
    while accepted < count:
        submitted = engine.submit(first + accepted, 1 if single else count - accepted)
        accepted += submitted
        if submitted == 0:
            if engine.in_flight:
                break
            tries += 1
            if tries > _SUBMISSION_TRIES:
                raise OSError(errno.EAGAIN, f"the system takes no request, {_SUBMISSION_TRIES} times in a row")
            time.sleep(0.001)
    if slots is not None:
        for index in range(first + accepted, first + count):
            slots.give(index, completed=False)
    return accepted


def _lend(engine: Engine, requests: Requests, slots: Slots, first: int, count: int) -> int:
    for index in range(first, first + count):
        address = slots.take(index)
        if address is None:
            return index - first
        requests.addresses[index] = address
        engine.place(index, address)
    return count


_NO_BYTES = (
    errno.EAGAIN,
    errno.EINTR,
    errno.EINVAL,  # a filesystem may open a file with O_DIRECT and then refuse direct requests
    errno.ECANCELED,  # io_uring gives a request up where signals keep the kernel from starting a thread for it
)
"""Errors of a request that ordinary calls may still complete."""


def _settle(
    requests: Requests,
    odd: list[tuple[int, int]],
    plain_fd: Callable[[], int],
    slots: Slots | None,
    *,
    may_complete: bool,
) -> None:
    """Complete short requests with ordinary calls, while nothing else is in flight; else raise the first in the file.

    Errors in `_NO_BYTES` count as short requests.
    """
    table = requests
    for index, result in sorted(odd):
        if not may_complete and not table.write and 0 <= result < table.lengths[index]:
            raise _shortened(table.fd, int(table.offsets[index] + result), int(table.lengths[index] - result))
        if not may_complete or (result < 0 and -result not in _NO_BYTES):
            raise _failure(result, int(table.lengths[index]))
        nbytes = max(result, 0)
        move_plainly(
            table.write,
            plain_fd(),
            int(table.addresses[index]) + nbytes,
            int(table.lengths[index]) - nbytes,
            int(table.offsets[index]) + nbytes,
        )
        if slots is not None:
            slots.give(index, completed=True)


def move_plainly(write: bool, fd: int, address: int, nbytes: int, offset: int) -> None:
    """Move every byte by ordinary calls, through the page cache.

    Raises:
        OSError: a call failed; ENODATA if the file ends before the last byte.
    """
    memory = memoryview((ctypes.c_char * nbytes).from_address(address)).cast("B") if nbytes else memoryview(b"")
    at = 0
    while at < nbytes:
        part = memory[at:]
        written = os.pwritev(fd, [part], offset + at) if write else os.preadv(fd, [part], offset + at)
        if written == 0:
            if write:
                raise OSError(errno.EIO, f"a write of {nbytes - at} bytes at offset {offset + at} moved nothing")
            raise _shortened(fd, offset + at, nbytes - at)
        at += written


def _shortened(fd: int, offset: int, nbytes: int) -> OSError:
    """Return the error for a read that found no bytes where the file had some when the transfer began."""
    state = os.fstat(fd)
    if stat.S_ISREG(state.st_mode) and state.st_size < offset + nbytes:
        end = offset + nbytes
        text = f"the file ends at byte {state.st_size}, before byte {end}: it was shortened while it was read"
        return OSError(errno.ENODATA, text)
    return OSError(errno.ENODATA, f"no bytes came from offset {offset}, {nbytes} bytes too early")


def _failure(result: int, wanted: int) -> OSError:
    if result < 0:
        return OSError(-result, os.strerror(-result))
    return OSError(errno.EIO, f"{result} of {wanted} bytes moved")
