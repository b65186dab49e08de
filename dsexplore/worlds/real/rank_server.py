"""The process that local ranks are forked from: how the launcher talks to it, and what a forked rank does.

The server imports torch once, so that a rank runs a few milliseconds after it was requested. The server holds no
threads, no process group and no device, so a fork of it is as good as a fresh interpreter. `server` starts it when
first called. The server answers two requests over a Unix socket, `Start` and `Reap`, and ends when that socket closes.

Each rank leads a session of its own, so Ctrl-C in the terminal reaches the launcher alone. Each rank dies with the
server, so nothing outlives a launcher that was killed.
"""

from __future__ import annotations

import ast
import atexit
import ctypes
import faulthandler
import importlib
import linecache
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as td

from dsexplore.errors import UsageError

PRELOAD = (
    "torch.distributed.device_mesh",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.distributed.tensor.parallel",
    "torch.testing._internal.distributed.fake_pg",
    "torch._dynamo",
    "dsexplore.comm",
)
CELL = "<rank cell>"
LENGTH = struct.Struct("<Q")
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Job:
    """The program that one rank runs, and its surroundings."""

    rank: int
    world_size: int
    program: bytes
    """A pickled ``(function, arguments)``, or a pickled ``(source text, namespace)``."""
    backend: str | None
    """Backend of the process group that is ready when the program starts; None for no group."""
    group_timeout: float
    """Seconds after which a collective of that group gives up."""
    environment: dict[str, str]
    directory: str
    path: tuple[str, ...]


@dataclass(frozen=True)
class Start:
    """Fork one rank; four descriptors come with it: output, result, release, stack. Answer: its pid."""

    job: Job


@dataclass(frozen=True)
class Reap:
    """Collect the exit code of a rank that has ended. Answer: that code, negative for a signal."""

    pid: int


@dataclass(frozen=True)
class Preload:
    """Import modules, so that ranks forked from now on have them. Answer: how many threads the server has then."""

    modules: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """How a rank's program ended, as the rank itself reports it."""

    ok: bool
    value: Any = None
    error: str = ""
    traceback: str = ""
    at: float = 0.0
    """When, by the monotonic clock that all processes of the machine share."""


def pack_program(program: Callable[..., Any] | str, args: Sequence[Any], namespace: Mapping[str, Any] | None) -> bytes:
    """The program of a `Job` as bytes; functions of test files and notebooks travel by value.

    Raises:
        UsageError: the program cannot be pickled, or needs cloudpickle, which is not installed.
    """
    if isinstance(program, str) and not namespace:
        return pickle.dumps((program, {}))
    try:
        import cloudpickle
    except ImportError as error:
        hint = "pip install cloudpickle, or give the program as source text without namespace"
        raise UsageError(f"functions and objects are sent to ranks with cloudpickle: {hint}") from error
    module = sys.modules.get(getattr(program, "__module__", "") or "")
    by_value = module is not None and module.__name__.partition(".")[0] != "dsexplore"
    if by_value:
        cloudpickle.register_pickle_by_value(module)
    try:
        packed: bytes = cloudpickle.dumps((program, dict(namespace or {}) if isinstance(program, str) else tuple(args)))
    except Exception as error:
        raise UsageError(f"the program cannot be sent to its ranks: {error}; pass plain data and functions") from error
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(module)
    return packed


def unpack_report(answer: bytes | bytearray) -> Report | None:
    """The report that a rank has written, or None while some of its bytes are missing."""
    size = LENGTH.size
    if len(answer) < size or len(answer) - size < LENGTH.unpack(answer[:size])[0]:
        return None
    report: Report = pickle.loads(bytes(answer[size:]))
    return report


def send(sock: socket.socket, message: object, descriptors: Sequence[int] = ()) -> None:
    """Send one message, with the descriptors of open files."""
    data = pickle.dumps(message)
    socket.send_fds(sock, [LENGTH.pack(len(data))], list(descriptors))
    sock.sendall(data)


