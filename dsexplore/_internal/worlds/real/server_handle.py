"""`Server`: the process that local ranks are forked from, as seen by its launcher.

`server` starts the process, unless it runs, and waits until it takes requests; `start` does not wait. The program of
the process is `worlds.real.rank_server`. This module does not import torch, so that both processes import it at the
same time.
"""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence

from dsexplore._internal.worlds.real.messages import Preload, Reap, Start, receive, send

_PROGRAM = "dsexplore._internal.worlds.real.rank_server"


class Server:
    """A running server: its process, and the launcher's end of the socket.

    Attributes:
        owner: pid of the launcher that started it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `close`
        self._socket, theirs = socket.socketpair()
        start = (
            f"import gc, sys; gc.disable(); sys.path[:] = {sys.path!r}; "  # imported objects are not garbage
            f"from {_PROGRAM} import main; main({theirs.fileno()})"
        )
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", start],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                start_new_session=True,  # only the launcher handles Ctrl-C
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
        self.owner = os.getpid()
        self._is_ready = False

    @property
    def pid(self) -> int:
        """Process number."""
        return self._process.pid

    def wait_until_ready(self) -> None:
        """Wait until the process takes requests.

        Raises:
            RuntimeError: the process did not start.
        """
        with self._lock:
            if self._is_ready:
                return
            try:
                receive(self._socket)
            except EOFError as error:
                self._process.wait()
                self._errors.seek(0)
                text = self._errors.read().decode(errors="replace")
                self.close()
                raise RuntimeError(f"the process that local ranks are forked from did not start:\n{text}") from error
            self._is_ready = True

    @property
    def usable(self) -> bool:
        """True if the server runs and was started by this process, not by a parent that was forked."""
        return self.owner == os.getpid() and self._process.poll() is None

    def request(self, request: Start | Reap | Preload, descriptors: Sequence[int] = ()) -> int:
        """Send a request, with descriptors of open files, and return the answer."""
        with self._lock:
            send(self._socket, request, descriptors)
            answer: int = receive(self._socket)[0]
        return answer

    def close(self) -> None:
        """End the process and close the socket."""
        if not self._is_ready:
            self._process.kill()  # it still imports torch, and has no ranks
        self._socket.close()
        self._process.wait()
        self._errors.close()


_running: Server | None = None
_starting = threading.Lock()


def server() -> Server:
    """Return the server of this process, which is started on the first call, and again if it has died.

    Raises:
        RuntimeError: the server did not start.
    """
    running = start()
    running.wait_until_ready()
    return running


def start() -> Server:
    """Start the server of this process, unless it runs, without waiting for it."""
    global _running
    with _starting:
        if _running is None or not _running.usable:
            _running = Server()
        return _running


def preload(modules: Sequence[str], folder: str = "") -> None:
    """Make the server of this process load what its next ranks need.

    If a module starts threads, the server is ended, because a fork of it could hang.

    Args:
        modules: names of modules to import.
        folder: folder in which simulated ranks saved results of ops on fake tensors; empty for none.
    """
    if server().request(Preload(tuple(modules), folder)) > 0:
        close()


def close() -> None:
    """End the server of this process, which also happens at exit; the next call of `server` starts another."""
    global _running
    with _starting:
        if _running is not None and _running.owner == os.getpid():
            _running.close()
        _running = None


atexit.register(close)
