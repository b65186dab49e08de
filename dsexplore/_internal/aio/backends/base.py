"""The interface of the engines, which move a table of requests between memory and a file."""

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
"""``(index of the request, bytes moved or −errno)`` of each finished request."""


LAP = 64
"""Number of results that `FlowingEngine.flow` checks together, at least."""


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests on one open file, all of them reads or all of them writes."""

    write: bool
    fd: int
    addresses: NDArray[np.int64]
    """(n,) addresses in memory; 0 if the driver sets the address just before it submits the request."""
    lengths: NDArray[np.int64]
    """(n,) bytes."""
    offsets: NDArray[np.int64]
    """(n,) positions in the file, in bytes."""

    def __len__(self) -> int:
        return len(self.lengths)


def split(fd: int, *, write: bool, address: int, nbytes: int, offset: int, block_size: int) -> Requests:
    """Split one contiguous transfer into requests of `block_size` bytes; the last one may be shorter.

    Example: 2500 bytes at offset 512 in blocks of 1024 are 1024, 1024 and 452 bytes at offsets 512, 1536 and 2560.
    """
    starts = np.arange(0, nbytes, block_size, dtype=np.int64)
    lengths = np.minimum(block_size, nbytes - starts)
    addresses = address + starts if address else np.zeros_like(starts)
    return Requests(write, fd, addresses=addresses, lengths=lengths, offsets=offset + starts)


class Engine(Protocol):
    """One queue of at most ``depth`` requests in flight, used by one thread at a time.

    Waiting for results and taking them are separate calls, so that the next requests can be submitted in between.
    """

    name: ClassVar[str]
    depth: int
    """Largest number of requests in flight."""
    in_flight: int
    """Number of requests that were submitted, and not yet taken."""

    def load(self, requests: Requests) -> None:
        """Set the table that indices refer to; no request may be in flight."""

    def place(self, index: int, address: int) -> None:
        """Set the address of one request, before it is submitted."""

    def submit(self, first: int, count: int) -> int:
        """Start `count` requests from index `first` on; return the number accepted, 0 if the system has no room."""
        ...

    def wait(self, minimum: int) -> int:
        """Wait until at least `minimum` requests have finished, or for a signal; return the number of finished ones.

        The results of the previous wait must have been taken.
        """
        ...

    def take(self) -> Completions:
        """Return the results of the finished requests, which must be read before the next wait; then they are gone."""
        ...

    def close(self) -> None:
        """Wait for requests in flight, and release all resources. May be called repeatedly."""


class FlowingEngine(Engine):
    """An engine with a loop in Python that keeps its queue full, for machines without a C compiler.

    The disk idles between a completion and the next submission, so both are in one loop; see also `CompiledEngine`.
    """

    @abstractmethod
    def flow(self, first: int, end: int, minimum: int, on_wait: Callable[[int], None] | None = None) -> tuple[int, int]:
        """Wait for finished requests and start as many new ones from index `first` on, again and again.

        This ends at a signal, a request that is not accepted, a result that is not as long as the first request of the
        table, or at `end`. The results since the last check are then to be taken; all earlier ones were right. With
        fewer than `LAP` requests to start, all results are to be taken.

        Args:
            first: index of the first request to start.
            end: index after the last request that may be started.
            minimum: number of finished requests that each wait waits for.
            on_wait: called after each wait with the index of the next request to start.

        Returns:
            The index after the last request started, and the number of unfinished requests.
        """
        ...


class CompiledEngine(Engine):
    """An engine whose queue the loop in flow.c keeps full, if it could be compiled."""

    _steady: Function | None
    """Function of flow.c for this engine; None if flow.c could not be compiled."""
    _queue: ctypes.Structure
    """The queue in the form that the function takes."""
    _ready: int
    """Number of results that can be taken."""

    @property
    def is_compiled(self) -> bool:
        """True if flow.c could be compiled."""
        return self._steady is not None

    def run(self, steady: Steady) -> int:
        """Replace finished requests by new ones; return the number of results to take.

        The queue must be full. This ends with the wait that lasts beyond ``steady.until``, or earlier: at a signal, a
        request that is not accepted, or a request that failed or fell short. The results of all requests that were
        replaced were whole.
        """
        assert self._steady is not None
        self._steady(ctypes.byref(steady), ctypes.byref(self._queue))
        self._ready = steady.ready or self.wait(steady.minimum)
        return self._ready
