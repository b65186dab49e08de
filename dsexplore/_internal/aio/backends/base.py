"""The interface of every engine: it takes a table of requests, and returns indices and results."""

from __future__ import annotations

import ctypes
from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from dsexplore._internal.aio.backends.compiled_loop import Function, Steady

Completions = Iterable[tuple[int, int]]
"""``(index of the request, bytes moved or −errno)`` of each request that has finished."""


LAP = 64
"""Number of results that an engine may check together in `FlowingEngine.flow`."""


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
    """Split one contiguous transfer into requests of `block_size`, the last one possibly shorter.

    ``split(False, 3, 0x1000, 2500, 512, 1024)`` → lengths 1024, 1024, 452 at file offsets 512, 1536, 2560.
    """
    starts = np.arange(0, nbytes, block_size, dtype=np.int64)
    lengths = np.minimum(block_size, nbytes - starts)
    addresses = address + starts if address else np.zeros_like(starts)
    return Requests(write, fd, addresses, lengths, offset + starts)


class Engine(Protocol):
    """One queue of at most ``depth`` requests in flight, used by one thread at a time.

    Waiting for results and taking them are two calls, so that the disk gets its next requests in between.
    """

    name: ClassVar[str]
    depth: int
    in_flight: int
    """Requests submitted and not yet taken."""

    def load(self, requests: Requests) -> None:
        """Set the table that later indices refer to. Nothing is in flight when it is called."""

    def place(self, index: int, address: int) -> None:
        """Set the address of one request, before it is submitted."""

    def submit(self, first: int, count: int) -> int:
        """Start requests ``first … first + count − 1``; return the number accepted, 0 if the system is out of room."""
        ...

    def wait(self, minimum: int) -> int:
        """Wait until at least `minimum` have finished, or for a signal; return how many have.

        The results of the previous wait must have been taken.
        """
        ...

    def take(self) -> Completions:
        """Return the results of the finished requests, to be read before the next wait; empty if called again."""
        ...

    def close(self) -> None:
        """Release everything, after waiting for requests in flight. May be called repeatedly."""


class FlowingEngine(Engine):
    """An engine that keeps its queue full by itself.

    The disk idles between a completion and the next submission, so both are one call. This is an
    engine's second loop beside that in C (`CompiledEngine`): many machines with a disk have no C compiler.
    """

    @abstractmethod
    def flow(self, first: int, end: int, minimum: int, look: Callable[[int], None] | None = None) -> tuple[int, int]:
        """Replace finished requests: wait as `wait` does, and start as many of the requests from `first` on.

        This is repeated for as long as all goes well: no signal, every request accepted, every result as long as the
        first request of the table. The last results are then still to be taken; all earlier results have been checked.
        With fewer than `LAP` requests to start, all are still to be taken.

        Args:
            first, end: the requests that may be started.
            minimum: number of finished requests that each wait is for.
            look: called after each wait with the index of the request to be started next.

        Returns:
            The index after the last request started, at most ``end``, and the number of requests unfinished.
        """
        ...


class CompiledEngine(Engine):
    """An engine that flow.c keeps full, if it could be compiled."""

    _steady: Function | None
    """The function of flow.c for this engine; None if there is none."""
    _queue: ctypes.Structure
    """The queue as passed to that function."""
    _ready: int
    """Number of results that can be taken."""

    @property
    def is_compiled(self) -> bool:
        """True if flow.c could be compiled."""
        return self._steady is not None

    def run(self, steady: Steady) -> int:
        """Replace finished requests for as long as all goes well, and return the number of results left to take.

        All goes well means: no signal, every request accepted, every result whole. The queue must be full. It ends at
        ``steady.until``, or with the wait at that moment. All earlier results were whole, and their requests replaced.
        """
        assert self._steady is not None
        self._steady(ctypes.byref(steady), ctypes.byref(self._queue))
        self._ready = steady.ready or self.wait(steady.minimum)
        return self._ready
