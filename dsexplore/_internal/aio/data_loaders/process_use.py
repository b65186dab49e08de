"""What a process and its workers have used so far: seconds of processor, bytes read, and bytes from a disk."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")


class ProcessUse(NamedTuple):
    """What one or several processes have used since they began."""

    cpu_seconds: float
    read: int
    """Bytes that they read from files, from the page cache or a disk."""
    from_disk: int
    """Bytes that a disk had to deliver for them."""
    queued_seconds: float = 0.0
    """In which they could have computed, and other programs had the processors; 0 where the system does not say."""


def use_of(pids: Iterable[int]) -> dict[int, ProcessUse]:
    """Return the use of each process, its threads included, that is still there and that this user may look at."""
    uses = {}
    for pid in pids:
        with suppress(OSError):
            folder = Path(f"/proc/{pid}")
            fields = (folder / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
            lines = (folder / "io").read_text(encoding="ascii").splitlines()
            counts = {name: int(value) for name, _, value in (line.partition(": ") for line in lines)}
            cpu = (int(fields[11]) + int(fields[12])) / _TICKS
            uses[pid] = ProcessUse(cpu, counts["rchar"], counts["read_bytes"], _queued(folder))
    return uses


def _queued(process: Path) -> float:
    """Return the seconds that the threads of a process, those that are still there, waited for a processor."""
    waited = 0
    for file in process.glob("task/*/schedstat"):
        with suppress(OSError, IndexError):
            waited += int(file.read_text(encoding="ascii").split()[1])
    return waited / 1e9


def children_of(parent: int) -> list[int]:
    """Return the processes that any thread of a process has started, and theirs."""
    children: list[int] = []
    waiting = [parent]
    while waiting:
        for file in Path(f"/proc/{waiting.pop()}/task").glob("*/children"):
            with suppress(OSError):
                started = [int(word) for word in file.read_text(encoding="ascii").split()]
                children += started
                waiting += started
    return children


def helpers_of_multiprocessing() -> set[int]:
    """Return the processes that ``multiprocessing`` starts beside workers: its resource tracker and its fork server."""
    names = {"multiprocessing.resource_tracker": "_resource_tracker", "multiprocessing.forkserver": "_forkserver"}
    helpers = [getattr(sys.modules[module], name, None) for module, name in names.items() if module in sys.modules]
    pids = [getattr(helper, name, None) for helper in helpers for name in ("_pid", "_forkserver_pid")]
    return {pid for pid in pids if pid is not None}


def used_between(before: dict[int, ProcessUse], after: dict[int, ProcessUse]) -> ProcessUse:
    """Return what processes used between two looks; one that was not there before began at zero."""
    none = ProcessUse(0.0, 0, 0)
    pairs = [(before.get(pid, none), use) for pid, use in after.items()]
    return ProcessUse(*(sum(late[i] - early[i] for early, late in pairs) for i in range(4)))  # type: ignore[arg-type]
