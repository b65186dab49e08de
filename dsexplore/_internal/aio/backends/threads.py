"""The engine that runs on any system and filesystem: blocking reads and writes, one thread per request in flight."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import ClassVar, NamedTuple

from dsexplore._internal.aio.backends.base import Completions, Engine, Requests

LARGEST_DEPTH = 1024


class _Task(NamedTuple):
    """One request for a thread."""

    number: int
    """Index of the request."""
    write: bool
    fd: int
    address: int
    length: int
    offset: int


_Tasks = SimpleQueue[_Task | None]
"""Requests that are not started yet; None ends a thread."""
_Results = SimpleQueue[tuple[int, int]]
"""``(index, bytes moved or −errno)`` of finished requests."""


class Threads(Engine):
    """``depth`` blocking threads that share one queue.

    The first thread starts at once, the others when they are first needed. If no more can be started, those that run
    serve all requests: Python 3.12 starts no thread once the program is ending, while it waits for its last transfers.

    Raises:
        OSError: a depth beyond 1024 threads, or the system starts no thread (EAGAIN).
    """

    name: ClassVar[str] = "threads"

    def __init__(self, depth: int) -> None:
        if depth > LARGEST_DEPTH:
            raise OSError(
                errno.EAGAIN,
                f"the threads backend runs one thread per request: queue_depth {depth} is over {LARGEST_DEPTH}",
            )
        self.depth = depth
        self._tasks: _Tasks = SimpleQueue()
        self._results: _Results = SimpleQueue()
        self._ready: list[tuple[int, int]] = []
        self._threads: list[threading.Thread] = []
        self.in_flight = 0
        self._owner = os.getpid()
        self._start(1)

    def load(self, requests: Requests) -> None:
        self._write, self._fd = requests.write, requests.fd
        self._addresses = requests.addresses.tolist()
        self._lengths = requests.lengths.tolist()
        self._offsets = requests.offsets.tolist()

    def place(self, index: int, address: int) -> None:
        self._addresses[index] = address

    def submit(self, first: int, count: int) -> int:
        self._start(min(self.in_flight + count, self.depth))
        self.in_flight += count
        for i in range(first, first + count):
            self._tasks.put(
                _Task(
                    number=i,
                    write=self._write,
                    fd=self._fd,
                    address=self._addresses[i],
                    length=self._lengths[i],
                    offset=self._offsets[i],
                )
            )
        return count

    def wait(self, minimum: int) -> int:
        ready = [self._results.get() for _ in range(minimum)]
        try:
            while True:
                ready.append(self._results.get_nowait())
        except Empty:
            pass
        self._ready = ready
        return len(ready)

    def take(self) -> Completions:
        ready, self._ready = self._ready, []
        self.in_flight -= len(ready)
        return ready

    def close(self) -> None:
        threads, self._threads = self._threads, []
        if self._owner == os.getpid():
            for _ in threads:
                self._tasks.put(None)
            for thread in threads:
                thread.join()

    def _start(self, count: int) -> None:
        """Start threads until `count` run; if the system starts no more, fewer threads serve the requests."""
        try:
            while len(self._threads) < count:
                name = f"dsexplore-aio-io-{len(self._threads)}"
                self._threads.append(start_thread(name, _serve, self._tasks, self._results))
        except OSError:
            if not self._threads:
                raise


def start_thread(name: str, work: Callable[..., None], *arguments: object) -> threading.Thread:
    """Start a daemon thread and return it.

    Raises:
        OSError: the system starts no more threads (EAGAIN).
    """
    thread = threading.Thread(target=work, args=arguments, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise OSError(
            errno.EAGAIN,
            f"the system starts no thread beyond the {threading.active_count()} of this process ({error}): lower "
            "thread_count or queue_depth, or raise the limit (ulimit -u, or the container's number of processes)",
        ) from error
    return thread


def _serve(tasks: _Tasks, results: _Results) -> None:
    """Run requests in this thread until None is received."""
    while (task := tasks.get()) is not None:
        memory = memoryview((ctypes.c_char * task.length).from_address(task.address)).cast("B")
        move = os.pwritev if task.write else os.preadv
        try:
            result = move(task.fd, [memory], task.offset)
        except OSError as error:
            result = -(error.errno or errno.EIO)
        results.put((task.number, result))
