"""One sweep as it runs: round after round with the control in each, then the disk's limit, memories and references."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from itertools import product
from statistics import median

from dsexplore._internal.aio.aio_config import NEAR_LIMIT, AioConfig
from dsexplore._internal.aio.buffers import can_pin
from dsexplore._internal.aio.sweeps import search
from dsexplore._internal.aio.sweeps.bench_processes import BenchTogether
from dsexplore._internal.aio.sweeps.measure import Bench, Operation, Sample
from dsexplore._internal.aio.sweeps.reference_rates import MEMORIES, PINNED, Reference
from dsexplore._internal.aio.sweeps.references import run_deepspeed, run_fio
from dsexplore._internal.aio.sweeps.result import SweepResult
from dsexplore._internal.aio.sweeps.rounds import RoundSlice, mixed_rate
from dsexplore._internal.aio.sweeps.sweep_setup import CONTROL, Plan, Progress, Report, Setup, memory_suffices
from dsexplore._internal.units import format_bytes, format_rate, format_share

_LIMIT_RUNS = 3
_DESCENT_SHARE = 0.45
"""Fraction of the time for the descent; the rest is for the finals."""
_GRID_ROUND = 8
_FEWEST_SLICES = 48
"""Number of slices of each tensor size that the limit of bytes must allow: a descent, and three rounds of finals."""
_MEMORY_TURNS = 5
"""How often each kind of memory is measured, one after the other."""
_MOST_FOR_MEMORY = 0.25
"""Largest fraction of a sweep's time that comparing kinds of memory may take; it is omitted if it would take more."""
_REFERENCE_NOTES = {
    "fio": "libaio, depth × block of ordinary memory per job, 1 s",
    "deepspeed": "one locked tensor of the whole size, as DeepSpeed allocates it",
}
_USED_UP = "what may be written is used up: raise max_written"


class _Spent(Exception):
    """The limit of bytes to write is reached."""


