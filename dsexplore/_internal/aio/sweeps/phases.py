"""The phases of a sweep, in order: search, finals, the disk's limit, kinds of memory, other programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

from dsexplore._internal.aio.aio_config import NEAR_LIMIT, AioConfig
from dsexplore._internal.aio.buffers import can_pin
from dsexplore._internal.aio.sweeps import search
from dsexplore._internal.aio.sweeps.measure import Bench, Operation
from dsexplore._internal.aio.sweeps.measurements import Conditions
from dsexplore._internal.aio.sweeps.reference_rates import MEMORIES, PINNED, Reference
from dsexplore._internal.aio.sweeps.references import run_deepspeed, run_fio
from dsexplore._internal.aio.sweeps.result import SweepResult
from dsexplore._internal.aio.sweeps.round_measurer import Budget, RoundMeasurer, WrittenEnough
from dsexplore._internal.aio.sweeps.sweep_setup import CONTROL, Progress, Report, Setup, memory_suffices
from dsexplore._internal.units import format_bytes, format_share

_LIMIT_RUNS = 3
_DESCENT_SHARE = 0.45
"""Fraction of the time for the descent; the rest is for the finals."""
_GRID_ROUND = 8
_GRID_FINALS = 5
"""Rounds of finals after a full grid, which has no limit of time."""
_MEMORY_TURNS = 5
"""How often each kind of memory is measured, one after the other."""
_MOST_FOR_MEMORY = 0.25
"""Largest fraction of a sweep's time that comparing kinds of memory may take; it is omitted if it would take more."""
_REFERENCE_NOTES = {
    "fio": "libaio, depth × block of ordinary memory per job, 1 s",
    "deepspeed": "one locked tensor of the whole size, as DeepSpeed allocates it",
}
_USED_UP = "what may be written is used up: raise max_written"


@dataclass
class RunningSweep:
    """What the phases share: the file, what measures, what may be spent, and the results so far."""

    setup: Setup
    measurer: RoundMeasurer
    budget: Budget
    report: Report
    conditions: Conditions
    references: list[Reference] = field(default_factory=list)

    def result(self, *, interrupted: bool = False) -> SweepResult:
        """Return what is measured so far."""
        return SweepResult(
            disk=self.setup.disk,
            conditions=self.conditions,
            measured=tuple(self.measurer.measured),
            references=tuple(self.references),
            bytes_written=self.budget.written(),
            elapsed=self.budget.elapsed(),
            interrupted=interrupted,
            unfinished_round=self.measurer.unfinished_round,
            spent=self.budget.is_spent,
        )

    def recommended(self) -> AioConfig:
        """Return the setting that is recommended so far; the default before any round is finished."""
        result = self.result()
        return result.best().config if result.rounds else CONTROL

    def omit(self, name: str) -> None:
        """Note that something is not measured because of the limit of bytes to write."""
        unavailable = {**self.conditions.unavailable, name: _USED_UP}
        self.conditions = replace(self.conditions, unavailable=unavailable)


def run_phases(run: RunningSweep, references: Sequence[str]) -> SweepResult:
    """Measure until time or the limit of bytes is used up; Ctrl-C ends it once something is measured.

    Args:
        run: the sweep, before its first round.
        references: names of the programs to run beside ours.

    Raises:
        KeyboardInterrupt: nothing is measured yet.
    """
    interrupted = False
    try:
        scores = search_settings(run)
        memories = affordable_memories(run)
        slices = (_LIMIT_RUNS + len(memories) * _MEMORY_TURNS) * len(run.setup.operations)
        # of slices, before tensors are moved to their end
        run_finals(run, scores, run.measurer.expected_seconds(slices))
        measure_limit(run)
        compare_memories(run, memories)
        for name in references:
            run_reference(run, name)
    except WrittenEnough:
        run.budget.is_spent = True
    except KeyboardInterrupt:
        if not run.measurer.measured:
            raise
        interrupted = True
    return run.result(interrupted=interrupted)