def receive(sock: socket.socket) -> tuple[Any, list[int]]:
    """Receive the next message and the descriptors sent with it.

    Raises:
        EOFError: the other side is gone.
    """
    head, descriptors, _, _ = socket.recv_fds(sock, LENGTH.size, 8)
    while 0 < len(head) < LENGTH.size:
        head += sock.recv(LENGTH.size - len(head))
    if not head:
        raise EOFError("the other side of the rank server's socket is gone")
    left = LENGTH.unpack(head)[0]
    chunks = []
    while left:
        chunk = sock.recv(min(left, 1 << 20))
        if not chunk:
            raise EOFError("the other side of the rank server's socket is gone")
        chunks.append(chunk)
        left -= len(chunk)
    return pickle.loads(b"".join(chunks)), descriptors


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
                _become_rank(request.job, *descriptors)
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


def _become_rank(job: Job, output: int, result: int, release: int, stack: int) -> NoReturn:
    """Run the program in this freshly forked process, report how it ended, and wait to be released.

    A rank whose program succeeded stays until all have ended: sockets that close early look like a failure to its
    peers. A rank that failed exits at once, so that peers in a collective with it find out.
    """
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        faulthandler.register(signal.SIGUSR1, file=stack, all_threads=False)
        for stream in (1, 2):
            os.dup2(output, stream)
        os.close(output)
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 - the process's own stdout
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115 - and stderr
        report, data = _pack_report(_run_program(job))
        sys.stdout.flush()
        sys.stderr.flush()
        with open(result, "wb") as pipe:
            pipe.write(LENGTH.pack(len(data)) + data)
        if report.ok:
            os.read(release, 1)
        os._exit(0 if report.ok else 1)
    finally:
        os._exit(2)


def _pack_report(report: Report) -> tuple[Report, bytes]:
    """The report and its bytes; where the value cannot be pickled, a report of that error."""
    reason = ""
    for pickler in (pickle.dumps, _cloudpickled):
        try:
            return report, pickler(report)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
    name = type(report.value).__name__
    problem = f"TypeError: the program returned a {name}, which cannot be sent back ({reason}): return plain data"
    report = Report(False, error=problem, at=time.monotonic())
    return report, pickle.dumps(report)


def _cloudpickled(report: Report) -> bytes:
    import cloudpickle  # an optional dependency, and needed by few programs

    data: bytes = cloudpickle.dumps(report)
    return data


def _run_program(job: Job) -> Report:
    try:
        os.environ.clear()
        os.environ.update(job.environment)
        os.chdir(job.directory)
        sys.path[:] = job.path
        _prepare_torch(job)
        program, extra = pickle.loads(job.program)
        if isinstance(program, str):
            namespace = {"__name__": "__main__", "rank": job.rank, "world_size": job.world_size, **extra}
            return Report(True, run_source(program, namespace))
        return Report(True, program(*extra))
    except BaseException as error:  # SystemExit and KeyboardInterrupt of the program are its failures too
        text = "".join(traceback.format_exception(error))
        return Report(False, error=f"{type(error).__name__}: {error}", traceback=text, at=time.monotonic())


def _prepare_torch(job: Job) -> None:
    torch.set_num_threads(int(job.environment.get("OMP_NUM_THREADS", "1")))
    if job.backend is not None:
        td.init_process_group(job.backend, timeout=timedelta(seconds=job.group_timeout))


def run_source(source: str, namespace: dict[str, Any]) -> str:
    """Execute source text and return the ``repr`` of its last expression, "" where it ends with a statement.

    Tracebacks name the file `CELL`, with the text's own line numbers and lines.
    """
    linecache.cache[CELL] = (len(source), None, source.splitlines(keepends=True), CELL)
    tree = ast.parse(source, CELL)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, CELL, "exec"), namespace)
    if not isinstance(last, ast.Expr):
        return ""
    return repr(eval(compile(ast.Expression(last.value), CELL, "eval"), namespace))


def main(descriptor: int) -> None:
    """Run the server process, which has inherited its end of the socket as ``descriptor``."""
    for name in PRELOAD:
        importlib.import_module(name)
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
    """Let the server of this process import modules that its ranks are going to need.

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