class SweepRun:
    """Measures round after round, with the control in each."""

    def __init__(
        self,
        setup: Setup,
        bench: Bench | BenchTogether,
        plan: Plan,
        report: Report,
        shuffle: random.Random,
        begun: float,
    ) -> None:
        self.measured: list[RoundSlice] = []
        self.spent = False
        """True if something was omitted because of the limit of bytes to write."""
        self.bytes_written = 0
        self._setup, self._bench, self._plan, self._report, self._shuffle = setup, bench, plan, report, shuffle
        self._begun = begun
        self._ready = self.elapsed()
        """Seconds spent on creating the file: they count, but at least half of the time is left for the search."""
        self._limit = math.inf if plan.seconds is None else max(plan.seconds, self._ready + plan.seconds / 2)
        self._round = 0
        self._phase = "descent"
        self._until = math.inf
        """Seconds after which the descent ends, also amid a round: on a slow disk one can take longer than all else."""
        self._steps = self._all_steps = 0
        compares_memories = plan.mode == "tensor" and plan.processes == 1
        self._memories = (*MEMORIES, PINNED) if compares_memories and can_pin() else MEMORIES
        self._memory_slices = len(self._memories) * _MEMORY_TURNS if compares_memories else 0
        self._written_by_slice = 0
        """Most bytes written by any slice, including its warm-up."""
        self._slice_seconds = 0.0
        """Seconds per slice of the last round, including all overhead."""

    def fill(self, result: SweepResult, references: Sequence[str]) -> None:
        """Measure until time or the limit of bytes is used up; Ctrl-C stops it once something is measured."""
        try:
            self.search()
            self.limits(result)
            self.memories(result)
            for name in references:
                self.reference(result, name)
        except _Spent:
            self.spent = True
        except KeyboardInterrupt:
            if not self.measured:
                raise
            result.interrupted = True
        result.bytes_written, result.spent = self.written(), self.spent
        result.elapsed = self.elapsed()

    def written(self) -> int:
        """Return the bytes written since the sweep began."""
        return self._setup.bytes_written + self._bench.bytes_written + self.bytes_written

    def _left(self) -> float:
        """Return the bytes that may still be written."""
        limit = self._plan.most_written
        return math.inf if limit is None else limit - self.written()

    def _by_slice(self) -> float:
        """Return the bytes that a slice may write, so that the limit allows enough slices."""
        limit = self._plan.most_written
        begun = self._plan.processes * self._setup.bytes_written
        return math.inf if limit is None else (limit - begun) / (_FEWEST_SLICES * len(self._setup.transfers))

    def _may_write(self, slices: int, nbytes: int = 0) -> bool:
        """Return True if `slices` more may be written, each as large as the largest so far or `nbytes`."""
        if "write" in self._setup.operations and slices * max(self._written_by_slice, nbytes) > self._left():
            self.spent = True
        return not self.spent

    def elapsed(self) -> float:
        """Return the seconds since the sweep began."""
        return time.monotonic() - self._begun

    def search(self) -> None:
        """Find the best setting: descent or grid, then the finals."""
        plan, bench = self._plan, self._bench
        every = list(self._setup.settings)
        if plan.seconds is None:
            self._phase, self._all_steps = "grid", len(every)
            self._shuffle.shuffle(every)
            scores: dict[AioConfig, float] = {}
            for part in search.chunks(every, _GRID_ROUND):
                scores.update(self.round(part))
            rounds = 5
        else:
            rounds = 10**6
            until = self._until = self._ready + (self._limit - self._ready) * _DESCENT_SHARE
            begin = self._left()

            def go_on() -> bool:
                return self.elapsed() < until and self._left() >= begin * (1 - _DESCENT_SHARE)

            scores = search.descend(self._start(every), plan.axes, self.round, go_on, bench.fits)
        operations, transfers = len(self._setup.operations), len(self._setup.transfers)
        if self._seconds(self._memory_slices * operations) > _MOST_FOR_MEMORY * self._limit:
            self._memory_slices = 0
        # Of slices, before tensors are moved to their end.
        reserve = self._seconds((_LIMIT_RUNS + self._memory_slices) * operations)
        finalists = search.strongest(scores, CONTROL, self._affordable(reserve))
        self._phase, last = "finals", self._round + rounds
        self._steps = self._all_steps = 0
        if finalists:
            slices = (len(finalists) + 1) * transfers

            def more() -> bool:
                in_time = self.elapsed() + self._seconds(slices * operations) + reserve < self._limit
                return in_time and self._round < last and self._may_write(slices + _LIMIT_RUNS)

            search.finals(finalists, self.round, more, self._shuffle)

    def _affordable(self, reserve: float) -> int:
        """Return how many finalists can be measured often enough.

        The limits are the bytes that may still be written and the time that is left, minus `reserve` seconds.
        """
        rounds = (self._limit - self.elapsed() - reserve) / self._seconds_of_finalist()
        if "write" in self._setup.operations and self._written_by_slice:
            rounds = min(rounds, self._left() / self._written_by_slice / len(self._setup.transfers) - _LIMIT_RUNS)
        most = rounds / search.FEWEST_ROUNDS - 1  # the control takes part, too
        return int(min(max(most, 1), search.MOST_FINALISTS))

    def _seconds_of_finalist(self) -> float:
        """Return the expected seconds of one setting in a round of the finals, which move whole tensors."""
        rates = {
            operation: median(
                measured.sample.rate for measured in self.measured if measured.sample.operation == operation
            )
            for operation in self._setup.operations
        }
        parts = product(self._setup.operations, self._setup.transfers)
        together = self._plan.processes  # each moves a tensor of its own, and rates are of all
        return sum(max(self._seconds(1), together * transfer / rates[operation]) for operation, transfer in parts)

    def _start(self, every: Sequence[AioConfig]) -> AioConfig:
        """Return the setting with which the search starts: on each axis the default's value, else the axis's first.

        If that combination is not among the settings, the first of all settings.
        """
        axes = self._plan.axes
        values = {key: getattr(CONTROL, key) for key in axes}
        start = AioConfig(**{key: value if value in axes[key] else axes[key][0] for key, value in values.items()})
        return start if start in every else every[0]

    def _seconds(self, slices: int) -> float:
        """Return the expected duration of `slices` slices, in seconds, so that none starts too late."""
        return slices * max(self._slice_seconds, (self.elapsed() - self._ready) / len(self.measured))

    def round(self, configs: Sequence[AioConfig]) -> dict[AioConfig, float]:
        """Measure settings and the control in shuffled order; return {setting: mixed rate relative to the control}.

        Settings for which the descent has no time are omitted.
        """
        self._round += 1
        order = [*dict.fromkeys([CONTROL, *configs])]
        self._shuffle.shuffle(order)
        rates: dict[AioConfig, float] = {}
        begun, first = self.elapsed(), len(self.measured)
        try:
            for config in order:
                if self._phase == "descent" and CONTROL in rates and len(rates) > 1 and self.elapsed() > self._until:
                    break
                rates[config] = self._rate(config)
        except _Spent:
            del self.measured[first:]  # half a round compares nothing
            raise
        self._slice_seconds = (self.elapsed() - begun) / (len(self.measured) - first)
        return {config: rate / rates[CONTROL] for config, rate in rates.items()}

    def _rate(self, config: AioConfig) -> float:
        """Measure one setting in each direction at each tensor size; return its mixed rate."""
        first, setup = len(self.measured), self._setup
        for operation, transfer in product(setup.operations, setup.transfers):
            self.measured.append(RoundSlice(self._phase, self._round, self._measure(config, operation, transfer)))
        rate = mixed_rate(self.measured[first:], self._plan.read_share)
        self._steps += 1
        self._report(Progress(self._done(), f"{self._phase}: {config} {format_rate(rate)}"))
        return rate

    def _measure(self, config: AioConfig, operation: Operation, transfer: int) -> Sample:
        """Measure one slice; in the finals, tensors are moved completely."""
        bench, whole, most = self._bench, self._phase == "finals", math.inf
        if operation == "write":
            least = 2 * config.bytes_in_flight * self._plan.processes
            if self._left() < least:
                raise _Spent
            most = min(max(self._by_slice(), least), self._left())
        before = bench.bytes_written
        sample = bench.measure(config, operation, self._plan.slice, transfer=transfer, whole=whole, most=most)
        self._written_by_slice = max(self._written_by_slice, bench.bytes_written - before)
        return sample

    def _done(self) -> float:
        if self._plan.seconds is not None:
            return min(self.elapsed() / self._limit, 0.99)
        return min(self._steps / self._all_steps, 0.99) if self._all_steps else 0.99

    def limits(self, result: SweepResult) -> None:
        """Measure the highest rate that the disk reaches: two threads, deep queues, and one ring of memory."""
        setup = self._setup
        config = NEAR_LIMIT if setup.bench.fits(NEAR_LIMIT) else CONTROL
        bench = Bench(
            setup.engine, setup.source, setup.size, mode="ring", write_target=setup.written, renew=setup.renew
        )
        note = f"ring of {format_bytes(config.bytes_in_flight)} on huge pages, {config}"
        try:
            for operation in setup.operations:
                if operation == "write" and not self._may_write(_LIMIT_RUNS):
                    result.conditions.unavailable["ring, write"] = _USED_UP
                    continue
                share = self._left() / _LIMIT_RUNS
                rates = tuple(
                    bench.measure(config, operation, self._plan.slice, most=share).rate for _ in range(_LIMIT_RUNS)
                )
                result.references.append(Reference("ring", operation, config, rates, note))
        finally:
            bench.close()
            self.bytes_written += bench.bytes_written

    def memories(self, result: SweepResult) -> None:
        """Measure the best setting on ordinary and on huge pages in turn, and on pinned memory where there is a GPU."""
        setup, plan = self._setup, self._plan
        if not self._memory_slices or not memory_suffices((len(self._memories) - 1) * setup.size):
            return
        best = result.best().config if result.rounds else CONTROL
        others: list[Bench] = []
        try:
            others.append(setup.new_bench("huge" if plan.memory == "ordinary" else "ordinary"))
            benches = [others[0], setup.bench] if plan.memory == "ordinary" else [setup.bench, others[0]]
            if PINNED in self._memories:
                others.append(setup.new_bench("pinned"))
                benches.append(others[1])
            for operation in setup.operations:
                if operation == "write" and self._memory_slices * self._written_by_slice > self._left():
                    continue
                share = self._left() / self._memory_slices
                turns = [
                    [bench.measure(best, operation, plan.slice, most=share).rate for bench in benches]
                    for _ in range(_MEMORY_TURNS)
                ]
                for name, bench, rates in zip(self._memories, benches, zip(*turns, strict=True), strict=True):
                    huge = bench.buffer.huge_share()
                    note = "share of huge pages unknown" if huge is None else f"{format_share(huge, 1)} huge pages"
                    result.references.append(Reference(name, operation, best, tuple(rates), note))
        finally:
            for other in others:
                other.close()
                self.bytes_written += other.bytes_written

    def reference(self, result: SweepResult, name: str) -> None:
        """Run fio or DeepSpeed's handle with the best setting and the default."""
        setup = self._setup
        best = result.best().config if result.rounds else CONTROL
        configs = list(dict.fromkeys([best, CONTROL]))
        for operation in setup.operations:
            if operation == "write" and not self._may_write(_LIMIT_RUNS * len(configs), self._setup.size):
                result.conditions.unavailable[f"{name}, write"] = _USED_UP
                continue
            self._report(Progress(0.99, f"{name}: {operation}"))
            run, note = self._fio if name == "fio" else self._deepspeed, _REFERENCE_NOTES[name]
            for config, rates in zip(configs, run(configs, operation), strict=True):
                result.references.append(Reference(name, operation, config, rates, note))

    def _fio(self, configs: Sequence[AioConfig], operation: Operation) -> list[tuple[float, ...]]:
        """Return the rate of each setting, from one run of fio each."""
        setup = self._setup
        rates: list[tuple[float, ...]] = []
        for config in configs:
            rate, _ = run_fio(setup.path, setup.size, config, operation, 1.0, direct=setup.source.direct)
            if operation == "write":
                self.bytes_written += int(rate)
            rates.append((rate,))
        return rates

    def _deepspeed(self, configs: Sequence[AioConfig], operation: Operation) -> list[tuple[float, ...]]:
        """Return the rates of each setting in turns, on memory of DeepSpeed's own."""
        setup = self._setup
        rates = run_deepspeed(setup.path, setup.size, configs, operation, _LIMIT_RUNS)
        if operation == "write":
            self.bytes_written += setup.size * _LIMIT_RUNS * len(configs)
        return rates
