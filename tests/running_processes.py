"""Find out whether processes that a test started still run, and whether they wait."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from dsexplore._internal.worlds.real.rank_handle import RankHandle
from tests.waiting import wait_until

LOOKS = 3
"""Looks in a row at which a process has to sleep before it counts as waiting."""


def is_running(pid: int) -> bool:
    """Return whether a process is there and has not ended; one whose parent has not asked how it ended has."""
    return state_of(pid) not in ("", "Z")


def is_waiting(pid: int) -> bool:
    """Return whether every thread of a process sleeps, at several looks in a row: it waits for another, and not for a
    turn on a busy machine, in which a thread that could go on counts as running."""
    for _ in range(LOOKS):
        if {_state(thread) for thread in Path(f"/proc/{pid}/task").glob("*")} != {"S"}:
            return False
        time.sleep(0.01)
    return True


def state_of(pid: int) -> str:
    """Return the letter of a process's state: ``S`` where it sleeps, ``T`` where it is stopped, ``Z`` where it has
    ended and nobody has asked how; empty where it is gone."""
    return _state(Path(f"/proc/{pid}"))


def has_come(rank: RankHandle) -> bool:
    """Return whether a rank has printed ``here`` and waits now, or is stopped, or has finished or ended."""
    rank.read()
    if rank.status is not None or rank.is_over or rank.check_whether_stopped():
        return True
    return b"here" in rank.output.data and is_waiting(rank.pid)


def wait_until_all_have_come(ranks: Sequence[RankHandle], deadline: float) -> None:
    """Wait until each rank `has_come`; fails the test where one has not by that time of the monotonic clock."""
    wait_until(lambda: all(map(has_come, ranks)), deadline - time.monotonic())


def _state(process: Path) -> str:
    """Return the letter of the state of a process or thread; empty where it is gone."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # gone before the file is opened, or read
        return ""
