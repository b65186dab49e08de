"""The engine on io_uring, by raw system calls.

The submission ring and the completion ring are shared with the kernel. Completions are read right after a system call
has returned, which orders them after the kernel's writes on every processor that Linux runs io_uring on.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from ctypes import c_int64, c_uint32, c_uint64, c_void_p
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dsexplore._internal.aio.backends import compiled_loop
from dsexplore._internal.aio.backends import syscalls as sc
from dsexplore._internal.aio.backends.base import CompiledEngine, Completions, Requests

_READ, _WRITE, _READ_FIXED, _WRITE_FIXED = 22, 23, 4, 5
_COOP_TASKRUN, _SINGLE_ISSUER, _DEFER_TASKRUN = 1 << 8, 1 << 12, 1 << 13
_GETEVENTS = 1
_REGISTER_BUFFERS = 0
_RINGS, _ENTRIES = 0, 0x10000000
_MAP = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0x8000)
_LARGEST_REGISTERED = 1 << 30
_MASK = 0xFFFFFFFF


class _Offsets(ctypes.Structure):
    """``struct io_sqring_offsets`` and ``struct io_cqring_offsets``, which differ in the fields a to e."""

    _fields_ = (
        *((name, c_uint32) for name in ("head", "tail", "mask", "entries", "a", "b", "c", "d")),
        ("e", c_uint64),
    )


class _Params(ctypes.Structure):
    """``struct io_uring_params``."""

    _fields_ = (
        *((name, c_uint32) for name in ("sq", "cq", "flags", "cpu", "idle", "features", "wq_fd")),
        ("reserved", c_uint32 * 3),
        ("sq_offsets", _Offsets),  # a: flags, b: dropped, c: array
        ("cq_offsets", _Offsets),  # a: overflow, b: cqes
    )


class _Vector(ctypes.Structure):
    """``struct iovec``."""

    _fields_ = (("base", c_uint64), ("length", c_uint64))


class _UringQueue(ctypes.Structure):
    """``struct uring`` of flow.c."""

    _fields_ = (
        ("fd", c_int64),
        *((name, c_void_p) for name in ("table", "entries", "results", "sq_tail", "cq_head", "cq_tail")),
        *((name, c_uint32) for name in ("sq_mask", "cq_mask")),
    )


class IoUring(CompiledEngine):
    """One ring of at least ``depth`` entries, used only by the thread that created it.

    Raises:
        OSError: the kernel has no io_uring (ENOSYS), forbids it (EPERM), or has no room for `depth` (EINVAL).
    """

    name: ClassVar[str] = "io_uring"

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.in_flight = 0
        self._fd: int | None = None
        self._maps: list[mmap.mmap] = []
        params = self._setup(depth)
        size = max(params.sq_offsets.c + 4 * params.sq, params.cq_offsets.b + sc.CQE.itemsize * params.cq)
        assert self._fd is not None
        try:
            rings = mmap.mmap(self._fd, size, _MAP, mmap.PROT_READ | mmap.PROT_WRITE, offset=_RINGS)
            entries = mmap.mmap(self._fd, params.sq * 64, _MAP, mmap.PROT_READ | mmap.PROT_WRITE, offset=_ENTRIES)
        except BaseException:
            self.close()
            raise
        self._maps = [rings, entries]
        words = memoryview(rings).cast("I")  # its size is a multiple of 4: it ends with indices or completions
        order = params.sq_offsets.c // 4
        for slot in range(params.sq):
            words[order + slot] = slot
        self._words: memoryview[int] = words
        self._sq_tail: int = params.sq_offsets.tail // 4
        self._cq_head: int = params.cq_offsets.head // 4
        self._cq_tail: int = params.cq_offsets.tail // 4
        self._entries: NDArray[np.void] = np.frombuffer(entries, sc.SQE, params.sq)
        self._sq_mask: int = params.sq - 1
        self._cq_mask: int = params.cq - 1
        self._results: memoryview[int] = memoryview(rings)[
            params.cq_offsets.b : params.cq_offsets.b + 16 * params.cq
        ].cast("i")
        self._ready: int = 0
        self._fixed: tuple[int, int] | None = None
        self._steady: compiled_loop.Function | None = compiled_loop.function("uring_flow")
        self._queue: _UringQueue = self._shared_with_c(rings, params)

    def _shared_with_c(self, rings: mmap.mmap, params: _Params) -> _UringQueue:
        """Return the queue in the form that flow.c takes."""
        begin = np.frombuffer(rings, np.uint8).ctypes.data
        return _UringQueue(
            fd=self._fd,
            entries=self._entries.ctypes.data,
            results=begin + params.cq_offsets.b,
            sq_tail=begin + params.sq_offsets.tail,
            cq_head=begin + params.cq_offsets.head,
            cq_tail=begin + params.cq_offsets.tail,
            sq_mask=self._sq_mask,
            cq_mask=self._cq_mask,
        )

    def _setup(self, depth: int) -> _Params:
        """Create the ring with the fastest flags that the kernel knows, and return what it answered."""
        for flags in (_SINGLE_ISSUER | _DEFER_TASKRUN, _COOP_TASKRUN, 0):  # newest kernels first
            params = _Params(flags=flags)
            fd = sc.uring_setup(sc.IO_URING_SETUP, depth, ctypes.addressof(params))
            if fd >= 0:
                self._fd = fd
                return params
            if ctypes.get_errno() != errno.EINVAL:
                break
        code = ctypes.get_errno()
        raise OSError(code, f"io_uring_setup for queue_depth {depth}: {os.strerror(code)}{_advice(code)}")

    def register(self, address: int, nbytes: int) -> None:
        """Register a buffer, which the kernel then maps once, instead of at every request in it.

        Raises:
            OSError: ``RLIMIT_MEMLOCK`` does not allow it (ENOMEM).
        """
        starts = range(0, nbytes, _LARGEST_REGISTERED)
        parts = [_Vector(address + at, min(_LARGEST_REGISTERED, nbytes - at)) for at in starts]
        vectors = (_Vector * len(parts))(*parts)
        if sc.uring_register(sc.IO_URING_REGISTER, self._fd, _REGISTER_BUFFERS, ctypes.addressof(vectors), len(parts)):
            raise sc.error(f"io_uring_register of {nbytes} bytes")
        self._fixed = (address, nbytes)

    def load(self, requests: Requests) -> None:
        table = np.zeros(len(requests), sc.SQE)
        table["opcode"] = _WRITE if requests.write else _READ
        table["fd"] = requests.fd
        table["offset"] = requests.offsets
        table["address"] = requests.addresses
        table["length"] = requests.lengths
        table["data"] = np.arange(len(requests))
        if self._fixed is not None:
            self._use_registered(table, requests)
        self._table, self._addresses = table, table["address"]
        self._queue.table = table.ctypes.data

    def _use_registered(self, table: NDArray[np.void], requests: Requests) -> None:
        """Mark the requests whose memory is in one part of the registered buffer as reading or writing there."""
        assert self._fixed is not None
        begin, nbytes = self._fixed
        first = requests.addresses - begin
        last = first + requests.lengths - 1
        inside = (first >= 0) & (last < nbytes) & (first // _LARGEST_REGISTERED == last // _LARGEST_REGISTERED)
        table["opcode"][inside] = _WRITE_FIXED if requests.write else _READ_FIXED
        table["buffer"][inside] = first[inside] // _LARGEST_REGISTERED

    def place(self, index: int, address: int) -> None:
        self._addresses[index] = address

    def submit(self, first: int, count: int) -> int:
        words = self._words
        tail = words[self._sq_tail]
        at = tail & self._sq_mask
        before_end = min(count, self._sq_mask + 1 - at)  # the others are at the beginning of the ring
        self._entries[at : at + before_end] = self._table[first : first + before_end]
        if before_end < count:
            self._entries[: count - before_end] = self._table[first + before_end : first + count]
        words[self._sq_tail] = (tail + count) & _MASK
        sent = sc.uring_enter(sc.IO_URING_ENTER, self._fd, count, 0, 0, None, 0)
        accepted = max(sent, 0)
        self.in_flight += accepted
        if accepted == count:
            return count
        words[self._sq_tail] = (tail + accepted) & _MASK
        if sent < 0 and ctypes.get_errno() not in (errno.EAGAIN, errno.EBUSY, errno.EINTR):
            raise sc.error("io_uring_enter")
        return accepted

    def wait(self, minimum: int) -> int:
        words, head = self._words, self._words[self._cq_head]
        if (words[self._cq_tail] - head) & _MASK < minimum:
            entered = sc.uring_enter(sc.IO_URING_ENTER, self._fd, 0, minimum, _GETEVENTS, None, 0)
            if entered < 0 and ctypes.get_errno() not in (errno.EINTR, errno.EAGAIN, errno.EBUSY):
                raise sc.error("io_uring_enter")
        self._ready = (words[self._cq_tail] - head) & _MASK
        return self._ready

    def take(self) -> Completions:
        words, results, mask, ready = self._words, self._results, self._cq_mask, self._ready
        head, self._ready = words[self._cq_head], 0
        self.in_flight -= ready
        slots = [4 * ((head + i) & mask) for i in range(ready)]
        done = [(results[at] & _MASK, results[at + 2]) for at in slots]
        words[self._cq_head] = (head + ready) & _MASK
        return done

    def close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is None:
            return
        os.close(fd)
        if self._maps:  # a map keeps a descriptor of its own
            self._words.release()
            self._results.release()
            del self._entries
            for mapped in self._maps:
                mapped.close()


def _advice(code: int) -> str:
    """Return what to do about an error of io_uring_setup, to append to its text; empty if there is no advice."""
    if code == errno.EINVAL:
        return ": the kernel takes at most 32768 entries; lower queue_depth"
    if code == errno.EPERM:
        return ": it is switched off here (kernel.io_uring_disabled, or a container's filter); use linux-aio or threads"
    if code == errno.ENOMEM:
        return ": RLIMIT_MEMLOCK does not allow so large a ring; lower queue_depth"
    return ""
