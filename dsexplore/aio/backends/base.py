"""The interface of every engine: it takes a table of requests, and returns indices and results."""

from __future__ import annotations

import ctypes
from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from dsexplore.aio.backends.compiled_loop import Function, Steady

Completions = Iterable[tuple[int, int]]
"""``(index of the request, bytes moved or −errno)`` of each request that has finished."""


LAP = 64
"""Results that an engine may look at together in `FlowingEngine.flow`."""


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests on one open file, all in one direction: columns of shape ``(n,)``, in bytes.

    Addresses may be 0: then the driver places each request in a slot just before it is submitted.
    """

    write: bool
    fd: int
    addresses: NDArray[np.int64]
    lengths: NDArray[np.int64]
    offsets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.lengths)


def split(write: bool, fd: int, address: int, nbytes: int, offset: int, block_size: int) -> Requests:
    """Cut one contiguous transfer into requests of ``block_size``, the last one shorter if need be.

    ``split(False, 3, 0x1000, 2500, 512, 1024)`` → lengths 1024, 1024, 452 at file offsets 512, 1536, 2560.
    """
    starts = np.arange(0, nbytes, block_size, dtype=np.int64)
    lengths = np.minimum(block_size, nbytes - starts)
    addresses = address + starts if address else np.zeros_like(starts)
    return Requests(write, fd, addresses, lengths, offset + starts)


class Engine(Protocol):
    """One queue of at most ``depth`` requests in flight, used by one thread at a time.

    Waiting and looking at what came are two calls, so that the disk gets its next requests in between.
    """

    name: ClassVar[str]
    depth: int
    in_flight: int
    """Requests submitted and not yet taken."""

    def load(self, requests: Requests) -> None:
        """Take the table that later indices refer to. Nothing is in flight when it is called."""

    def place(self, index: int, address: int) -> None:
        """Give one request its memory, before it is submitted."""

    def submit(self, first: int, count: int) -> int:
        """Start requests ``first … first + count − 1``; the number accepted, 0 when the system is out of room."""
        ...

    def wait(self, minimum: int) -> int:
        """Wait until at least ``minimum`` have finished, fewer after a signal; how many have.

        What the wait before brought has been taken.
        """
        ...

    def take(self) -> Completions:
        """Results of the requests that have finished, to be read before the next wait; empty when called again."""
        ...

    def close(self) -> None:
        """Give everything back; waits for requests in flight. Harmless when repeated."""


class FlowingEngine(Engine):
    """An engine that keeps its queue full by itself.

    What runs between a completion and the next submission is time that the disk idles, so both are one call.
    """

    @abstractmethod
    def flow(self, first: int, end: int, minimum: int, look: Callable[[int], None] | None = None) -> tuple[int, int]:
        """Replace what finishes: wait as `wait` does, and start as many of the requests from ``first`` on.

        This is repeated for as long as all goes well: no signal, every request accepted, every result as long as the
        first request of the table. What finished last is then still to be taken; of what finished before, every
        result has been looked at. With fewer than `LAP` requests to start, all are still to be taken.

        Args:
            first, end: the requests that may be started.
            minimum: how many finished ones each wait is for.
            look: called after each wait with the index of the request to be started next.

        Returns:
            The index after the last request started, at most ``end``, and the number of requests unfinished.
        """
        ...


class CompiledEngine(Engine):
    """An engine whose queue is kept full by flow.c, where that could be compiled."""

    _steady: Function | None
    """The function of flow.c that serves this engine; None where there is none."""
    _queue: ctypes.Structure
    """The queue as that function gets it."""
    _ready: int
    """Results that can be taken."""

    @property
    def is_compiled(self) -> bool:
        """Whether flow.c could be compiled."""
        return self._steady is not None

    def run(self, steady: Steady) -> int:
        """Replace what finishes, for as long as all goes well: no signal, every request accepted, every result whole.

        The queue is full. Ends at ``steady.until``, or when the wait at that moment does. Returns the number of results
        that are left over, to be taken; all that has finished before was whole, and has been replaced.
        """
        assert self._steady is not None
        self._steady(ctypes.byref(steady), ctypes.byref(self._queue))
        self._ready = steady.ready or self.wait(steady.minimum)
        return self._ready
