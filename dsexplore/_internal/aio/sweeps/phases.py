"""The phases of a sweep: search, finals, the disk's limit, kinds of memory, other programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

from dsexplore._internal.aio.aio_config import NEAR_LIMIT, AioConfig
from dsexplore._internal.aio.buffers import can_pin, memory_suffices
from dsexplore._internal.aio.sweeps import search
from dsexplore._internal.aio.sweeps.fio_and_deepspeed import run_deepspeed, run_fio
from dsexplore._internal.aio.sweeps.measure import Bench
from dsexplore._internal.aio.sweeps.measurements import Conditions, Operation
from dsexplore._internal.aio.sweeps.references import MEMORIES, PINNED, Reference
from dsexplore._internal.aio.sweeps.result import SweepResult
from dsexplore._internal.aio.sweeps.round_measurer import Budget, RoundMeasurer, WrittenEnough
from dsexplore._internal.aio.sweeps.sweep_setup import CONTROL, Progress, Report, Setup
from dsexplore._internal.units import format_bytes, format_share

_LIMIT_RUNS = 3
"""Number of runs that measure the disk's limit, or another program."""
_DESCENT_SHARE = 0.45
"""Fraction of the time for the descent; the rest is for the finals."""
_GRID_ROUND = 8
"""Number of settings in a round of a full grid."""
_GRID_FINALS = 5
"""Number of rounds of finals after a full grid, which has no limit of time."""
_MEMORY_TURNS = 5
"""Number of times that each kind of memory is measured, in turn."""
_MOST_FOR_MEMORY = 0.25
"""Fraction of the time up to which kinds of memory are compared."""
_REFERENCE_NOTES = {
    "fio": "libaio, depth × block of ordinary memory per job, 1 s",
    "deepspeed": "one locked tensor of the whole size, as DeepSpeed allocates it",
}
_USED_UP = "what may be written is used up: raise max_written"
"""Reason why something is not measured."""


@dataclass
class RunningSweep:
    """The state that the phases share."""

    setup: Setup
    """File and bench of the sweep."""
    measurer: RoundMeasurer
    """Measures rounds, and has their slices."""
    budget: Budget
    """Seconds and bytes that may be spent."""
    report: Report
    """Called with the progress."""
    conditions: Conditions
    """Conditions of the result."""
    references: list[Reference] = field(default_factory=list)
    """Rates of other programs and kinds of memory so far."""

    def result(self, *, interrupted: bool = False) -> SweepResult:
        """Return the result so far."""
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
    """Measure until the time or the bytes to write are used up; return the results so far after Ctrl-C.

    Args:
        run: the sweep, before its first round.
        references: names of other programs to run.

    Raises:
        KeyboardInterrupt: nothing was measured before Ctrl-C.
    """
    interrupted = False
    try:
        scores = search_settings(run)
        memories = affordable_memories(run)
        slices = (_LIMIT_RUNS + len(memories) * _MEMORY_TURNS) * len(run.setup.operations)
        reserve = run.measurer.expected_seconds(slices)  # before the finals, whose slices are longer
        run_finals(run, scores, reserve)
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
    """Measure all settings, or those of a descent along the axes; return {setting: rate relative to the control}."""
    plan, measurer, budget = run.setup.plan, run.measurer, run.budget
    if plan.seconds is None:
        settings = list(run.setup.settings)
        measurer.begin_phase("grid", settings=len(settings))
        measurer.shuffle.shuffle(settings)
        scores: dict[AioConfig, float] = {}
        for chunk in search.chunks(settings, _GRID_ROUND):
            scores.update(measurer.measure(chunk))
        return scores
    until = budget.ready + (budget.seconds - budget.ready) * _DESCENT_SHARE
    measurer.begin_phase("descent", until=until)
    bytes_at_begin = budget.bytes_left()

    def more() -> bool:
        has_bytes = budget.bytes_left() >= bytes_at_begin * (1 - _DESCENT_SHARE)
        return has_bytes and budget.elapsed() < until

    return search.descend(_start(run), plan.axes, measurer.measure, more, run.setup.bench.fits)


def _start(run: RunningSweep) -> AioConfig:
    """Return the setting at which the descent starts: on each axis the default's value, else the first value.

    If the file is too small for that combination, it is the first of all settings.
    """
    values = {}
    for key, axis in run.setup.plan.axes.items():
        default = getattr(CONTROL, key)
        values[key] = default if default in axis else axis[0]
    start = AioConfig(**values)
    return start if start in run.setup.settings else run.setup.settings[0]