def search_settings(run: RunningSweep) -> dict[AioConfig, float]:
    """Measure every setting, or those on a descent along the axes; return {setting: rate relative to the control}."""
    plan, measurer, budget = run.setup.plan, run.measurer, run.budget
    every = list(run.setup.settings)
    if plan.seconds is None:
        measurer.begin_phase("grid", settings=len(every))
        measurer.shuffle.shuffle(every)
        scores: dict[AioConfig, float] = {}
        for part in search.chunks(every, _GRID_ROUND):
            scores.update(measurer.measure(part))
        return scores
    until = budget.ready + (budget.seconds - budget.ready) * _DESCENT_SHARE
    measurer.begin_phase("descent", until=until)
    begin = budget.bytes_left()

    def go_on() -> bool:
        return budget.elapsed() < until and budget.bytes_left() >= begin * (1 - _DESCENT_SHARE)

    return search.descend(_start(run), plan.axes, measurer.measure, go_on, run.setup.bench.fits)


def _start(run: RunningSweep) -> AioConfig:
    """Return the setting with which the descent starts: on each axis the default's value, else the axis's first.

    If that combination is not among the settings, the first of all settings.
    """
    axes, every = run.setup.plan.axes, run.setup.settings
    values = {key: getattr(CONTROL, key) for key in axes}
    start = AioConfig(**{key: value if value in axes[key] else axes[key][0] for key, value in values.items()})
    return start if start in every else every[0]


def affordable_memories(run: RunningSweep) -> tuple[str, ...]:
    """Return the kinds of memory to compare at the end; none if that would take too much of the time."""
    plan = run.setup.plan
    if plan.mode != "tensor" or plan.processes > 1:
        return ()
    memories = (*MEMORIES, PINNED) if can_pin() else MEMORIES
    slices = len(memories) * _MEMORY_TURNS * len(run.setup.operations)
    affordable = run.measurer.expected_seconds(slices) <= _MOST_FOR_MEMORY * run.budget.seconds
    return memories if affordable else ()


def run_finals(run: RunningSweep, scores: dict[AioConfig, float], reserve: float) -> None:
    """Measure the strongest settings again and again, until they can be told apart or `reserve` seconds are left."""
    setup, measurer, budget = run.setup, run.measurer, run.budget
    finalists = search.strongest(scores, CONTROL, _affordable_finalists(run, reserve))
    if not finalists:
        return
    measurer.begin_phase("finals")
    last = measurer.round + _GRID_FINALS if setup.plan.seconds is None else None
    slices = (len(finalists) + 1) * len(setup.transfers)

    def more() -> bool:
        seconds = measurer.expected_seconds(slices * len(setup.operations))
        in_time = budget.elapsed() + seconds + reserve < budget.seconds
        return in_time and measurer.round != last and budget.may_write(slices + _LIMIT_RUNS)

    search.finals(finalists, measurer.measure, more, measurer.shuffle)


def _affordable_finalists(run: RunningSweep, reserve: float) -> int:
    """Return how many finalists can be measured often enough.

    The limits are the bytes that may still be written and the time that is left, minus `reserve` seconds.
    """
    setup, budget = run.setup, run.budget
    rounds = (budget.seconds - budget.elapsed() - reserve) / run.measurer.expected_seconds_in_finals()
    if "write" in setup.operations and budget.largest_slice:
        rounds = min(rounds, budget.bytes_left() / budget.largest_slice / len(setup.transfers) - _LIMIT_RUNS)
    most = rounds / search.FEWEST_ROUNDS - 1  # the control takes part, too
    return int(min(max(most, 1), search.MOST_FINALISTS))


@contextmanager
def _closing(bench: Bench, budget: Budget) -> Iterator[Bench]:
    """Close a further bench in the end, and count what it has written."""
    try:
        yield bench
    finally:
        bench.close()
        budget.bytes_by_others += bench.bytes_written


