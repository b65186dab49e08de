"""Move a table of requests with an engine, in DeepSpeed's ways of submitting and reaping.

Transfers of users and measurements of the sweep share this loop. Guarantees, with every engine:

- ``overlap_events=False``: up to ``depth`` requests are submitted, and all of them are reaped before the next batch.
  ``True``: the queue is kept full, and at least one request is reaped at a time.
- ``single_submit=True``: one request per submission; otherwise as many as fit into the queue.
- A full queue is kept full by the engine's own loop if it has one, in C (`compiled_loop`) or in Python.
- Finished requests are replaced before Python examines them, so that the disk does not wait for Python. The loop in C
  notices a failed request immediately, the loop in Python after at most 64 more requests and two queues.
- The result of every request is checked. A short request is completed, an interrupted one is repeated. A failed one
  raises OSError, but only when all others in flight have finished, since they still write into the caller's memory.
  While a `DriveMonitor` measures, all three raise.
- No exception leaves a request in flight.
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
"""Number of times that a submission is retried, each after a millisecond, if the system has no room although nothing is
in flight."""
_LONGEST_CALL = 0.1
"""Seconds of one call of the compiled loop. Between two calls Python takes some 0.4 ms, in which a queue of one request
is empty."""


class Policy(NamedTuple):
    """Way to submit and reap requests; see the module's docstring."""

    single_submit: bool
    overlap_events: bool


@dataclass(slots=True)
class DriveMonitor:
    """Stops calls of `drive` at a deadline, and records their latencies and bytes; threads may share one."""

    deadline: float
    """Time of `clock` after which nothing is submitted, except one batch of a call that starts later."""
    clock: Callable[[], float] = time.perf_counter
    """Returns seconds."""
    latencies: list[float] = field(default_factory=list)
    """Seconds from the submission of each request until its completion was noticed."""
    ranges: list[tuple[int, int]] = field(default_factory=list)
    """(file offset, bytes) that each call has moved."""


class _Times:
    """Times of submission and completion of each request of one table.

    The clock is read once per wait: the requests that are submitted right after a wait start when the wait ends.
    """

    def __init__(self, watch: DriveMonitor, total: int) -> None:
        self._watch = watch
        self.begun = np.zeros(total)
        """(requests,) time of submission."""
        self.latencies = np.empty(total)
        """(requests,) latencies that the compiled loop records, in order of completion."""
        self._begun: Any = self.begun.data
        self._finished = 0
        self._waits: list[tuple[int, float]] = []
        """(index of the next request, time) after each wait since the last call of `note`."""
        self.add_wait(0)

    def add_wait(self, following: int) -> None:
        """Record the time after a wait; `following` is the index of the next request to submit."""
        self._now = self._watch.clock()
        self._waits.append((following, self._now))

    def note(self, completions: Completions, following: int) -> list[tuple[int, int]]:
        """Record the latencies of completed requests, and return these in the order of completion.

        Each wait but the last has returned as many completions as requests were submitted after it.

        Args:
            completions: requests that completed since the last call.
            following: index of the next request to submit.
        """
        finished = list(completions)
        remaining = iter(finished)
        waits, begun, latencies = self._waits, self._begun, self._watch.latencies
        for (first, now), (end, _) in pairwise([*waits, (following, 0.0)]):
            for index in range(first, end):
                begun[index] = now
        for (first, now), (end, _) in pairwise(waits):
            latencies.extend(now - begun[index] for index, _ in islice(remaining, end - first))
        latencies.extend(self._now - begun[index] for index, _ in remaining)
        self._waits = [(following, self._now)]
        return finished

    def ran(self, steady: Steady) -> None:
        """Continue after a call of the compiled loop, which has recorded start times and latencies itself."""
        self._now, self._finished = steady.now, steady.finished
        self._waits = [(steady.first, steady.now)]
        if not steady.ready:  # its last wait failed, and the engine has waited again
            self.add_wait(steady.first)

    def close(self, offset: int, nbytes: int) -> None:
        """Add the latencies of the compiled loop, and the range of the file that was moved, to the monitor."""
        self._watch.latencies.extend(self.latencies[: self._finished].tolist())
        self._watch.ranges.append((offset, nbytes))

    @property
    def deadline(self) -> float:
        """Deadline of the monitor, which may change at any time."""
        return self._watch.deadline

    @property
    def is_monotonic(self) -> bool:
        """True if the clock is the one that the compiled loop reads."""
        return self._watch.clock is time.perf_counter

    @property
    def is_over(self) -> bool:
        """True if the deadline had passed when the clock was last read."""
        return self._now >= self._watch.deadline


class _Compiled:
    """The compiled loop on one table, in short calls, since Python handles signals only between them."""

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
    """Return the engine's own loop, which keeps a full queue full; None if it has none for this transfer.

    Its arguments are the indices of the first request that may be started and after the last one. It returns the index
    after the last request started, and the number of unfinished requests.
    """
    if isinstance(engine, CompiledEngine) and engine.is_compiled:
        can_lend = slots is None or slots.passes_on
        can_time = times is None or times.is_monotonic
        if can_lend and can_time:
            return _Compiled(engine, requests, policy, slots, times)
    if not isinstance(engine, FlowingEngine) or slots is not None or policy.single_submit:
        return None
    flow, minimum = engine.flow, 1 if policy.overlap_events else engine.depth
    if times is None:
        return lambda first, end: flow(first, end, minimum)
    on_wait = times.add_wait
    return lambda first, end: flow(first, min(end, first + LAP - 1), minimum, on_wait)


