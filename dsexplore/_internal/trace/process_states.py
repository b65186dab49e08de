"""The state of a process of this host: it runs, is stopped, or is gone, and what ended it."""

from __future__ import annotations

import os
import signal
from functools import cache
from pathlib import Path

from dsexplore._internal.trace.ends import KILLED, STOPPED, UNSAVED, WITHOUT_SAVING

_STATE, _FLAGS, _START, _EXIT = 0, 6, 19, 49
"""Fields of ``/proc/PID/stat`` after the name of the process."""
_EXITING = 0x4
"""The kernel's flag for a process that is exiting; its sockets are closed before it becomes a zombie."""


@cache
def host_clock() -> str:
    """Return an id of this host's clock, equal for all processes of one kernel; empty where the kernel has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def start_ticks(pid: int) -> int:
    """Return the start of a process in ticks since boot; 0 if it is gone."""
    fields = _fields(pid)
    return int(fields[_START]) if len(fields) > _START else 0


def end_of_process(pid: int, started: int) -> str:
    """Return how a process ended, in the words of `trace.ends`; empty if it runs.

    Args:
        pid: ID of the process, which ran on this host.
        started: start of the process in ticks since boot, as `start_ticks` returned it while the process ran.
    """
    fields = _fields(pid)
    if len(fields) <= _START or int(fields[_START]) != started:
        return UNSAVED
    if fields[_STATE] in ("T", "t"):
        return STOPPED
    if fields[_STATE] not in ("Z", "X") and not int(fields[_FLAGS]) & _EXITING:
        return ""
    status = int(fields[_EXIT]) if len(fields) > _EXIT else 0
    if os.WIFSIGNALED(status):
        return f"{KILLED}{signal.Signals(os.WTERMSIG(status)).name}"
    return f"ended with exit code {os.WEXITSTATUS(status)}, {WITHOUT_SAVING}"


def _fields(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
