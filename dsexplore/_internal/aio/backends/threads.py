"""Blocking reads and writes on as many threads as requests in flight: any system, any filesystem."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import ClassVar

from dsexplore._internal.aio.backends.base import Completions, Engine, Requests

LARGEST_DEPTH = 1024


class Threads(Engine):
    """``depth`` blocking threads that share one queue.

    The first starts here and serves alone where no more can be started: Python 3.12 starts none once the program has
    ended and its last transfers are waited for. The others start as they are first needed.

    Raises:
        OSError: a depth beyond 1024 threads, or a system that starts no thread (EAGAIN).
    """

    name: ClassVar[str] = "threads"

    def __init__(self, depth: int) -> None:
        if depth > LARGEST_DEPTH:
            raise OSError(
                errno.EAGAIN,
                f"the threads backend runs one thread per request: queue_depth {depth} is over {LARGEST_DEPTH}",
            )
        self.depth = depth
        self._todo: SimpleQueue[tuple[int, bool, int, int, int, int] | None] = SimpleQueue()
        self._done: SimpleQueue[tuple[int, int]] = SimpleQueue()
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
            self._todo.put((i, self._write, self._fd, self._addresses[i], self._lengths[i], self._offsets[i]))
        return count

    def wait(self, minimum: int) -> int:
        done = [self._done.get() for _ in range(minimum)]
        try:
            while True:
                done.append(self._done.get_nowait())
        except Empty:
            pass
        self._ready = done
        return len(done)

    def take(self) -> Completions:
        ready, self._ready = self._ready, []
        self.in_flight -= len(ready)
        return ready

    def close(self) -> None:
        threads, self._threads = self._threads, []
        if self._owner == os.getpid():
            for _ in threads:
                self._todo.put(None)
            for thread in threads:
                thread.join()

    def _start(self, count: int) -> None:
        """Start threads until `count` run; if the system has no more, fewer serve the same requests."""
        try:
            while len(self._threads) < count:
                name = f"dsexplore-aio-io-{len(self._threads)}"
                self._threads.append(start_thread(name, _serve, self._todo, self._done))
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


def _serve(todo: SimpleQueue[tuple[int, bool, int, int, int, int] | None], done: SimpleQueue[tuple[int, int]]) -> None:
    while (task := todo.get()) is not None:
        index, write, fd, address, length, offset = task
        memory = memoryview((ctypes.c_char * length).from_address(address)).cast("B")
        try:
            result = os.pwritev(fd, [memory], offset) if write else os.preadv(fd, [memory], offset)
        except OSError as error:
            result = -(error.errno or errno.EIO)
        done.put((index, result))