def drive(
    engine: Engine,
    requests: Requests,
    policy: Policy,
    plain_fd: Callable[[], int],
    slots: Slots | None,
    watch: DriveMonitor | None = None,
) -> None:
    """Move all requests; return when every byte has been moved, or at the deadline of `watch`.

    Args:
        engine: the engine that moves the requests.
        requests: the table of requests.
        policy: way to submit and reap requests.
        plain_fd: returns a descriptor of the same file without O_DIRECT, to complete short direct requests.
        slots: memory for requests without an address; None if all have one.
        watch: records latencies and bytes; None to measure nothing.

    Raises:
        OSError: the first request that failed, or with `watch` fell short. No request is in flight then.
    """
    total, depth, (single, overlap) = len(requests), engine.depth, policy
    if total == 0:
        return
    engine.load(requests)
    wait, take, lengths = engine.wait, engine.take, requests.lengths.tolist()
    times = None if watch is None else _Times(watch, total)
    on_wait = None if times is None else times.add_wait
    steady_part = _steady_part(engine, requests, policy, slots, times)
    unsettled: list[tuple[int, int]] = []  # (index, result) of requests that failed or fell short
    following = pending = 0  # index of the next request to submit, number of requests in flight
    try:
        while True:
            if following < total and (overlap or not pending) and not unsettled:
                count = min(depth - pending, total - following)
                accepted = _submit(engine, requests, slots, first=following, count=count, single=single)
                following += accepted
                pending += accepted
            finished = take() if times is None else times.note(take(), following)
            has_free_slots = _sort_out(finished, lengths, unsettled, slots)
            if times is not None and times.is_over:
                total = following
            if has_free_slots and following < total:
                continue  # submit requests with the returned memory before the next wait
            if steady_part is not None and pending == depth and following < total and not unsettled:
                following, pending = steady_part(following, total)
            elif pending:
                pending -= wait(1 if overlap else pending)
                if on_wait is not None:
                    on_wait(following)
            elif unsettled:
                _settle(requests, unsettled, plain_fd, slots, may_complete=watch is None)
                unsettled.clear()
            elif following == total:
                break
    finally:
        drain(engine)
    if times is not None:
        times.close(int(requests.offsets[0]), sum(lengths[:total]))


def _sort_out(finished: Completions, lengths: list[int], unsettled: list[tuple[int, int]], slots: Slots | None) -> bool:
    """Add requests that failed or fell short to `unsettled`, return the slots of the others; True if there are any."""
    has_free_slots = False
    for index, result in finished:
        if result != lengths[index]:
            unsettled.append((index, result))
        elif slots is not None:
            slots.give(index, completed=True)
            has_free_slots = True
    return has_free_slots


def drain(engine: Engine) -> None:
    """Wait for all requests in flight, and ignore their results."""
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
        accepted += _submit_rest(engine, first + accepted, count - accepted, single=single, slots=slots)
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
    """Give requests a slot each, as long as there are free ones; return the number of requests with a slot."""
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
    errno.ECANCELED,  # io_uring gives a request up if signals keep the kernel from starting a thread for it
)
"""Errors of requests that have moved nothing, and that ordinary calls may still complete."""


def _settle(
    requests: Requests,
    unsettled: list[tuple[int, int]],
    plain_fd: Callable[[], int],
    slots: Slots | None,
    *,
    may_complete: bool,
) -> None:
    """Complete short requests with ordinary calls, or raise the error of the first one in the file.

    Nothing may be in flight. Requests with an error in `_NO_BYTES` are completed too.

    Args:
        requests: the table of requests.
        unsettled: (index, result) of requests that failed or fell short.
        plain_fd: returns a descriptor of the same file without O_DIRECT.
        slots: memory of requests without an address.
        may_complete: False to raise in every case.
    """
    for index, result in sorted(unsettled):
        length, offset = int(requests.lengths[index]), int(requests.offsets[index])
        if not may_complete and not requests.write and 0 <= result < length:
            raise _shortened(requests.fd, offset + result, length - result)
        if not may_complete or (result < 0 and -result not in _NO_BYTES):
            raise _failure(result, length)
        completed = max(result, 0)
        move_plainly(
            write=requests.write,
            fd=plain_fd(),
            address=int(requests.addresses[index]) + completed,
            nbytes=length - completed,
            offset=offset + completed,
        )
        if slots is not None:
            slots.give(index, completed=True)


def move_plainly(write: bool, fd: int, address: int, nbytes: int, offset: int) -> None:
    """Move every byte by ordinary calls, through the page cache unless `fd` is direct.

    Args:
        write: True to write to the file, False to read from it.
        fd: descriptor of the file.
        address: address of the memory.
        nbytes: number of bytes.
        offset: position in the file, in bytes.

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
    """Return the error of a read that found no bytes although the file had them when the transfer began."""
    state = os.fstat(fd)
    if stat.S_ISREG(state.st_mode) and state.st_size < offset + nbytes:
        end = offset + nbytes
        text = f"the file ends at byte {state.st_size}, before byte {end}: it was shortened while it was read"
        return OSError(errno.ENODATA, text)
    return OSError(errno.ENODATA, f"no bytes came from offset {offset}, {nbytes} bytes too early")


def _failure(result: int, wanted: int) -> OSError:
    """Return the error of a request that failed, or that moved fewer bytes than wanted."""
    if result < 0:
        return OSError(-result, os.strerror(-result))
    return OSError(errno.EIO, f"{result} of {wanted} bytes moved")
