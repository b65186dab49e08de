"""The program of the process that local ranks are forked from; `dsexplore.worlds.real.server_handle` starts it.

The server imports torch once, so that a rank runs a few milliseconds after it was requested. The server holds no
process group, no device and no threads but those that the allocator of polars starts for itself, so a fork of it is as
good as a fresh interpreter. The server answers requests over a Unix socket (`Start`, `Reap`, `Preload`), and ends when
that socket closes.

Each rank leads a session of its own, so Ctrl-C in the terminal reaches the launcher alone. Each rank dies with the
server, and what ranks have started is the server's to end once their own parent is gone: so nothing outlives a launcher
that was killed.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import signal
import socket
from contextlib import suppress
from pathlib import Path

import numpy as np
import polars as pl

from dsexplore.capture.recorder_in_use import in_use
from dsexplore.capture.recording import Recording
from dsexplore.torch_internals.processes import PRELOADED, clear_compilers_lookups
from dsexplore.worlds.cuda import autocast
from dsexplore.worlds.fake import shared_entries
from dsexplore.worlds.real import file_pages
from dsexplore.worlds.real.messages import Preload, Reap, receive, send
from dsexplore.worlds.real.rank_process import become_rank

PRELOAD = (*PRELOADED, "dsexplore.comm", "dsexplore.worlds.commtrace", "cloudpickle")
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def serve(sock: socket.socket) -> None:
    """Serve requests to fork ranks until the launcher is gone, then end the remaining ranks."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)  # what a rank leaves behind becomes this process's child
    children: set[int] = set()
    send(sock, "ready")
    try:
        while True:
            request, descriptors = receive(sock)
            if isinstance(request, Reap):
                children.discard(request.pid)
                status = os.waitpid(request.pid, 0)[1]
                if not children:
                    end_children()
                send(sock, os.waitstatus_to_exitcode(status))
                continue
            if isinstance(request, Preload):
                threads = count_threads()
                for name in request.modules:
                    with suppress(Exception):  # a rank that needs it meets the error itself
                        importlib.import_module(name)
                if request.folder:
                    autocast.cuda_ops()
                    with suppress(Exception):
                        shared_entries.read(request.folder)
                freeze()
                send(sock, count_threads() - threads)
                continue
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
            children.add(pid)
            send(sock, pid)
    except (EOFError, ConnectionError):
        pass
    finally:
        end_children()


def end_children() -> None:
    """End all child processes, and those that these leave behind."""
    with suppress(ChildProcessError):  # none is left
        while True:
            for of_thread in Path("/proc/self/task").glob("*/children"):
                for pid in of_thread.read_text(encoding="ascii").split():
                    os.kill(int(pid), signal.SIGKILL)
            os.waitpid(-1, 0)


def count_threads() -> int:
    """Return the number of threads of this process, including those of libraries."""
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208 - names are all that is counted


def plan_tables() -> None:
    """Build a column of numpy's numbers, and a lazy query of a small table without running it, so that ranks find those
    parts of polars loaded, and numpy's masked arrays, which polars asks for.

    Running it would start the threads that polars computes with, and a process with threads must not be forked.
    """
    pl.Series(np.zeros(1, dtype=np.int64), dtype=pl.Int64)
    table = pl.DataFrame({"rank": [0], "shape": [[0]]}, schema={"rank": pl.Int32, "shape": pl.List(pl.Int64)})
    table.lazy().select(pl.all().gather([0])).with_columns(pl.Series("step", [None], pl.Int64), pl.col("rank") + 1)


def record_nothing() -> None:
    """Record once, without making tables, so that what is made when a process first records is made before the fork,
    and leave the recorder's kernels in front of ops: ranks that run cells record each."""
    recorder, recording = in_use(), Recording(stack_depth=1, simulated=False, mesh="")
    recorder.keep_kernels(True)
    recorder.open(recording)
    recorder.stop(recording)


def freeze() -> None:
    """Keep what is there from the collectors of ranks, which would write to the memory that they share, and give back
    what importing has freed, and the pages of libraries that it alone has used."""
    gc.collect()
    gc.freeze()
    with suppress(AttributeError):  # glibc alone has it
        ctypes.CDLL(None).malloc_trim(0)
    file_pages.let_go()


def main(descriptor: int) -> None:
    """Run the server process, which has inherited its end of the socket as ``descriptor``."""
    for name in PRELOAD:
        with suppress(ImportError):  # cloudpickle is an optional dependency, and private modules of torch may go
            importlib.import_module(name)
    clear_compilers_lookups()
    plan_tables()
    record_nothing()
    freeze()
    gc.enable()  # the handle starts this program without: what is imported stays
    with socket.socket(fileno=descriptor) as sock:
        serve(sock)
