"""Messages over sockets between the launcher of local ranks, the server they are forked from, and the ranks.

Each message is a pickled object, preceded by its length; a message to the server may bring descriptors of open files.
"""

from __future__ import annotations

import pickle
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

LENGTH = struct.Struct("<Q")


@dataclass(frozen=True)
class RankJob:
    """The program that one rank runs, and its surroundings."""

    rank: int
    world_size: int
    program: bytes
    """A pickled ``(function, arguments)``, or a pickled ``(source text, namespace)``; empty for a rank that runs the
    cells which its channel brings, one after the other."""
    backend: str | None
    """Backend of the process group that is ready when the program starts; None for no group."""
    group_timeout: float
    """Seconds after which a collective of that group gives up."""
    environment: dict[str, str]
    directory: str
    path: tuple[str, ...]
    mesh: str = ""
    """Axes of a mesh that cells find as ``mesh``; empty for none."""


@dataclass(frozen=True)
class Start:
    """Fork one rank; three descriptors come with it: output, channel, stack. Answer: its pid."""

    job: RankJob


@dataclass(frozen=True)
class Reap:
    """Collect the exit code of a rank that has ended. Answer: that code, negative for a signal."""

    pid: int


@dataclass(frozen=True)
class Preload:
    """Import modules, and read what simulated ranks left, so that ranks forked from now on have both. Answer: how many
    threads that has started."""

    modules: tuple[str, ...]
    folder: str = ""
    """The folder in which simulated ranks left what ops returned; empty for none."""


@dataclass(frozen=True)
class Report:
    """End of a rank's program, as reported by the rank."""

    ok: bool
    value: Any = None
    error: str = ""
    traceback: str = ""
    at: float = 0.0
    """When, by the monotonic clock that all processes of the machine share."""


@dataclass(frozen=True)
class Cell:
    """One cell for a rank to run."""

    code: bytes
    """``(body, last expression or None)``, two code objects, marshalled."""
    file: str
    """The file that the code objects name."""
    sources: dict[str, str]
    """{file: source of this cell, or of a cell whose functions it brings}, for tracebacks."""
    names: bytes
    """A pickled mapping of the names that it brings; empty for none."""
    save: str
    """The directory where the rank saves its trace if it is ended while the cell runs; empty for none."""


@dataclass(frozen=True)
class CellReport(Report):
    """End of a cell on one rank; its value is pickled, as the launcher may lack its classes."""

    shown: str = ""
    """The ``repr`` of the value; empty for None."""
    line: int | None = None
    """The line of the cell that raised."""
    seconds: float = 0.0
    """Seconds that the cell ran."""
    trace: bytes = b""
    """The pickled `Trace` of what it recorded; empty where it recorded nothing."""


def unpack_report(answer: bytes | bytearray) -> Report | None:
    """Return the report that a rank has written; None while some of its bytes are missing."""
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
    remaining = LENGTH.unpack(head)[0]
    chunks = []
    while remaining:
        chunk = sock.recv(min(remaining, 1 << 20))
        if not chunk:
            raise EOFError("the other side of the rank server's socket is gone")
        chunks.append(chunk)
        remaining -= len(chunk)
    return pickle.loads(b"".join(chunks)), descriptors
