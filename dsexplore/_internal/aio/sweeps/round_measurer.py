"""Measure settings in rounds, each with the default beside them, within a budget of seconds and bytes to write."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from itertools import product
from statistics import median

from dsexplore._internal.aio.aio_config import AioConfig
from dsexplore._internal.aio.sweeps.bench_processes import BenchTogether
from dsexplore._internal.aio.sweeps.measure import Bench
from dsexplore._internal.aio.sweeps.measurements import Operation, Phase, RoundSlice, Sample, mixed_rate
from dsexplore._internal.aio.sweeps.sweep_setup import CONTROL, Progress, Report, Setup
from dsexplore._internal.units import format_rate

_FEWEST_SLICES = 48
"""Number of slices of each tensor size that the limit of bytes must allow: a descent, and three rounds of finals."""


class WrittenEnough(Exception):
    """Raised when the limit of bytes to write is reached."""


class Budget:
    """The seconds and the bytes to write of one sweep, and what is left of them.

    Args:
        setup: the sweep's file, which has been written.
        bench: the bench that compares settings.
        clock: returns seconds.
        begun: time of `clock` at which the sweep began.
    """

    def __init__(self, setup: Setup, bench: Bench | BenchTogether, clock: Callable[[], float], begun: float) -> None:
        self._setup, self._bench, self._clock, self._begun = setup, bench, clock, begun
        seconds = setup.plan.seconds
        self.ready = self.elapsed()
        """Seconds until the file was written. They are part of the sweep's time, but the search gets at least half of
        that time."""
        self.seconds = math.inf if seconds is None else max(seconds, self.ready + seconds / 2)
        """Seconds that the whole sweep may take; infinite without a limit."""
        self.bytes_by_others = 0
        """Bytes written by other programs, and by benches other than the one that compares settings."""
        self.largest_slice = 0
        """Largest number of bytes that a slice has written, including its warm-up."""
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
        """Return the bytes that a slice may write, so that the limit allows enough slices; infinite without a limit."""
        plan, setup = self._setup.plan, self._setup
        if plan.most_written is None:
            return math.inf
        bytes_of_files = plan.processes * setup.bytes_written
        return (plan.most_written - bytes_of_files) / (_FEWEST_SLICES * len(setup.transfers))

    def may_write(self, slices: int, nbytes: int = 0) -> bool:
        """Return True if so many slices may still be written, each as large as the largest so far, or as `nbytes`.

        If not, `is_spent` becomes True.
        """
        if "write" in self._setup.operations and slices * max(self.largest_slice, nbytes) > self.bytes_left():
            self.is_spent = True
        return not self.is_spent


class RoundMeasurer:
    """Measures rounds of settings, in each direction and at each tensor size.

    Args:
        setup: directions, tensor sizes and slice length of the sweep.
        bench: measures one slice.
        budget: seconds and bytes that the sweep may spend.
        report: called with the progress after each setting.
        shuffle: random generator for the order of the settings in a round.
    """

    def __init__(
        self, setup: Setup, bench: Bench | BenchTogether, budget: Budget, report: Report, shuffle: random.Random
    ) -> None:
        self.measured: list[RoundSlice] = []
        """Slices so far."""
        self.round = 0
        """Number of the current round, from 1."""
        self.unfinished_round: int | None = None
        """Number of the round that is being measured, or that was interrupted; None between rounds."""
        self.shuffle = shuffle
        self._setup = setup
        self._bench = bench
        self._budget = budget
        self._report = report
        self._slice_seconds = 0.0
        """Seconds per slice of the last round, including all overhead."""
        self.begin_phase("descent")

    def begin_phase(self, phase: Phase, *, settings: int = 0, until: float = math.inf) -> None:
        """Begin a phase; later rounds belong to it.

        Args:
            phase: name of the phase.
            settings: number of settings to measure, for the progress; 0 if unknown.
            until: seconds since the sweep began after which a round ends early, since a round can take very long on a
                slow disk.
        """
        self._phase, self._settings, self._until, self._settings_done = phase, settings, until, 0

    def measure(self, configs: Sequence[AioConfig]) -> dict[AioConfig, float]:
        """Measure settings and the control in shuffled order; return {setting: mixed rate relative to the control}.

        Settings for which the phase has no time are omitted.

        Raises:
            WrittenEnough: the limit of bytes to write is reached; the slices of this round are dropped.
        """
        self.round += 1
        self.unfinished_round = self.round
        order = [*dict.fromkeys([CONTROL, *configs])]
        self.shuffle.shuffle(order)
        rates: dict[AioConfig, float] = {}
        begun, first = self._budget.elapsed(), len(self.measured)
        try:
            for config in order:
                if CONTROL in rates and len(rates) > 1 and self._budget.elapsed() > self._until:
                    break
                rates[config] = self._measure_setting(config)
        except WrittenEnough:
            del self.measured[first:]  # an unfinished round cannot be compared
            self.unfinished_round = None
            raise
        self.unfinished_round = None
        self._slice_seconds = (self._budget.elapsed() - begun) / (len(self.measured) - first)
        return {config: rate / rates[CONTROL] for config, rate in rates.items()}

    def _measure_setting(self, config: AioConfig) -> float:
        """Measure one setting in each direction at each tensor size; return its mixed rate."""
        first, setup = len(self.measured), self._setup
        for operation, transfer in product(setup.operations, setup.transfers):
            self.measured.append(RoundSlice(self._phase, self.round, self._measure_slice(config, operation, transfer)))
        rate = mixed_rate(self.measured[first:], setup.plan.read_share)
        self._settings_done += 1
        self._report(Progress(self._progress(), f"{self._phase}: {config} {format_rate(rate)}"))
        return rate

    def _measure_slice(self, config: AioConfig, operation: Operation, transfer: int) -> Sample:
        """Measure one slice within the budget; in the finals, tensors are moved completely."""
        plan, bench, budget = self._setup.plan, self._bench, self._budget
        most = math.inf
        if operation == "write":
            least = 2 * config.bytes_in_flight * plan.processes
            if budget.bytes_left() < least:
                raise WrittenEnough
            most = min(max(budget.bytes_per_slice(), least), budget.bytes_left())
        before = bench.bytes_written
        whole = self._phase == "finals"
        sample = bench.measure(config, operation, plan.slice, transfer=transfer, whole=whole, most=most)
        budget.largest_slice = max(budget.largest_slice, bench.bytes_written - before)
        return sample

    def _progress(self) -> float:
        """Return the fraction of the sweep's time that has passed; without a limit of time, of its settings."""
        if self._setup.plan.seconds is not None:
            return min(self._budget.elapsed() / self._budget.seconds, 0.99)
        return min(self._settings_done / self._settings, 0.99) if self._settings else 0.99

    def expected_seconds(self, slices: int) -> float:
        """Return the expected seconds of a number of slices."""
        mean = (self._budget.elapsed() - self._budget.ready) / len(self.measured)
        return slices * max(self._slice_seconds, mean)

    def expected_seconds_in_finals(self) -> float:
        """Return the expected seconds of one setting in a round of the finals, which move whole tensors."""
        setup = self._setup
        seconds = 0.0
        for operation in setup.operations:
            # the rate of all processes, each of which moves a tensor of its own
            rate = median(m.sample.rate for m in self.measured if m.sample.operation == operation)
            for transfer in setup.transfers:
                seconds += max(self.expected_seconds(1), setup.plan.processes * transfer / rate)
        return seconds
