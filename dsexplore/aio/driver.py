"""Moves a table of requests through an engine, with DeepSpeed's ways of submitting and reaping.

What must hold, whichever engine runs:

- ``overlap_events=False``: up to ``depth`` requests are submitted, and all of them reaped before the next batch;
  ``True``: the queue is kept full, and at least one request is reaped at a time.
- ``single_submit=True``: one request per submission; else whatever fits the queue.
- What has finished is replaced before it is looked at: the disk does not wait for Python. A request that fails is
  noticed after at most 64 more, and two queues.
- The result of every request is looked at. A short one is completed, an interrupted one repeated, a failed one is
  raised as OSError after all others in flight have finished, since they still write into the caller's memory.
- An exception of any kind leaves nothing in flight.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from dsexplore.aio.backends.base import Engine, Requests

_PATIENCE = 50
"""How often a submission is tried again, a millisecond apart, when the system is out of room with nothing in flight."""


class Policy(NamedTuple):
    """How requests are submitted and reaped; see the module's text."""

    single_submit: bool
    overlap_events: bool


class Slots(Protocol):
    """Memory that requests borrow while in flight, when they cannot use the caller's own."""

    def take(self, index: int) -> int | None:
        """The address for a request, filled if it is a write; None when all memory is lent."""

    def give(self, index: int, moved: bool) -> None:
        """Take the memory of a finished request back, emptying it to its destination if it is a read that moved."""


@dataclass(slots=True)
class Watch:
    """Measures a drive, and ends it at a deadline: requests start over at the first one until then."""

    deadline: float
    first: int = 0
    most: int | None = None
    """Requests after which it ends even before the deadline; None: no such end."""
    clock: Callable[[], float] = time.perf_counter
    stopped: bool = False
    """Set from another thread, ends it as if the deadline had come."""
    started_at: float = 0.0
    ended_at: float = 0.0
    bytes: int = 0
    latencies: list[float] = field(default_factory=list)
    """Seconds from the submission of each request to the moment it was reaped."""
    addresses: dict[int, int] = field(default_factory=dict)
    """Where each request that moved was last in memory, by index, the last submitted last: what a check compares."""


def drive(engine: Engine, requests: Requests, policy: Policy, plain_fd: Callable[[], int], slots: Slots | None) -> None:
    """Move all requests; returns when every byte has been moved.

    Args:
        plain_fd: opens the same file without O_DIRECT, to complete what a direct request left over.
        slots: the memory for requests that have no address of their own.

    Raises:
        OSError: the first request that failed. None is in flight any more.
    """
    total, depth, (single, overlap) = len(requests), engine.depth, policy
    if total == 0:
        return
    engine.load(requests)
    submit, wait, take, lengths = engine.submit, engine.wait, engine.take, requests.lengths.tolist()
    flows = slots is None and not single
    odd: list[tuple[int, int]] = []
    following = pending = 0
    try:
        while True:
            if following < total and (overlap or not pending) and not odd:
                want = depth - pending
                if following + want > total:
                    want = total - following
                if slots is not None:
                    want = _lend(engine, requests, slots, following, want)
                accepted = submit(following, 1 if single else want) if want else 0
                if accepted < want:
                    accepted += _submit_rest(engine, following + accepted, want - accepted, single)
                    if slots is not None:
                        for index in range(following + accepted, following + want):
                            slots.give(index, moved=False)
                following += accepted
                pending += accepted
            for index, result in take():
                if result != lengths[index]:
                    odd.append((index, result))
                elif slots is not None:
                    slots.give(index, moved=True)
            if pending == depth and flows and following < total and not odd:
                following, pending = engine.flow(following, total, 1 if overlap else depth)
            elif pending:
                pending -= wait(1 if overlap else pending)
            elif odd:
                _settle(requests, odd, plain_fd, slots)
                odd.clear()
            elif following == total:
                return
    finally:
        drain(engine)


