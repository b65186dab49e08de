"""What a sweep may spend, and what it has spent: seconds, and bytes written to the disk."""

from __future__ import annotations

import math
from collections.abc import Callable

from dsexplore._internal.aio.sweeps.bench_processes import BenchTogether
from dsexplore._internal.aio.sweeps.measure import Bench
from dsexplore._internal.aio.sweeps.sweep_setup import Setup

_FEWEST_SLICES = 48
"""Number of slices of each tensor size that the limit of bytes must allow: a descent, and three rounds of finals."""


class WrittenEnough(Exception):
    """The limit of bytes to write is reached."""


class Budget:
    """Seconds and bytes to write of one sweep.

    Args:
        setup: the sweep's file, which is written by now.
        bench: measures the settings.
        clock: seconds since any moment.
        begun: what `clock` returned when the sweep began.
    """

    def __init__(self, setup: Setup, bench: Bench | BenchTogether, clock: Callable[[], float], begun: float) -> None:
        self._setup, self._bench, self._clock, self._begun = setup, bench, clock, begun
        seconds = setup.plan.seconds
        self.ready = self.elapsed()
        """Seconds spent on creating the file: they count, but at least half of the time is left for the search."""
        self.seconds = math.inf if seconds is None else max(seconds, self.ready + seconds / 2)
        """Seconds that the sweep may take in all; infinite without a limit."""
        self.bytes_by_others = 0
        """Bytes written by other benches than the one that compares settings, and by other programs."""
        self.largest_slice = 0
        """Most bytes written by any slice, including its warm-up."""
        self.is_spent = False
        """True if something was omitted because of the limit of bytes to write."""

    def elapsed(self) -> float:
        """Return the seconds since the sweep began."""
        return self._clock() - self._begun

    def written(self) -> int:
        """Return the bytes written since the sweep began."""
        return self._setup.bytes_written + self._bench.bytes_written + self.bytes_by_others

    def bytes_left(self) -> float:
        """Return the bytes that may still be written; infinite without a limit."""
        limit = self._setup.plan.most_written
        return math.inf if limit is None else limit - self.written()

    def bytes_per_slice(self) -> float:
        """Return the bytes that a slice may write, so that the limit allows enough slices."""
        plan, setup = self._setup.plan, self._setup
        begun = plan.processes * setup.bytes_written
        if plan.most_written is None:
            return math.inf
        return (plan.most_written - begun) / (_FEWEST_SLICES * len(setup.transfers))

    def may_write(self, slices: int, nbytes: int = 0) -> bool:
        """Return True if `slices` more may be written, each as large as the largest so far or `nbytes`."""
        if "write" in self._setup.operations and slices * max(self.largest_slice, nbytes) > self.bytes_left():
            self.is_spent = True
        return not self.is_spent
