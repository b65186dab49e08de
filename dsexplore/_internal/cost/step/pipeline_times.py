"""Times of pipeline stages, from the ranks that were traced, and how long ranks wait for one another."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import polars as pl

from dsexplore._internal.cost.range import Estimate
from dsexplore._internal.cost.step.rank_program import Collective, StepProgram
from dsexplore._internal.cost.step.schedules import Schedule, ScheduledAction, place
from dsexplore._internal.cost.step.stream_simulation import SimulatedStep, play
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.worlds.repeats.layer_runs import CannotSkip
from dsexplore._internal.worlds.repeats.repeated_rows import RowBoundary, repeat, with_buffers


class RankTimes:
    """One rank's step for each of the three estimates, simulated on first use."""

    def __init__(self, program: StepProgram, slowdown: float, overlap: bool) -> None:
        self.program = program
        self._how = slowdown, overlap
        self._played: dict[Estimate, SimulatedStep] = {}
        self.bubble: Callable[[Estimate], float] = lambda _estimate: 0.0
        """{estimate: seconds that the rank waits for other stages}."""

    def played(self, estimate: Estimate) -> SimulatedStep:
        """Simulate the step with one of the three times of each item."""
        if estimate not in self._played:
            self._played[estimate] = play(self.program.items, estimate, *self._how)
        return self._played[estimate]

    def step(self, estimate: Estimate) -> float:
        """Return the seconds of the step."""
        played = self.played(estimate)
        return played.seconds - played.receiving + self.bubble(estimate)


_PARTS = ("events", "kernels", "memory")