def affordable_memories(run: RunningSweep) -> tuple[str, ...]:
    """Return the kinds of memory to compare at the end; none if that would take too long."""
    plan = run.setup.plan
    if plan.mode != "tensor" or plan.processes > 1:
        return ()
    memories = (*MEMORIES, PINNED) if can_pin() else MEMORIES
    slices = len(memories) * _MEMORY_TURNS * len(run.setup.operations)
    affordable = run.measurer.expected_seconds(slices) <= _MOST_FOR_MEMORY * run.budget.seconds
    return memories if affordable else ()


def run_finals(run: RunningSweep, scores: dict[AioConfig, float], reserve: float) -> None:
    """Measure the fastest settings in rounds, until their ratios are certain or `reserve` seconds are left."""
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
    """Return the number of finalists that can be measured in enough rounds, within the bytes and the time left.

    Args:
        run: the sweep.
        reserve: seconds that are needed after the finals.
    """
    setup, budget = run.setup, run.budget
    rounds = (budget.seconds - budget.elapsed() - reserve) / run.measurer.expected_seconds_in_finals()
    if "write" in setup.operations and budget.largest_slice:
        rounds = min(rounds, budget.bytes_left() / budget.largest_slice / len(setup.transfers) - _LIMIT_RUNS)
    count = rounds / search.FEWEST_ROUNDS - 1  # the control is measured in each round, too
    return int(min(max(count, 1), search.MOST_FINALISTS))


@contextmanager
def _closing(bench: Bench, budget: Budget) -> Iterator[Bench]:
    """Close another bench at the end of the block, and add the bytes that it has written to the budget."""
    try:
        yield bench
    finally:
        bench.close()
        budget.bytes_by_others += bench.bytes_written


def measure_limit(run: RunningSweep) -> None:
    """Measure the disk's limit: two threads with deep queues, on a ring of memory."""
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
            run.references.append(Reference("ring", operation, config, rates=tuple(rates), note=note))


def compare_memories(run: RunningSweep, memories: Sequence[str]) -> None:
    """Measure the recommended setting on each kind of memory in turn, if there is enough memory.

    Args:
        run: the sweep.
        memories: `MEMORIES`, with `PINNED` if there is a GPU; empty to compare nothing.
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
                run.references.append(Reference(name, operation, best, rates=tuple(rates), note=note))


def run_reference(run: RunningSweep, name: str) -> None:
    """Run fio, or DeepSpeed's handle, with the recommended setting and with the default."""
    setup, budget = run.setup, run.budget
    configs = list(dict.fromkeys([run.recommended(), CONTROL]))
    for operation in setup.operations:
        if operation == "write" and not budget.may_write(_LIMIT_RUNS * len(configs), setup.size):
            run.omit(f"{name}, write")
            continue
        run.report(Progress(0.99, f"{name}: {operation}"))
        measure = _fio_rates if name == "fio" else _deepspeed_rates
        for config, rates in zip(configs, measure(run, configs, operation), strict=True):
            run.references.append(Reference(name, operation, config, rates=rates, note=_REFERENCE_NOTES[name]))


def _fio_rates(run: RunningSweep, configs: Sequence[AioConfig], operation: Operation) -> list[tuple[float, ...]]:
    """Run fio once with each setting and return its rate; bytes written count in the budget."""
    setup = run.setup
    rates: list[tuple[float, ...]] = []
    for config in configs:
        rate, _ = run_fio(setup.path, setup.size, config, operation, seconds=1.0, direct=setup.source.direct)
        if operation == "write":
            run.budget.bytes_by_others += int(rate)
        rates.append((rate,))
    return rates


def _deepspeed_rates(run: RunningSweep, configs: Sequence[AioConfig], operation: Operation) -> list[tuple[float, ...]]:
    """Run the settings in turn on DeepSpeed's memory and return their rates; bytes written count in the budget."""
    setup = run.setup
    rates = run_deepspeed(setup.path, setup.size, configs, operation, turns=_LIMIT_RUNS)
    if operation == "write":
        run.budget.bytes_by_others += setup.size * _LIMIT_RUNS * len(configs)
    return rates
