"""The engine on Linux's native asynchronous I/O, by raw system calls: what libaio and DeepSpeed's handle use.

The table of requests is written with numpy once per transfer. So a batch is submitted by one system call on a part of
an array of pointers, and completions are unpacked from the events all at once.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Callable
from ctypes import c_uint64, c_void_p
from pathlib import Path
from typing import ClassVar

import numpy as np

from dsexplore._internal.aio.backends import compiled_loop
from dsexplore._internal.aio.backends import syscalls as sc
from dsexplore._internal.aio.backends.base import LAP, CompiledEngine, Completions, FlowingEngine, Requests

_PREAD, _PWRITE = 0, 1
_SUBMIT, _GETEVENTS = sc.word(sc.IO_SUBMIT), sc.word(sc.IO_GETEVENTS)
_EVENT = struct.Struct("<q8xq8x")
"""Layout of a completion: the request's index and its result."""


class _AioQueue(ctypes.Structure):
    """``struct aio`` of flow.c."""

    _fields_ = (("context", c_uint64), ("table", c_void_p), ("pointers", c_void_p), ("events", c_void_p))


class LinuxAio(FlowingEngine, CompiledEngine):
    """One kernel context of ``depth`` events.

    Raises:
        OSError: the kernel grants no context of that depth; the message names ``aio-max-nr`` and what uses it.
    """

    name: ClassVar[str] = "linux-aio"

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.in_flight = 0
        context = ctypes.c_ulong(0)
        if sc.io_setup(sc.IO_SETUP, depth, ctypes.addressof(context)) < 0:
            raise _setup_error(depth)
        self._context: int | None = context.value
        self._owner = os.getpid()
        self._ready = 0
        self._events = np.zeros((LAP + depth) * _EVENT.size, np.uint8)
        self._bytes = self._events.data
        self._results = self._bytes.cast("q")[2::4]
        """Result of each event: the third of its four words."""
        self._length = 0
        """Bytes of the first request of the table."""
        self._whole = b""
        """Bytes of `_results` if all requests have moved `_length` bytes."""
        self._fast = sc.fast
        # Arguments of system calls, converted once.
        self._number = sc.word(context.value)
        self._forever = sc.word(0)
        self._counts = [sc.word(count) for count in range(depth + 1)]
        begin = self._events.ctypes.data
        self._places = [sc.word(begin + at * _EVENT.size) for at in range(LAP)]
        self._steady = compiled_loop.function("aio_flow")
        self._queue = _AioQueue(context=context.value, events=begin)
        self._lay_out(0)

    def load(self, requests: Requests) -> None:
        if len(requests) != len(self._table):
            self._lay_out(len(requests))
        table = self._table
        table["opcode"] = _PWRITE if requests.write else _PREAD
        table["fd"] = requests.fd
        table["buf"] = requests.addresses
        table["nbytes"] = requests.lengths
        table["offset"] = requests.offsets
        length = int(requests.lengths[0]) if len(requests) else 0
        if length != self._length:
            self._length = length
            self._whole = length.to_bytes(8, sys.byteorder) * (LAP + self.depth)

    def _lay_out(self, n: int) -> None:
        """Create a table for `n` requests, which later transfers of as many requests use again."""
        self._table = np.zeros(n, sc.IOCB)
        self._table["data"] = np.arange(n)
        self._addresses = self._table["buf"]
        self._pointers = self._table.ctypes.data + np.arange(n, dtype=np.int64) * sc.IOCB.itemsize
        begin = self._pointers.ctypes.data
        self._starts = [sc.word(address) for address in range(begin, begin + self._pointers.nbytes, 8)]
        self._queue.table, self._queue.pointers = self._table.ctypes.data, begin

    def place(self, index: int, address: int) -> None:
        self._addresses[index] = address

    def submit(self, first: int, count: int) -> int:
        accepted: int = self._fast(_SUBMIT, self._number, self._counts[count], self._starts[first])
        if accepted < 0:
            accepted = self._submit_again(first, count)
        self.in_flight += accepted
        return accepted

    def _submit_again(self, first: int, count: int) -> int:
        """Repeat a failed submission with a call that keeps errno, and return the number of accepted requests."""
        accepted = sc.io_submit(sc.IO_SUBMIT, self._context, count, self._pointers[first:].ctypes.data)
        if accepted < 0:
            if ctypes.get_errno() not in (errno.EAGAIN, errno.EINTR):
                raise sc.error("io_submit")
            return 0
        return accepted

    def wait(self, minimum: int) -> int:
        counts, into = self._counts, self._places[0]
        got: int = self._fast(_GETEVENTS, self._number, counts[minimum], counts[self.depth], into, self._forever)
        self._ready = got if got >= 0 else self._wait_again(minimum, 0)
        return self._ready

    def _wait_again(self, minimum: int, at: int) -> int:
        """Repeat a failed wait with a call that keeps errno; events are written from number `at` on."""
        into = self._events.ctypes.data + at * _EVENT.size
        got = sc.io_getevents(sc.IO_GETEVENTS, self._context, minimum, self.depth, into, None)
        if got < 0:
            if ctypes.get_errno() != errno.EINTR:
                raise sc.error("io_getevents")
            return 0
        return got

    def flow(self, first: int, end: int, minimum: int, on_wait: Callable[[int], None] | None = None) -> tuple[int, int]:
        # When a wait returns, the processor's caches are cold: each function, object and page that is touched costs
        # more than its bytecode. So the loop is two system calls on prepared arguments, and little else.
        fast, number, counts, starts, places = self._fast, self._number, self._counts, self._starts, self._places
        least, most, forever = counts[minimum], counts[self.depth], self._forever
        at = 0
        while True:
            got = fast(_GETEVENTS, number, least, most, places[at], forever)
            if on_wait is not None:
                on_wait(first)
            if got < minimum or got > end - first:
                accepted = 0
                break
            accepted = fast(_SUBMIT, number, counts[got], starts[first])
            if accepted != got:
                break
            first += got
            at += got
            if at >= LAP:
                if self._results[:at].tobytes() != self._whole[: 8 * at]:
                    got = accepted = 0
                    break
                at = 0
        self.in_flight += at
        self._ready = at
        self._ready += got if got >= 0 else self._wait_again(minimum, at)
        if accepted < 0:
            accepted = self._submit_again(first, got)
        self.in_flight += accepted
        return first + accepted, self.in_flight - self._ready

    def take(self) -> Completions:
        ready, self._ready = self._ready, 0
        self.in_flight -= ready
        return _EVENT.iter_unpack(self._bytes[: ready * _EVENT.size])

    def close(self) -> None:
        context, self._context = self._context, None
        if context is not None and self._owner == os.getpid():  # contexts are not inherited over a fork
            sc.io_destroy(sc.IO_DESTROY, context)


def _setup_error(depth: int) -> OSError:
    """Return the error of a failed io_setup; if the system has no room, with the limit and what to do."""
    code = ctypes.get_errno()
    if code != errno.EAGAIN:
        return OSError(code, f"io_setup for queue_depth {depth}: {os.strerror(code)}")
    limit, used = (Path(f"/proc/sys/fs/{name}").read_text().strip() for name in ("aio-max-nr", "aio-nr"))
    return OSError(
        code,
        f"the kernel has no room for queue_depth {depth}: fs.aio-max-nr is {limit} and {used} events are in use. "
        "Lower queue_depth, close other handles, or raise the limit (sysctl fs.aio-max-nr=1048576)",
    )
