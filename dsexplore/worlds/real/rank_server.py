"""The process that local ranks are forked from, and how the launcher talks to it.

The server imports torch once, so that a rank runs a few milliseconds after it was requested. The server holds no
threads, no process group and no device, so a fork of it is as good as a fresh interpreter. `server` starts it when
first called. The server answers two requests over a Unix socket, `Start` and `Reap`, and ends when that socket closes.

Each rank leads a session of its own, so Ctrl-C in the terminal reaches the launcher alone. Each rank dies with the
server, so nothing outlives a launcher that was killed.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress

import polars as pl

from dsexplore.worlds.real.messages import Preload, Reap, Start, receive, send
from dsexplore.worlds.real.rank_process import become_rank

PRELOAD = (
    "torch.distributed.device_mesh",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.distributed.tensor.parallel",
    "torch.testing._internal.distributed.fake_pg",
    "torch._dynamo",
    "dsexplore.comm",
    "dsexplore.worlds.tracing",
    "cloudpickle",
)
_PR_SET_PDEATHSIG = 1


def serve(sock: socket.socket) -> None:
    """Fork ranks on request until the launcher is gone, then end the ranks that are left."""
    libc = ctypes.CDLL(None, use_errno=True)
    children: set[int] = set()
    send(sock, "ready")
    try:
        while True:
            request, descriptors = receive(sock)
            if isinstance(request, Reap):
                children.discard(request.pid)
                send(sock, os.waitstatus_to_exitcode(os.waitpid(request.pid, 0)[1]))
                continue
            if isinstance(request, Preload):
                for name in request.modules:
                    with suppress(Exception):  # a rank that needs it meets the error itself
                        importlib.import_module(name)
                send(sock, len(os.listdir("/proc/self/task")))  # noqa: PTH208 - names are all that is counted
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
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def main(descriptor: int) -> None:
    """Run the server process, which has inherited its end of the socket as ``descriptor``."""
    for name in PRELOAD:
        with suppress(ImportError):  # cloudpickle is an optional dependency
            importlib.import_module(name)
    pl.col("").cast(pl.Int32)  # loads parts of polars, and starts none of its threads
    gc.collect()
    gc.freeze()  # what is imported stays: a rank's collector does not write to the memory that it shares
    with socket.socket(fileno=descriptor) as sock:
        serve(sock)


class Server:
    """The server as the launcher sees it: its process, and the launcher's end of the socket.

    Raises:
        RuntimeError: the process did not start.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `close`
        self._socket, theirs = socket.socketpair()
        start = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import main; main({theirs.fileno()})"
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", start],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                start_new_session=True,  # Ctrl-C is the launcher's to handle
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
        try:
            receive(self._socket)
        except EOFError as error:
            self._process.wait()
            self._errors.seek(0)
            text = self._errors.read().decode(errors="replace")
            self.close()
            raise RuntimeError(f"the process that local ranks are forked from did not start:\n{text}") from error
        self.owner = os.getpid()

    @property
    def pid(self) -> int:
        """The process number."""
        return self._process.pid

    @property
    def usable(self) -> bool:
        """Whether the server runs, and was started by this process (after a fork it is the parent's)."""
        return self.owner == os.getpid() and self._process.poll() is None

    def request(self, request: Start | Reap | Preload, descriptors: Sequence[int] = ()) -> int:
        """Send a request, with descriptors of open files, and wait for the answer."""
        with self._lock:
            send(self._socket, request, descriptors)
            answer: int = receive(self._socket)[0]
        return answer

    def close(self) -> None:
        """End the process and close the socket."""
        self._socket.close()
        self._process.wait()
        self._errors.close()


_running: Server | None = None
_starting = threading.Lock()


def server() -> Server:
    """The server of this process; started when first called, and again where the last one has died.

    Raises:
        RuntimeError: the server did not start.
    """
    global _running
    with _starting:
        if _running is None or not _running.usable:
            _running = Server()
        return _running


def preload(modules: Sequence[str]) -> None:
    """Make the server of this process import modules that its ranks are going to need.

    A server that has more than one thread then is ended, as a fork of it could hang: the next one has no such modules.
    """
    if server().request(Preload(tuple(modules))) > 1:
        close()


def close() -> None:
    """End the server of this process; the next `run_ranks` starts another. Called at exit."""
    global _running
    with _starting:
        if _running is not None and _running.owner == os.getpid():
            _running.close()
        _running = None


atexit.register(close)
