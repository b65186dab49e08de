"""Messages between the launcher of local ranks, the server that they are forked from, and the ranks.

Each message is a pickled object, preceded by its length; a message to the server may carry descriptors of open files.
"""

from __future__ import annotations

import pickle
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

LENGTH = struct.Struct("<Q")
"""Format of the length before each message."""


@dataclass(frozen=True)
class RankJob:
    """The program that one rank runs, and the state of its process."""

    rank: int
    world_size: int
    program: bytes
    """Pickled ``(function, arguments)`` or ``(source text, namespace)``; empty for a rank that runs the cells that its
    channel brings."""
    backend: str | None
    """Backend of the process group that is ready when the program starts; None for no group."""
    group_timeout: float
    """Seconds after which a collective of that group fails."""
    environment: dict[str, str]
    """All environment variables of the process."""
    directory: str
    """Working directory of the process."""
    path: tuple[str, ...]
    """``sys.path`` of the process."""
    mesh: str = ""
    """Axes of a mesh that cells find as ``mesh``; empty for none."""


@dataclass(frozen=True)
class Start:
    """Request to fork a rank, sent with three descriptors: output, channel, stack. The answer is the pid."""

    job: RankJob


@dataclass(frozen=True)
class Reap:
    """Request to wait for a rank that ends. The answer is its exit code, negative for a signal."""

    pid: int


@dataclass(frozen=True)
class Preload:
    """Request to import modules and read cached results for ranks that are forked later.

    The answer is the number of threads that this has started.
    """

    modules: tuple[str, ...]
    folder: str = ""
    """Folder in which simulated ranks saved results of ops on fake tensors; empty for none."""


@dataclass(frozen=True)
class Report:
    """How a rank's program ended, as the rank reports it."""

    ok: bool
    value: Any = None
    error: str = ""
    """Type and message of the exception, ``"RuntimeError: …"``; empty if there was none."""
    traceback: str = ""
    at: float = 0.0
    """Time of the exception, by the monotonic clock that all processes of the machine share."""


@dataclass(frozen=True)
class Cell:
    """One cell for a rank to run."""

    code: bytes
    """Marshalled ``(body, last expression or None)``, two code objects."""
    file: str
    """File name of the code objects."""
    sources: dict[str, str]
    """{file: source}, for tracebacks: of this cell, and of cells that define functions it sends."""
    names: bytes
    """Pickled mapping of the notebook's names that the cell needs; empty for none."""
    save: str
    """Folder in which the rank saves its trace if it is ended during the cell; empty for none."""


@dataclass(frozen=True)
class CellReport(Report):
    """How a cell ended on one rank; its value is pickled, as the launcher may lack the value's class."""

    shown: str = ""
    """The ``repr`` of the value; empty for None."""
    line: int | None = None
    """Line of the cell that raised."""
    seconds: float = 0.0
    """Seconds that the cell ran."""
    trace: bytes = b""
    """Pickled `Trace` of the cell; empty if nothing was recorded."""


def unpack_report(data: bytes | bytearray) -> Report | None:
    """Return the report that a rank has written; None while some of its bytes are missing."""
    size = LENGTH.size
    if len(data) < size or len(data) - size < LENGTH.unpack(data[:size])[0]:
        return None
    report: Report = pickle.loads(bytes(data[size:]))
    return report


def send(sock: socket.socket, message: object, descriptors: Sequence[int] = ()) -> None:
    """Send one message, with descriptors of open files."""
    data = pickle.dumps(message)
    socket.send_fds(sock, [LENGTH.pack(len(data))], list(descriptors))
    sock.sendall(data)


def receive(sock: socket.socket) -> tuple[Any, list[int]]:
    """Receive the next message and the descriptors sent with it.

    Raises:
        EOFError: the other side has closed the socket.
    """
    head, descriptors, _, _ = socket.recv_fds(sock, LENGTH.size, 8)
    while 0 < len(head) < LENGTH.size:
        head += sock.recv(LENGTH.size - len(head))
    if not head:
        raise EOFError("the other side of the rank server's socket is gone")
    remaining = LENGTH.unpack(head)[0]
    chunks = []
    while remaining:
        chunk = sock.recv(min(remaining, 1 << 20))
        if not chunk:
            raise EOFError("the other side of the rank server's socket is gone")
        chunks.append(chunk)
        remaining -= len(chunk)
    return pickle.loads(b"".join(chunks)), descriptors
