"""The process that local ranks are forked from, and what a forked rank does.

torch is imported once, here, so that a rank is running a few milliseconds after it was asked for. The server
holds no threads, no group and no device: a fork of it is as good as a fresh interpreter. It answers two
requests of `dsexplore.worlds.processes` over a Unix socket (`Start`, `Reap`) and ends when that socket closes.

A rank leads a session of its own, so Ctrl-C in the terminal reaches the launcher alone, and it dies with the
server, so nothing outlives a killed launcher.
"""

from __future__ import annotations

import ast
import ctypes
import faulthandler
import importlib
import linecache
import os
import pickle
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

PRELOAD = (
    "torch",
    "torch.distributed",
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
    """What one rank is to do, and where."""

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
    """Collect the exit status of a rank that has ended. Answer: the exit code, negative for a signal."""

    pid: int


@dataclass(frozen=True)
class Report:
    """How a rank's program ended, as the rank itself tells it."""

    ok: bool
    value: Any = None
    error: str = ""
    traceback: str = ""
    at: float = 0.0
    """When, by the monotonic clock that all processes of the machine share."""


def send(sock: socket.socket, message: object, descriptors: Sequence[int] = ()) -> None:
    """One message, with open files beside it."""
    data = pickle.dumps(message)
    socket.send_fds(sock, [LENGTH.pack(len(data))], list(descriptors))
    sock.sendall(data)


def receive(sock: socket.socket) -> tuple[Any, list[int]]:
    """The next message and the files beside it.

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
    """Fork ranks on request until the launcher is gone, then end those that are left."""
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
    """Run the program in this freshly forked process, report, and wait to be released.

    A rank whose program succeeded stays until all have: sockets that close early look like a failure to peers.
    One that failed leaves at once, so that peers in a collective with it find out.
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
        report, data = _sendable(_report(job))
        sys.stdout.flush()
        sys.stderr.flush()
        with open(result, "wb") as pipe:
            pipe.write(LENGTH.pack(len(data)) + data)
        if report.ok:
            os.read(release, 1)
        os._exit(0 if report.ok else 1)
    finally:
        os._exit(2)


def _sendable(report: Report) -> tuple[Report, bytes]:
    """The report and its bytes; of a value that cannot be sent, a report that says so."""
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
    import cloudpickle

    data: bytes = cloudpickle.dumps(report)
    return data


def _report(job: Job) -> Report:
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
    import torch
    import torch.distributed as td

    torch.set_num_threads(int(job.environment.get("OMP_NUM_THREADS", "1")))
    if job.backend is not None:
        td.init_process_group(job.backend, timeout=timedelta(seconds=job.group_timeout))


def run_source(source: str, namespace: dict[str, Any]) -> str:
    """Execute a cell's text; the ``repr`` of its last expression, "" where it ends with a statement.

    Tracebacks name the file `CELL`, with the cell's own line numbers and lines.
    """
    linecache.cache[CELL] = (len(source), None, source.splitlines(keepends=True), CELL)
    tree = ast.parse(source, CELL)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, CELL, "exec"), namespace)
    if not isinstance(last, ast.Expr):
        return ""
    return repr(eval(compile(ast.Expression(last.value), CELL, "eval"), namespace))


def main(descriptor: int) -> None:
    """Entry of the server process, which inherits its end of the socket."""
    for name in PRELOAD:
        importlib.import_module(name)
    with socket.socket(fileno=descriptor) as sock:
        serve(sock)
