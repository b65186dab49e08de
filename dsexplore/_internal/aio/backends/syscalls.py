"""Linux system calls that neither Python nor the C library wraps, and their C structures as numpy types."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import sys
from collections.abc import Callable
from ctypes import c_int, c_long, c_uint, c_ulong, c_void_p
from typing import Any

import numpy as np

SUPPORTED = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64") and ctypes.sizeof(c_void_p) == 8
_X86 = platform.machine() == "x86_64"

IO_SETUP, IO_DESTROY, IO_GETEVENTS, IO_SUBMIT = (206, 207, 208, 209) if _X86 else (0, 1, 4, 2)
STATX = 332 if _X86 else 291
CACHESTAT = 451
IO_URING_SETUP, IO_URING_ENTER, IO_URING_REGISTER = 425, 426, 427

IOCB = np.dtype(
    [
        ("data", "<u8"),
        ("key", "<u4"),
        ("rw_flags", "<u4"),
        ("opcode", "<u2"),
        ("priority", "<i2"),
        ("fd", "<u4"),
        ("buf", "<u8"),
        ("nbytes", "<u8"),
        ("offset", "<i8"),
        ("reserved", "<u8"),
        ("flags", "<u4"),
        ("resfd", "<u4"),
    ]
)
SQE = np.dtype(
    [
        ("opcode", "u1"),
        ("flags", "u1"),
        ("priority", "<u2"),
        ("fd", "<i4"),
        ("offset", "<u8"),
        ("address", "<u8"),
        ("length", "<u4"),
        ("rw_flags", "<u4"),
        ("data", "<u8"),
        ("buffer", "<u2"),
        ("personality", "<u2"),
        ("splice_fd", "<i4"),
        ("pad", "<u8", (2,)),
    ]
)
STATX_BUFFER = np.dtype(
    {
        "names": ["mask", "dio_mem_align", "dio_offset_align"],
        "formats": ["<u4", "<u4", "<u4"],
        "offsets": [0, 0x98, 0x9C],
        "itemsize": 0x100,
    }
)
"""``struct statx``: the mask of the fields that are filled, and the alignment of direct requests."""
STATX_DIOALIGN = 0x2000
"""Bit of ``mask`` for the alignment of direct requests; since Linux 6.1."""
AT_EMPTY_PATH = 0x1000
CQE = np.dtype([("data", "<u8"), ("res", "<i4"), ("flags", "<u4")])


def bind(*kinds: type) -> Callable[..., int]:
    """Return the C library's ``syscall`` for arguments of these types; it releases the GIL and keeps errno."""
    prototype = ctypes.CFUNCTYPE(c_long, c_long, *kinds, use_errno=True)
    return prototype(("syscall", ctypes.CDLL(None)))


fast: Any = ctypes.CDLL(None)["syscall"]
"""The C library's ``syscall`` for arguments that `word` has converted; it keeps no errno.

Between a completion and the next submission the processor's caches are cold. There, ctypes takes longer to convert
integers and to keep errno than the kernel takes for most calls. A call that fails is repeated with its binding below.
"""
fast.restype = c_long
word = c_void_p.from_param
"""Converts an integer to an argument of `fast`."""

io_setup = bind(c_uint, c_void_p)
io_destroy = bind(c_ulong)
io_submit = bind(c_ulong, c_long, c_void_p)
io_getevents = bind(c_ulong, c_long, c_long, c_void_p, c_void_p)
uring_setup = bind(c_uint, c_void_p)
uring_enter = bind(c_uint, c_uint, c_uint, c_uint, c_void_p, c_ulong)
uring_register = bind(c_uint, c_uint, c_void_p, c_uint)
cachestat = bind(c_int, c_void_p, c_void_p, c_uint)
statx = bind(c_int, c_void_p, c_int, c_uint, c_void_p)


def error(operation: str) -> OSError:
    """Return the failure of the last system call as an OSError."""
    code = ctypes.get_errno() or errno.EIO
    return OSError(code, f"{operation}: {os.strerror(code)}")
