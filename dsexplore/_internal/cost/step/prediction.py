"""`Prediction`: how long a traced step would take on a cluster, what of it is exposed, and what memory it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import polars as pl

from dsexplore._internal.cost.cluster import Cluster, HardwareLike, as_cluster
from dsexplore._internal.cost.collectives.measured_points import contradictions
from dsexplore._internal.cost.expense import Expense, expense_of
from dsexplore._internal.cost.expert_balance import of_busiest_rank
from dsexplore._internal.cost.kernels.async_tp import in_pieces
from dsexplore._internal.cost.kernels.compute import Attention, slowed_by_communication
from dsexplore._internal.cost.kernels.gpu_generations import GENERATIONS
from dsexplore._internal.cost.kernels.product_time import stated_rate
from dsexplore._internal.cost.memory.memory_need import Fit, MemoryNeed, Saving, outside_bytes
from dsexplore._internal.cost.memory.memory_savings import Savings
from dsexplore._internal.cost.memory.peak_memory import PeakMemory, peak_memory
from dsexplore._internal.cost.range import Estimate, Range
from dsexplore._internal.cost.step.pipeline_times import PipelineTimes, RankTimes, with_microbatches
from dsexplore._internal.cost.step.prediction_frames import axis_frame, module_frame, rank_frame, span_frame
from dsexplore._internal.cost.step.range_causes import RangeCause, as_frame, range_causes
from dsexplore._internal.cost.step.rank_program import Collective, Options, programs
from dsexplore._internal.cost.step.schedules import ScheduledAction, read_schedule
from dsexplore._internal.cost.step.stream_simulation import Span, seconds_by_module
from dsexplore._internal.display import Result
from dsexplore._internal.errors import UsageError
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.units import format_bytes, format_share

_MUCH_WAITING = 0.25
"""Share of a step from which a note says that the GPU waits for the CPU."""
_PARTS = {"compute": "compute", "exposed": "exposed communication", "idle": "idle"}
_FIT: dict[Fit, str] = {"fits": "fit in", "fits barely": "barely fit in", "does not fit": "do not fit in"}


class Prediction(Result):
    """The predicted cost of one step of a traced program on a cluster; made by `Trace.predict`.

    Attributes:
        cluster: the cluster that the step is predicted for.
        options: the options of the prediction, see `Options`.
    """

    _INTERNAL = frozenset({"ranks_per_domain", "schedule", "spans", "spans_by_rank", "tables", "why_wide"})

    def __init__(self, tables: Tables, cluster: Cluster, options: Options) -> None:
        self.tables, self.cluster, self.options = tables, cluster, options
        read = programs(tables, cluster, options)
        if options.async_tp:
            read = [replace(program, items=in_pieces(program.items)) for program in read]
        if options.expert_imbalance > 1 and not tables.events["send_splits"].is_not_null().any():
            compute, memory = cluster.compute, cluster.memory
            ridge = stated_rate("bfloat16", cluster) * compute.achievable / (memory.bandwidth * memory.achievable)
            read = [
                replace(program, items=of_busiest_rank(program.items, options.expert_imbalance, ridge))
                for program in read
            ]
        # Ranks of one machine send with the processors that they compute with: nothing is hidden.
        overlap = options.overlap and cluster.topology != "host"
        slowdown = slowed_by_communication(cluster) if overlap else 0.0
        self._ranks = [RankTimes(program, slowdown, overlap) for program in read]
        self.schedule = read_schedule(tables.info.schedule)
        self._notes = list(dict.fromkeys(note for program in read for note in program.notes))
        if options.attention == "flash-2" and _has_other_attention(tables, cluster):
            self._notes.append(
                f"attention is timed as FlashAttention-2's kernels; torch from 2.11 on takes cuDNN's on "
                f'{cluster.generation.capitalize()} GPUs, which are faster: attention="cudnn" predicts those'
            )
        self._pipeline = PipelineTimes(tables, self.schedule, self._ranks) if self.schedule is not None else None
        if self._pipeline is not None:
            self._notes += self._pipeline.notes()

    @cached_property
    def _slowest(self) -> RankTimes:
        return max(self._ranks, key=lambda rank: rank.step(Estimate.EXPECTED))

    @property
    def rank(self) -> int:
        """Rank of the trace with the longest step, which all times are of."""
        return self._slowest.program.rank

    @property
    def step(self) -> Range:
        """Seconds of the step; ``step.why`` is the widest part of the range, and why it is not known better."""
        causes = self._range_causes
        return replace(self._range_of(self._slowest.step), why=causes[0].sentence if causes else "")

    @cached_property
    def _range_causes(self) -> list[RangeCause]:
        return range_causes(*(self._slowest.played(estimate) for estimate in Estimate))

    @property
    def widest_part(self) -> str:
        """Part of the step that adds most to the width of its range; empty if the range has no width."""
        return self._range_causes[0].what if self._range_causes else ""

    def by_cause(self) -> pl.DataFrame:
        """Return what makes the range of the step as wide as it is, the widest part first.

        Columns: ``what`` takes time; ``low``, ``expected`` and ``high``: its seconds of the step at each end, which sum
            to the rank's own times; ``share`` of the width from low to high; ``why`` it is not known better.
        """
        return as_frame(self._range_causes)

    @property
    def compute(self) -> Range:
        """Seconds that the compute stream is busy, of the slowest of the ranks that wait for one another."""
        return self._range_of(lambda estimate: self._slowest.played(estimate).compute)

    @property
    def exposed(self) -> Range:
        """Seconds of communication that no compute hides."""
        return self._range_of(lambda estimate: self._slowest.played(estimate).exposed)

    @property
    def ranks_per_domain(self) -> int:
        """Ranks of the job that share the fast links; see `Cluster.domain_of_job`."""
        return self.cluster.domain_of_job(self.tables.info.world_size, self.options.ranks_per_node)

    @property
    def idle(self) -> Range:
        """Seconds that the compute stream waits for the CPU that launches kernels, or for other stages."""
        return self._range_of(lambda estimate: self._slowest.played(estimate).idle + self._slowest.bubble(estimate))

    @property
    def bubble(self) -> Range:
        """Seconds that the rank waits for other stages of its pipeline; part of `idle`."""
        return self._range_of(self._slowest.bubble)

    @property
    def communication(self) -> Range:
        """Seconds that collectives run, hidden or not."""
        return self._range_of(lambda estimate: self._slowest.played(estimate).communication)

    @property
    def expected_step(self) -> float:
        """Expected seconds of the step, without its range, which takes three times as long to find."""
        return self._slowest.step(Estimate.EXPECTED)

    def expense(self, steps: int = 1) -> Expense:
        """Return the GPU-hours of so many steps of the whole job, their energy, and their price where the file has one.

        Raises:
            UsageError: less than one step.
        """
        if steps < 1:
            raise UsageError(f"steps={steps!r} is not a number of steps: give 1 or more")
        return expense_of(self.step * steps, self.tables.info.world_size, self.cluster)

    def _range_of(self, value: Callable[[Estimate], float]) -> Range:
        """Return the range of a simulated number, sorted, since more of one quantity may leave less of another."""
        ends = [value(estimate) for estimate in Estimate]
        return Range(min(ends), ends[Estimate.EXPECTED], max(ends))

    @cached_property
    def peak(self) -> PeakMemory:
        """Most memory that a rank needs, and when."""
        has_streams = any(
            isinstance(item, Collective) and item.sync == "fsdp gather"
            for rank in self._ranks
            for item in rank.program.items
        )
        return peak_memory(self.tables.memory, self.tables.kernels, self._ranks[0].program.step, has_streams)

    @cached_property
    def memory(self) -> MemoryNeed:
        """Bytes that the allocator of the rank which needs most holds, what for, and what would need less."""
        outside = outside_bytes(self.tables, self.peak.rank, self.cluster, self.ranks_per_domain)

        def savings() -> tuple[Saving, ...]:
            slowest = self._slowest
            played = slowest.played(Estimate.EXPECTED)
            return Savings(
                self.tables, slowest.program, played, self.peak, self.cluster, domain=self.ranks_per_domain
            ).found()

        available = int(self.cluster.memory.size)
        return MemoryNeed.of(self.peak, outside, available, self.options.expandable_segments, savings)

    @property
    def fits(self) -> bool:
        """True if the tensors, and what is outside the allocator, fit into a GPU, be it barely; see `memory`."""
        return self.memory.fit != "does not fit"

    @property
    def notes(self) -> tuple[str, ...]:
        """Limits of these numbers that readers should know."""
        notes = [*self._notes, *contradictions(self.cluster)]
        waiting = self._slowest.played(Estimate.EXPECTED).idle
        if waiting > _MUCH_WAITING * self.expected_step and self.cluster.topology != "host":
            notes.append(
                f"for {format_share(waiting, self.expected_step)} of the step the GPU waits for the CPU that launches "
                "its kernels; how long a CPU needs differs more between machines than anything else here, as the range "
                "says"
            )
        if self.memory.fit != "fits":
            notes.append(self.memory.verdict())
        if self.cluster.price is not None:
            notes.append(f"a step of all {self.tables.info.world_size:,} ranks takes {self.expense()}")
        return tuple(notes)

    def by_module(self) -> pl.DataFrame:
        """Return the seconds per module and phase, in the order in which they first run.

        Columns: ``module``, ``phase``, ``compute``, ``communication``, ``exposed``, ``idle``, and ``_low`` and
            ``_high`` of compute and exposed. Their sums are those of the step; waiting for other stages has no module.
        """
        played = [
            seconds_by_module(self._slowest.played(estimate), self._slowest.bubble(estimate)) for estimate in Estimate
        ]
        return module_frame(*played)

    def by_axis(self) -> pl.DataFrame:
        """Return the seconds per mesh axis and op: ``axis``, ``op``, ``count``, ``communication``, ``exposed``."""
        return axis_frame(self.spans)

    def by_rank(self) -> pl.DataFrame:
        """Return the seconds per rank in the trace: ``rank``, ``step``, ``compute``, ``exposed``, ``idle``."""
        return rank_frame(self._ranks)

    def timeline(self) -> pl.DataFrame:
        """Return the predicted spans of each stream of `rank`.

        Columns: ``stream``, ``start`` and ``end`` in seconds from the start of the step, ``kind``, ``module``,
            ``phase``, ``op``, ``axis``. Waiting for other stages is not included: see `stages`.
        """
        return span_frame(self.spans)

    @property
    def spans(self) -> list[Span]:
        """Rows of `timeline`."""
        return self._slowest.played(Estimate.EXPECTED).spans

    def spans_by_rank(self) -> dict[int, list[Span]]:
        """Return {rank in the trace: its predicted spans}, in seconds from the start of the rank's own step."""
        return {rank.program.rank: rank.played(Estimate.EXPECTED).spans for rank in self._ranks}

    def stages(self) -> list[ScheduledAction]:
        """Return when each pipeline stage is predicted to compute each microbatch; empty without a pipeline."""
        return self._pipeline.placed(Estimate.EXPECTED) if self._pipeline is not None else []

    def verdict(self) -> str:
        """Return the time of the step with its range, what most of it is, and whether its memory fits."""
        step, parts = self.step, {name: getattr(self, name).expected for name in _PARTS}
        largest = max(parts, key=lambda name: parts[name])
        share = f", {format_share(parts[largest], step.expected)} of it {_PARTS[largest]}" if step.expected else ""
        size = format_bytes(int(self.cluster.memory.size))
        return f"A step takes {step}{share}; {format_bytes(self.memory)} {_FIT[self.memory.fit]} {size} of memory."

    def why_wide(self) -> list[str]:
        """Return a sentence on the widest part of the range of the step; none if the range has no width."""
        why = self.step.why
        return [f"Widest part of the range: {why}."] if why else []

    def lines(self) -> list[str]:
        """Return the verdict, the widest part of the range, notes, and what needs less memory if the step needs it."""
        savings = self.memory.savings[:3] if self.memory.fit != "fits" else ()
        return [self.verdict(), *self.why_wide(), *self.notes, *(f"to need less: {saving}" for saving in savings)]

    def to_frame(self) -> pl.DataFrame:
        """Return the frame of `by_module`."""
        return self.by_module()

    def what_if(
        self,
        *,
        hardware: HardwareLike | None = None,
        ranks_per_node: int | None = None,
        overlap: bool | None = None,
        compiled: bool | None = None,
        async_tp: bool | None = None,
        attention: Attention | None = None,
        expandable_segments: bool | None = None,
        expert_imbalance: float | None = None,
        cuda_graphs: bool | None = None,
        batch: float = 1,
        sequence: float = 1,
    ) -> Prediction:
        """Predict the same step under other conditions, without a new trace.

        Args:
            hardware: another cluster.
            ranks_per_node: another number; 0 for the cluster's own.
            overlap: whether communication may run beside compute.
            compiled: whether modules run compiled.
            async_tp: whether collectives of tensor parallelism run in pieces beside their matrix products.
            attention: the implementation of attention, ``"flash-2"`` or ``"cudnn"``.
            expandable_segments: whether the allocator's segments can grow.
            expert_imbalance: tokens of the busiest rank of experts beside the mean.
            cuda_graphs: whether CUDA graphs launch all kernels.
            batch: factor on the number of samples. A 1F1B pipeline repeats that many times as many microbatches;
                anything else needs a new trace.
            sequence: factor on the sequence length; anything but 1 needs a new trace.

        Raises:
            UsageError: a change of the program's shapes, and so of what it computes, stores and sends.
        """
        tables = self.tables if batch == 1 else self._with_batch(batch)
        if sequence != 1:
            raise _needs_trace("sequence", sequence)
        given: dict[str, Any] = {"ranks_per_node": ranks_per_node, "overlap": overlap, "compiled": compiled}
        given |= {
            "async_tp": async_tp,
            "attention": attention,
            "expandable_segments": expandable_segments,
            "expert_imbalance": expert_imbalance,
            "cuda_graphs": cuda_graphs,
        }
        changed = {name: value for name, value in given.items() if value is not None}
        if ranks_per_node == 0:
            changed["ranks_per_node"] = None
        machine = self.cluster if hardware is None else as_cluster(hardware)
        return Prediction(tables, machine, replace(self.options, **changed))

    def _with_batch(self, batch: float) -> Tables:
        """Return the tables of a step with `batch` times as many microbatches."""
        count = self.schedule.microbatches * batch if self.schedule is not None else 0
        if self.schedule is None or count != round(count) or count < self.schedule.stages:
            raise _needs_trace("batch", batch)
        scaled = with_microbatches(self.tables, round(count))
        if scaled is None:
            raise _needs_trace("batch", batch)
        return scaled

    def __repr__(self) -> str:
        return f"<Prediction: {self.step} per step on {self.cluster.name}, {self.memory / 2**30:.1f} GiB>"