def measure_limit(run: RunningSweep) -> None:
    """Measure the highest rate that the disk reaches: two threads, deep queues, and one ring of memory."""
    setup, budget = run.setup, run.budget
    config = NEAR_LIMIT if setup.bench.fits(NEAR_LIMIT) else CONTROL
    note = f"ring of {format_bytes(config.bytes_in_flight)} on huge pages, {config}"
    ring = Bench(setup.engine, setup.source, setup.size, mode="ring", write_target=setup.written, renew=setup.renew)
    with _closing(ring, budget) as bench:
        for operation in setup.operations:
            if operation == "write" and not budget.may_write(_LIMIT_RUNS):
                run.omit("ring, write")
                continue
            most = budget.bytes_left() / _LIMIT_RUNS
            rates = [bench.measure(config, operation, setup.plan.slice, most=most).rate for _ in range(_LIMIT_RUNS)]
            run.references.append(Reference("ring", operation, config, tuple(rates), note))


def compare_memories(run: RunningSweep, memories: Sequence[str]) -> None:
    """Measure the recommended setting on each kind of memory in turn, if there is memory for it.

    Args:
        run: the sweep.
        memories: of `MEMORIES`, with `PINNED` if there is a GPU; empty to compare nothing.
    """
    setup, budget, plan = run.setup, run.budget, run.setup.plan
    if not memories or not memory_suffices((len(memories) - 1) * setup.size):
        return
    best = run.recommended()
    slices = len(memories) * _MEMORY_TURNS
    with ExitStack() as stack:

        def new_bench(memory: str) -> Bench:
            return stack.enter_context(_closing(setup.new_bench(memory), budget))

        if plan.memory == "ordinary":
            benches = [new_bench("huge"), setup.bench]
        else:
            benches = [setup.bench, new_bench("ordinary")]
        if PINNED in memories:
            benches.append(new_bench("pinned"))
        for operation in setup.operations:
            if operation == "write" and slices * budget.largest_slice > budget.bytes_left():
                continue
            most = budget.bytes_left() / slices
            turns = [
                [bench.measure(best, operation, plan.slice, most=most).rate for bench in benches]
                for _ in range(_MEMORY_TURNS)
            ]
            for name, bench, rates in zip(memories, benches, zip(*turns, strict=True), strict=True):
                huge = bench.buffer.huge_share()
                note = "share of huge pages unknown" if huge is None else f"{format_share(huge, 1)} huge pages"
                run.references.append(Reference(name, operation, best, tuple(rates), note))


def run_reference(run: RunningSweep, name: str) -> None:
    """Run fio or DeepSpeed's handle with the recommended setting and the default."""
    setup, budget = run.setup, run.budget
    configs = list(dict.fromkeys([run.recommended(), CONTROL]))
    for operation in setup.operations:
        if operation == "write" and not budget.may_write(_LIMIT_RUNS * len(configs), setup.size):
            run.omit(f"{name}, write")
            continue
        run.report(Progress(0.99, f"{name}: {operation}"))
        measure = _fio_rates if name == "fio" else _deepspeed_rates
        for config, rates in zip(configs, measure(run, configs, operation), strict=True):
            run.references.append(Reference(name, operation, config, rates, _REFERENCE_NOTES[name]))


def _fio_rates(run: RunningSweep, configs: Sequence[AioConfig], operation: Operation) -> list[tuple[float, ...]]:
    """Return the rate of each setting, from one run of fio each."""
    setup = run.setup
    rates: list[tuple[float, ...]] = []
    for config in configs:
        rate, _ = run_fio(setup.path, setup.size, config, operation, 1.0, direct=setup.source.direct)
        if operation == "write":
            run.budget.bytes_by_others += int(rate)
        rates.append((rate,))
    return rates


def _deepspeed_rates(run: RunningSweep, configs: Sequence[AioConfig], operation: Operation) -> list[tuple[float, ...]]:
    """Return the rates of each setting in turns, on memory of DeepSpeed's own."""
    setup = run.setup
    rates = run_deepspeed(setup.path, setup.size, configs, operation, _LIMIT_RUNS)
    if operation == "write":
        run.budget.bytes_by_others += setup.size * _LIMIT_RUNS * len(configs)
    return rates