def drive_until(engine: Engine, requests: Requests, policy: Policy, watch: Watch, ring: list[int] | None) -> None:
    """Move requests round and round until the watch's deadline, noting times; no memory is filled or emptied.

    Args:
        ring: addresses that requests take in turn, one per slot of the queue; None when they have their own.

    Raises:
        OSError: the first request that failed or fell short.
    """
    total, depth, (single, overlap) = len(requests), engine.depth, policy
    if ring is not None:  # as long as requests finish in order, each finds its slot prepared
        requests.addresses[:] = np.resize(np.array(ring, np.int64), total)
    engine.load(requests)
    submit, clock, lengths = engine.submit, watch.clock, requests.lengths.tolist()
    begun, where, free, latencies = [0.0] * total, requests.addresses.tolist(), deque(ring or ()), watch.latencies
    following, submitted, moved, pending = watch.first % total, 0, 0, 0
    deadline, most = watch.deadline, sys.maxsize if watch.most is None else watch.most

    def note() -> None:
        """Look at what has finished."""
        nonlocal moved
        for index, result in engine.take():
            if result != lengths[index]:
                raise _failure(result, lengths[index])
            moved += result
            latencies.append(now - begun[index])
            begun[index] = 0.0
            if ring is not None:
                free.append(where[index])

    watch.started_at = clock()
    now = min(watch.started_at, deadline - 1)  # however late it starts, one batch is moved
    try:
        while (running := now < deadline and submitted < most and not watch.stopped) or pending:
            if ring is not None:
                note()  # what has finished lends its memory to what follows
            room = min(depth - pending, most - submitted) if running and (overlap or not pending) else 0
            while room > 0:
                want = 1 if single else min(room, total - following)
                if begun[following] or (want > 1 and (want := _idle(begun, following, want)) == 0):
                    break
                if ring is not None:
                    for index in range(following, following + want):
                        address = free.popleft()
                        if where[index] != address:
                            where[index] = address
                            engine.place(index, address)
                begun[following : following + want] = [clock()] * want
                accepted = submit(following, want)
                if not accepted and not pending:
                    accepted = _submit_rest(engine, following, want, single)
                if accepted < want:
                    begun[following + accepted : following + want] = [0.0] * (want - accepted)
                    if ring is not None:
                        free.extendleft(reversed(where[following + accepted : following + want]))
                pending += accepted
                submitted += accepted
                room -= accepted
                following = (following + accepted) % total
                if accepted < want and pending:
                    break
            note()
            if pending:
                pending -= engine.wait(1 if overlap else pending)
                now = clock()
        note()
    finally:
        drain(engine)
    watch.ended_at, watch.bytes = now, moved
    turns_ago = range(max(submitted - total, 0), submitted)
    watch.addresses = {index: where[index] for index in ((watch.first + turn) % total for turn in turns_ago)}


def _idle(begun: list[float], first: int, count: int) -> int:
    """How many requests from ``first`` on are not in flight any more, from the turn before."""
    for index in range(first, first + count):
        if begun[index]:
            return index - first
    return count


def drain(engine: Engine) -> None:
    """Wait for requests whose results no longer matter, because an exception is on its way."""
    engine.take()
    while engine.in_flight:
        engine.wait(engine.in_flight)
        engine.take()


def _submit_rest(engine: Engine, first: int, count: int, single: bool) -> int:
    """Submit as many more of ``count`` as the system takes now; waits for room if nothing is in flight."""
    accepted = tries = 0
    while accepted < count:
        taken = engine.submit(first + accepted, 1 if single else count - accepted)
        accepted += taken
        if taken == 0:
            if engine.in_flight:
                break
            tries += 1
            if tries > _PATIENCE:
                raise OSError(errno.EAGAIN, f"the system takes no request, {_PATIENCE} times in a row")
            time.sleep(0.001)
    return accepted


def _lend(engine: Engine, requests: Requests, slots: Slots, first: int, count: int) -> int:
    for index in range(first, first + count):
        address = slots.take(index)
        if address is None:
            return index - first
        requests.addresses[index] = address
        engine.place(index, address)
    return count


def _settle(requests: Requests, odd: list[tuple[int, int]], plain_fd: Callable[[], int], slots: Slots | None) -> None:
    """Complete requests that fell short with ordinary calls, while nothing else is in flight.

    EINVAL counts as nothing moved: a filesystem may open a file with O_DIRECT and then refuse direct requests.
    """
    table = requests
    for index, result in odd:
        if result < 0 and -result not in (errno.EAGAIN, errno.EINTR, errno.EINVAL):
            raise _failure(result, int(table.lengths[index]))
        moved = max(result, 0)
        move_plainly(
            table.write,
            plain_fd(),
            int(table.addresses[index]) + moved,
            int(table.lengths[index]) - moved,
            int(table.offsets[index]) + moved,
        )
        if slots is not None:
            slots.give(index, moved=True)


def move_plainly(write: bool, fd: int, address: int, nbytes: int, offset: int) -> None:
    """Move every byte by ordinary calls, through the page cache.

    Raises:
        OSError: a call failed; ENODATA if the file ends before the last byte.
    """
    memory = memoryview((ctypes.c_char * nbytes).from_address(address)).cast("B") if nbytes else memoryview(b"")
    at = 0
    while at < nbytes:
        part = memory[at:]
        moved = os.pwritev(fd, [part], offset + at) if write else os.preadv(fd, [part], offset + at)
        if moved == 0:
            if write:
                raise OSError(errno.EIO, f"a write of {nbytes - at} bytes at offset {offset + at} moved nothing")
            raise OSError(errno.ENODATA, f"the file ends at byte {offset + at}, {nbytes - at} bytes too early")
        at += moved


def _failure(result: int, wanted: int) -> OSError:
    if result < 0:
        return OSError(-result, os.strerror(-result))
    return OSError(errno.EIO, f"{result} of {wanted} bytes moved")
