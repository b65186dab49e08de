"""Linux native asynchronous I/O by raw system calls: the mechanism of libaio and of DeepSpeed's handle.

The request table is laid out once per transfer by numpy, so that submitting a batch is one system call on a slice
of a pointer array, and reaping reads two integers per event. Between two requests the processor sleeps and finds
its caches cold again, so what runs there is kept short: every call's arguments lie ready in memory.
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path
from typing import ClassVar

import numpy as np

from dsexplore.aio.backends import syscalls as sc
from dsexplore.aio.backends.base import Completions, Requests

_PREAD, _PWRITE = 0, 1
_EVENT_WORDS = sc.IO_EVENT.itemsize // 8


class LinuxAio:
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
        events = np.zeros(depth, sc.IO_EVENT)
        self._events, self._words = events, events.view(np.int64).data
        self._submit = sc.Prepared(sc.IO_SUBMIT, context.value, 0, 0)
        self._getevents = sc.Prepared(sc.IO_GETEVENTS, context.value, 0, depth, events.ctypes.data, 0)

    def load(self, requests: Requests) -> None:
        n = len(requests)
        table = np.zeros(n, sc.IOCB)
        table["data"] = np.arange(n)
        table["opcode"] = _PWRITE if requests.write else _PREAD
        table["fd"] = requests.fd
        table["buf"] = requests.addresses
        table["nbytes"] = requests.lengths
        table["offset"] = requests.offsets
        self._table, self._addresses = table, table["buf"]
        self._pointers = table.ctypes.data + np.arange(n, dtype=np.int64) * sc.IOCB.itemsize
        self._pointer_address = self._pointers.ctypes.data

    def place(self, index: int, address: int) -> None:
        self._addresses[index] = address

    def submit(self, first: int, count: int) -> int:
        words = self._submit.words
        words[2] = count
        words[3] = self._pointer_address + 8 * first
        accepted: int = self._submit.call(*self._submit.arguments)
        if accepted >= 0:
            self.in_flight += accepted
            return accepted
        if ctypes.get_errno() in (errno.EAGAIN, errno.EINTR):
            return 0
        raise sc.error("io_submit")

    def reap(self, minimum: int) -> Completions:
        self._getevents.words[2] = minimum
        got: int = self._getevents.call(*self._getevents.arguments)
        words = self._words
        if got == 1:
            self.in_flight -= 1
            return [(words[0], words[2])]
        if got < 0:
            if ctypes.get_errno() == errno.EINTR:
                return []
            raise sc.error("io_getevents")
        self.in_flight -= got
        return [(words[at], words[at + 2]) for at in range(0, got * _EVENT_WORDS, _EVENT_WORDS)]

    def close(self) -> None:
        context, self._context = self._context, None
        if context is not None and self._owner == os.getpid():  # contexts are not inherited over a fork
            sc.io_destroy(sc.IO_DESTROY, context)


def _setup_error(depth: int) -> OSError:
    code = ctypes.get_errno()
    if code != errno.EAGAIN:
        return OSError(code, f"io_setup for queue_depth {depth}: {os.strerror(code)}")
    limit, used = (Path(f"/proc/sys/fs/{name}").read_text().strip() for name in ("aio-max-nr", "aio-nr"))
    return OSError(
        code,
        f"the kernel has no room for queue_depth {depth}: fs.aio-max-nr is {limit} and {used} events are in use. "
        "Lower queue_depth, close other handles, or raise the limit (sysctl fs.aio-max-nr=1048576)",
    )