def predict(
    tables: Tables,
    hardware: HardwareLike = "h100",
    *,
    ranks_per_node: int | None = None,
    compiled: bool | None = None,
    overlap: bool = True,
    step: int | None = None,
    async_tp: bool = False,
    attention: Attention = "flash-2",
    expandable_segments: bool = False,
    expert_imbalance: float = 1.0,
    cuda_graphs: bool = False,
) -> Prediction:
    """Predict the cost of one step of a trace on a cluster; see `Trace.predict`.

    Raises:
        UsageError: the trace has no costs, no such step, or no such hardware, or there are no such kernels.
    """
    options = Options(
        ranks_per_node, compiled, overlap, step, async_tp, attention, expandable_segments, expert_imbalance, cuda_graphs
    )
    return Prediction(tables, as_cluster(hardware), options)


def _has_other_attention(tables: Tables, cluster: Cluster) -> bool:
    """Return True if the step has fused attention, and the GPU two implementations of it that differ in time."""
    return GENERATIONS[cluster.generation].cudnn is not None and bool((tables.kernels["kind"] == "attention").any())


def _needs_trace(name: str, factor: float) -> UsageError:
    return UsageError(
        f"{name}={factor}: other shapes need a new trace, as products, memory and messages do not all grow "
        f"with the {name}: trace the program with {factor} times the {name}, and predict that"
    )
