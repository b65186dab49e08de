"""The engines by name: which of them run on this machine, why others cannot, and how to open one."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from functools import cache

from dsexplore._internal.aio.backends import compiled_loop
from dsexplore._internal.aio.backends import syscalls as sc
from dsexplore._internal.aio.backends.base import Engine
from dsexplore._internal.aio.backends.io_uring import IoUring
from dsexplore._internal.aio.backends.linux_aio import LinuxAio
from dsexplore._internal.aio.backends.threads import Threads
from dsexplore._internal.errors import UsageError

_ENGINE_TYPES: dict[str, Callable[[int], Engine]] = {"linux-aio": LinuxAio, "io_uring": IoUring, "threads": Threads}
ENGINES = tuple(_ENGINE_TYPES)
"""Names of the engines, in the order in which they are tried by default."""


@cache
def why_not(name: str) -> str | None:
    """Return why an engine cannot run on this system; None if it can."""
    if name == "threads":
        return None
    if not sc.SUPPORTED:
        return f"{name} is a system call of 64-bit Linux; this is {sys.platform}"
    try:
        open_engine(name, 1).close()
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EMFILE, errno.ENFILE):  # the engine exists, but has no room now
            return None
        return str(error)
    return None


def choose(name: str | None = None) -> str:
    """Return the named engine, or the first that runs here.

    Raises:
        UsageError: an unknown name, or an engine that cannot run here; the error has the reason.
    """
    if name is None:
        return next(engine for engine in ENGINES if why_not(engine) is None)
    if name not in ENGINES:
        raise UsageError(f"backend {name!r} is unknown: it is one of {', '.join(ENGINES)}")
    reason = why_not(name)
    if reason is not None:
        raise UsageError(f"backend {name!r} cannot run here: {reason}")
    return name


def loop_of(name: str) -> str:
    """Return which loop keeps an engine's queues full: ``C``, or ``Python`` with the reason."""
    if name == "threads":
        return "Python"
    reason = compiled_loop.why_not()
    return "C" if reason is None else f"Python, since {reason}"


def open_engine(name: str, depth: int) -> Engine:
    """Open an engine; it must be called in the thread that uses the engine.

    Raises:
        OSError: the system refuses a queue of that depth.
    """
    return _ENGINE_TYPES[name](depth)