def with_microbatches(tables: Tables, count: int) -> Tables | None:
    """Return the trace of the same step with another number of microbatches.

    After warm-up, each backward-forward pair of a 1F1B schedule repeats the pair before it, with its messages. Pairs
    are compared row by row; equal ones are duplicated or dropped. A pair is what lies between two receives: of
    gradients, or on the last stage of activations.

    Args:
        tables: of one or more ranks; `TraceInfo.schedule` says how many microbatches they have.
        count: the wanted number.

    Returns:
        None if the schedule is not 1F1B, if no two consecutive microbatches are equal, or if `count` is too small to
        keep any of the equal ones.
    """
    described = json.loads(tables.info.schedule) if tables.info.schedule else {}
    if described.get("schedule") != "Schedule1F1B":
        return None
    present = int(described["microbatches"])
    if count == present:
        return tables
    try:
        ranks = [_rank_tables(tables, rank, present, count) for rank in tables.kernels["rank"].unique().sort()]
    except CannotSkip:
        return None
    # the list of actions is that of the original number
    schedule = json.dumps({**described, "microbatches": count, "order": {}})
    calls = pl.when(pl.col("calls") % present == 0).then(pl.col("calls") // present * count).otherwise("calls")
    return replace(
        tables,
        **{name: pl.concat([frames[name] for frames in ranks]) for name in _PARTS},
        modules=tables.modules.with_columns(calls.cast(pl.Int64).alias("calls")),
        info=replace(tables.info, schedule=schedule),
    )


def _rank_tables(tables: Tables, rank: int, present: int, count: int) -> dict[str, pl.DataFrame]:
    """Return the tables of one rank that have rows for each microbatch, by name."""
    frames = {name: getattr(tables, name).filter(rank=rank) for name in _PARTS}
    events, memory, more = frames["events"], frames["memory"], count - present
    begins = _begins(events, "backward", present) or _begins(events, "forward", present)
    if len(begins) < 4 + max(0, -more):
        raise CannotSkip
    # What is computed stands before the event that is issued next.
    segments = memory["before"].search_sorted(pl.Series(begins), side="right")
    cuts = [RowBoundary(seq, memory["segment"][segment]) for seq, segment in zip(begins, segments, strict=True)]
    repeated = repeat(frames, cuts, {3: more}).frames
    return {**repeated, "memory": with_buffers(repeated["memory"], repeated["events"], count, more)}


def _begins(events: pl.DataFrame, phase: str, microbatches: int) -> Sequence[int]:
    """Return the seq of the first receive of each microbatch; empty if they cannot be distinguished."""
    receives = events.filter(op="recv", phase=phase)["seq"].to_list()
    per_microbatch, remainder = divmod(len(receives), microbatches)
    return receives[::per_microbatch] if per_microbatch and not remainder else []


class PipelineTimes:
    """When each stage of a pipeline computes which microbatch.

    Args:
        tables: of the trace.
        schedule: of its pipeline.
        ranks: the steps of the traced ranks, to which waiting for other stages is added.
    """

    def __init__(self, tables: Tables, schedule: Schedule, ranks: list[RankTimes]) -> None:
        self._schedule, self._ranks = schedule, ranks
        self._positions = [_position(tables, member.program, len(schedule.order)) for member in ranks]
        self._placed: dict[Estimate, list[ScheduledAction]] = {}
        for member, position in zip(ranks, self._positions, strict=True):
            member.bubble = partial(self._bubble, position)

    def notes(self) -> list[str]:
        """Return a note if some stages are in no trace."""
        traced, size = len(set(self._positions)), len(self._schedule.order)
        if traced == size:
            return []
        return [
            f"{traced} of {size} stages of the pipeline are traced: the others are taken to be "
            "like the nearest of these; trace one rank of each stage for stages that differ"
        ]

    def placed(self, estimate: Estimate) -> list[ScheduledAction]:
        """Return the timed actions of all ranks of the pipeline, for one of the three estimates."""
        if estimate not in self._placed:
            forward, backward = self._stage_times(estimate)
            transfer = _transfer(self._ranks[0].program, estimate)
            self._placed[estimate] = place(self._schedule, forward, backward, transfer)
        return self._placed[estimate]

    def _bubble(self, position: int, estimate: Estimate) -> float:
        """Return the seconds that a rank of the pipeline waits for other stages."""
        placed = self.placed(estimate)
        return max(action.end for action in placed) - sum(
            action.end - action.start for action in placed if action.rank == position
        )

    def _stage_times(self, estimate: Estimate) -> tuple[dict[int, float], dict[int, float]]:
        """Return the seconds of one microbatch's forward and backward, by stage."""
        schedule = self._schedule
        of_position = {}
        for member, position in zip(self._ranks, self._positions, strict=True):
            actions_per_rank = schedule.microbatches * schedule.stages_per_rank
            ahead, back = member.played(estimate).phases
            of_position[position] = ahead / actions_per_rank, back / actions_per_rank
        forward: dict[int, float] = {}
        backward: dict[int, float] = {}
        for rank, actions in enumerate(schedule.order):
            nearest = _nearest(rank, list(of_position), len(schedule.order))
            for stage in {action.stage for action in actions}:
                forward[stage], backward[stage] = of_position[nearest]
        return forward, backward


def _position(tables: Tables, program: StepProgram, size: int) -> int:
    """Return the index of a rank in its pipeline."""
    messages = tables.events.filter((pl.col("rank") == program.rank) & pl.col("op").is_in(["send", "recv"]))
    groups = tables.groups.filter(pl.col("group").is_in(messages["group"].unique().implode()))
    for ranks in groups.filter(size=size)["ranks"]:
        if program.rank in ranks:
            return list(ranks).index(program.rank)
    return 0


def _transfer(program: StepProgram, estimate: Estimate) -> float:
    """Return the seconds of the slowest message between stages."""
    times = [
        item.seconds[estimate] for item in program.items if isinstance(item, Collective) and item.op in ("send", "recv")
    ]
    return max(times, default=0.0)


def _nearest(position: int, candidates: list[int], size: int) -> int:
    """Return the traced stage that represents a stage; middle stages are represented by middle stages if possible."""
    middle = [place for place in candidates if 0 < place < size - 1]
    if position in candidates:
        return position
    return min(
        middle or [place for place in candidates if place < size - 1] or candidates,
        key=lambda place: abs(place - position),
    )
