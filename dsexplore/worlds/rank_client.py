"""The process that local ranks are forked from, as its owner sees it: started once, when first needed."""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence

from dsexplore.worlds.rank_server import Reap, Start, main, receive, send


class Server:
    """The launcher's side of the rank server."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `close`
        self._socket, theirs = socket.socketpair()
        start = f"import sys; sys.path[:] = {sys.path!r}; from {main.__module__} import main; main({theirs.fileno()})"
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
    def usable(self) -> bool:
        """Whether it runs, and is this process's own (after a fork it is the parent's)."""
        return self.owner == os.getpid() and self._process.poll() is None

    def ask(self, request: Start | Reap, descriptors: Sequence[int] = ()) -> int:
        """Send a request and wait for its answer."""
        with self._lock:
            send(self._socket, request, descriptors)
            answer: int = receive(self._socket)[0]
        return answer

    def close(self) -> None:
        """End it."""
        self._socket.close()
        self._process.wait()
        self._errors.close()


_running: Server | None = None
_starting = threading.Lock()


def server() -> Server:
    """The one of this process.

    Raises:
        RuntimeError: it did not start.
    """
    global _running
    with _starting:
        if _running is None or not _running.usable:
            _running = Server()
        return _running


def close() -> None:
    """End the process that ranks are forked from; the next `run_ranks` starts another. Called at exit."""
    global _running
    with _starting:
        if _running is not None and _running.owner == os.getpid():
            _running.close()
        _running = None


atexit.register(close)
