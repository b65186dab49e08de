"""The program of the process that local ranks are forked from; `worlds.real.server_handle` starts it.

The server imports torch once, so a rank runs a few milliseconds after it was requested. The server has no process
group, no device, and no threads except those of polars' allocator, so a fork of it behaves like a new interpreter. It
answers requests over a Unix socket (`Start`, `Reap`, `Preload`), and ends when that socket closes.

Each rank leads its own session, so Ctrl-C in the terminal reaches only the launcher. Each rank dies with the server,
and the server ends orphaned child processes of ranks, so no process outlives a killed launcher.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import re
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import polars as pl

from dsexplore._internal.capture.content.recording import Recording
from dsexplore._internal.capture.recorder_in_use import in_use
from dsexplore._internal.torch_internals.processes import PRELOADED, clear_compiler_cache
from dsexplore._internal.worlds.cuda import autocast
from dsexplore._internal.worlds.fake import shared_entries
from dsexplore._internal.worlds.real.messages import Preload, Reap, Start, receive, send
from dsexplore._internal.worlds.real.rank_process import become_rank

PRELOAD = (*PRELOADED, "dsexplore.comm", "dsexplore._internal.worlds.commtrace", "cloudpickle")
"""Modules that the server imports when it starts."""
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def serve(sock: socket.socket) -> None:
    """Serve requests to fork ranks until the launcher is gone, then end the remaining ranks."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)  # orphans of ranks become children of this process
    children: set[int] = set()
    send(sock, "ready")
    try:
        while True:
            request, descriptors = receive(sock)
            if isinstance(request, Reap):
                children.discard(request.pid)
                send(sock, reap(request.pid, end_orphans=not children))
            elif isinstance(request, Preload):
                send(sock, preload(request))
            else:
                pid = fork_rank(request, descriptors, sock, libc)
                children.add(pid)
                send(sock, pid)
    except (EOFError, ConnectionError):
        pass
    finally:
        end_children()


def fork_rank(request: Start, descriptors: Sequence[int], sock: socket.socket, libc: ctypes.CDLL) -> int:
    """Fork a rank, which dies with this process, and return its process id."""
    server = os.getpid()
    pid = os.fork()
    if pid == 0:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != server:
            os._exit(1)
        sock.close()
        become_rank(request.job, *descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    return pid


def reap(pid: int, *, end_orphans: bool) -> int:
    """Wait for a rank that ends, and return its exit code.

    Args:
        pid: process id of the rank.
        end_orphans: True to end the processes that ranks have left behind.
    """
    status = os.waitpid(pid, 0)[1]
    if end_orphans:
        end_children()
    return os.waitstatus_to_exitcode(status)


def preload(request: Preload) -> int:
    """Import modules and read cached results of fake tensors for later ranks; return the number of new threads."""
    threads = count_threads()
    for name in request.modules:
        with suppress(Exception):  # a rank that imports it raises the error itself
            importlib.import_module(name)
    if request.folder:
        autocast.cuda_ops()
        with suppress(Exception):
            shared_entries.read(request.folder)
    freeze()
    return count_threads() - threads


def end_children() -> None:
    """End all child processes, including orphans of ranks."""
    with suppress(ChildProcessError):  # waitpid raises it when no child is left
        while True:
            for children in Path("/proc/self/task").glob("*/children"):
                for pid in children.read_text(encoding="ascii").split():
                    os.kill(int(pid), signal.SIGKILL)
            os.waitpid(-1, 0)


def count_threads() -> int:
    """Return the number of threads of this process, including those of libraries."""
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208 - only names are counted


def plan_tables() -> None:
    """Load the parts of polars and numpy that ranks use, by creating a column and a lazy query that does not run.

    Running the query would start polars' threads, and a process with threads must not be forked.
    """
    pl.Series(np.zeros(1, dtype=np.int64), dtype=pl.Int64)
    table = pl.DataFrame({"rank": [0], "shape": [[0]]}, schema={"rank": pl.Int32, "shape": pl.List(pl.Int64)})
    table.lazy().select(pl.all().gather([0])).with_columns(pl.Series("step", [None], pl.Int64), pl.col("rank") + 1)


def record_nothing() -> None:
    """Open and stop an empty recording, so that ranks inherit the set-up of a process's first recording.

    The recorder's kernels stay registered, as ranks record every cell.
    """
    recorder, recording = in_use(), Recording(stack_depth=1, simulated=False, mesh="")
    recorder.keep_kernels(keep=True)
    recorder.open(recording)
    recorder.stop(recording)


def freeze() -> None:
    """Exempt existing objects from garbage collection, which would copy pages shared with ranks; free unused memory."""
    gc.collect()
    gc.freeze()
    with suppress(AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)
    release_file_pages()


def main(descriptor: int) -> None:
    """Run the server process.

    Args:
        descriptor: inherited descriptor of the server's end of the socket.
    """
    for name in PRELOAD:
        with suppress(ImportError):  # cloudpickle is optional; torch may drop private modules
            importlib.import_module(name)
    clear_compiler_cache()
    plan_tables()
    record_nothing()
    freeze()
    gc.enable()  # the launcher starts this program with it disabled, for faster imports
    with socket.socket(fileno=descriptor) as sock:
        serve(sock)


_MADV_DONTNEED = 4
_SMAPS = Path("/proc/self/smaps")
_MAPPING = re.compile(r"(?P<start>[0-9a-f]+)-(?P<end>[0-9a-f]+) (?P<access>\S{4}) \S+ \S+ \d+\s*(?P<file>/.*)?")


def unwritten_mappings(smaps: str) -> Iterator[tuple[int, int]]:
    """Yield (address, bytes) of each private file mapping that this process may not write to and has not written to.

    A page that was written to, by relocation for example, is in no file and could not be read again.

    Args:
        smaps: text of /proc/PID/smaps.
    """
    mapping: tuple[int, int] | None = None
    for line in smaps.splitlines():
        if match := _MAPPING.match(line):
            start, end = int(match["start"], 16), int(match["end"], 16)
            access = match["access"]
            is_private_file = match["file"] is not None and "w" not in access and access.endswith("p")
            mapping = (start, end - start) if is_private_file else None
        elif mapping is not None and line.split() == ["Anonymous:", "0", "kB"]:
            yield mapping


def release_file_pages() -> None:
    """Release the resident pages of `unwritten_mappings`, such as library code that runs only on import, on Linux.

    A released page stays in the system's cache, and is mapped again when it is accessed.
    """
    if not _SMAPS.exists():
        return
    madvise = ctypes.CDLL(None).madvise
    for address, size in unwritten_mappings(_SMAPS.read_text(encoding="utf-8")):
        madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), _MADV_DONTNEED)
