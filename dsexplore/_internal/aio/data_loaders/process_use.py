"""The resources that processes have used so far: processor time, bytes read, and bytes from a disk."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")


class ProcessUse(NamedTuple):
    """Resources that one or several processes have used since they started."""

    cpu_seconds: float
    """Seconds of processor time."""
    read: int
    """Bytes read from files, out of the page cache or from a disk."""
    from_disk: int
    """Bytes read from a disk."""
    queued_seconds: float = 0.0
    """Seconds of waiting for a processor; 0 if the system does not report them."""


def use_of(pids: Iterable[int]) -> dict[int, ProcessUse]:
    """Return {process: use}; processes that have ended, or that this user may not look at, are omitted."""
    uses = {}
    for pid in pids:
        with suppress(OSError):
            folder = Path(f"/proc/{pid}")
            fields = (folder / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
            lines = (folder / "io").read_text(encoding="ascii").splitlines()
            counts = {name: int(value) for name, _, value in (line.partition(": ") for line in lines)}
            cpu = (int(fields[11]) + int(fields[12])) / _TICKS
            uses[pid] = ProcessUse(
                cpu, read=counts["rchar"], from_disk=counts["read_bytes"], queued_seconds=_queued_seconds(folder)
            )
    return uses


def _queued_seconds(folder: Path) -> float:
    """Return the seconds that the running threads of a process have waited for a processor."""
    nanoseconds = 0
    for file in folder.glob("task/*/schedstat"):
        with suppress(OSError, IndexError):
            nanoseconds += int(file.read_text(encoding="ascii").split()[1])
    return nanoseconds / 1e9


def children_of(parent: int) -> list[int]:
    """Return all descendants of a process."""
    descendants: list[int] = []
    parents = [parent]
    while parents:
        for file in Path(f"/proc/{parents.pop()}/task").glob("*/children"):
            with suppress(OSError):
                children = [int(pid) for pid in file.read_text(encoding="ascii").split()]
                descendants += children
                parents += children
    return descendants


def helpers_of_multiprocessing() -> set[int]:
    """Return the process ids of ``multiprocessing``'s resource tracker and fork server."""
    names = {"multiprocessing.resource_tracker": "_resource_tracker", "multiprocessing.forkserver": "_forkserver"}
    helpers = [getattr(sys.modules[module], name, None) for module, name in names.items() if module in sys.modules]
    pids = [getattr(helper, name, None) for helper in helpers for name in ("_pid", "_forkserver_pid")]
    return {pid for pid in pids if pid is not None}


def used_between(before: dict[int, ProcessUse], after: dict[int, ProcessUse]) -> ProcessUse:
    """Return what processes have used between two readings; processes that are only in `after` have started between."""
    cpu_seconds = queued_seconds = 0.0
    read = from_disk = 0
    for pid, use in after.items():
        earlier = before.get(pid, ProcessUse(cpu_seconds=0.0, read=0, from_disk=0))
        cpu_seconds += use.cpu_seconds - earlier.cpu_seconds
        read += use.read - earlier.read
        from_disk += use.from_disk - earlier.from_disk
        queued_seconds += use.queued_seconds - earlier.queued_seconds
    return ProcessUse(cpu_seconds, read=read, from_disk=from_disk, queued_seconds=queued_seconds)
