"""`dsexplore run` as a user starts it, with the time and the memory of all its processes."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import dsexplore
from dsexplore._internal.units import format_bytes

INTERVAL = 0.2
"""Seconds between two looks at the memory, at least."""
SHARE = 0.02
"""Of a processor, what the looks may take from what is measured."""


@dataclass(frozen=True)
class Measured:
    """What a command took.

    Attributes:
        seconds: by the clock on the wall.
        cpu_seconds: of all its processes together.
        peak: bytes that all its processes held at once, at most: the sum of their proportional set sizes (PSS), in
            which a page that several share counts once.
        output: what it printed.
    """

    seconds: float
    cpu_seconds: float
    peak: int
    output: str

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s ({self.cpu_seconds:.0f} s of CPU), {format_bytes(self.peak)} in all processes"


def run(*arguments: str) -> Measured:
    """Run ``dsexplore run`` with those arguments.

    Raises:
        RuntimeError: it failed.
    """
    root = str(Path(dsexplore.__file__).parents[1])
    command = [sys.executable, "-m", "dsexplore", "run", *arguments]
    environment = {**os.environ, "PYTHONPATH": root, "DSEXPLORE_PROGRESS": "0"}
    before, start = _cpu_seconds(), time.perf_counter()
    running = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=Path(__file__).parent
    )
    peaks = [0]
    ended = threading.Event()
    watch = threading.Thread(target=_watch, args=(running.pid, peaks, ended))
    watch.start()
    try:
        output, _ = running.communicate()
    finally:
        ended.set()
        watch.join()
    seconds = time.perf_counter() - start
    if running.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {running.returncode}:\n{output}")
    return Measured(seconds, _cpu_seconds() - before, max(peaks), output)


def _cpu_seconds() -> float:
    """Of the children that have ended, and theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _watch(pid: int, peaks: list[int], ended: threading.Event) -> None:
    pause = INTERVAL
    while not ended.wait(pause):
        before = time.thread_time()
        peaks.append(sum(map(_pss, _tree(pid))))
        pause = max(INTERVAL, (time.thread_time() - before) / SHARE)


def _tree(pid: int) -> list[int]:
    """A process and all that it started."""
    found = [pid]
    for one in found:
        for task in Path(f"/proc/{one}/task").glob("*/children"):
            found += map(int, _read(task).split())
    return found


def _pss(pid: int) -> int:
    lines = _read(Path(f"/proc/{pid}/smaps_rollup")).splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""  # it has ended meanwhile
