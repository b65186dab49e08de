"""The stages of a pipeline, each as long as the ranks that were traced say, and how long ranks wait for one another."""

from __future__ import annotations

from functools import partial

import polars as pl

from dsexplore.cost.rank_program import Collective, Program
from dsexplore.cost.rank_times import RankTimes
from dsexplore.cost.schedules import Placed, Schedule, place
from dsexplore.trace.tables import Tables


class PipelineTimes:
    """When each stage of a pipeline computes which microbatch.

    Args:
        tables: of the trace.
        schedule: of its pipeline.
        ranks: the steps of the traced ranks; each waits for the other stages from now on.
    """

    def __init__(self, tables: Tables, schedule: Schedule, ranks: list[RankTimes]) -> None:
        self._schedule, self._ranks = schedule, ranks
        self._positions = [_position(tables, one.program, len(schedule.order)) for one in ranks]
        self._placed: dict[int, list[Placed]] = {}
        for one, position in zip(ranks, self._positions, strict=True):
            one.bubble = partial(self._bubble, position)

    def notes(self) -> list[str]:
        """Return a note if some stages are in no trace."""
        traced, size = len(set(self._positions)), len(self._schedule.order)
        if traced == size:
            return []
        return [
            f"{traced} of {size} stages of the pipeline are traced: the others are taken to be "
            "like the nearest of these; trace one rank of each stage for stages that differ"
        ]

    def placed(self, end: int) -> list[Placed]:
        """Return the timed actions of all ranks of the pipeline, for one end of the range."""
        if end not in self._placed:
            forward, backward = self._stage_times(end)
            transfer = _transfer(self._ranks[0].program, end)
            self._placed[end] = place(self._schedule, forward, backward, transfer)
        return self._placed[end]

    def _bubble(self, position: int, end: int) -> float:
        """Return the seconds that a rank of the pipeline waits for other stages."""
        placed = self.placed(end)
        return max(one.end for one in placed) - sum(one.end - one.start for one in placed if one.rank == position)

    def _stage_times(self, end: int) -> tuple[dict[int, float], dict[int, float]]:
        """Return the seconds of one microbatch's forward and backward, by stage."""
        schedule = self._schedule
        of_position = {}
        for one, position in zip(self._ranks, self._positions, strict=True):
            each = schedule.microbatches * schedule.stages_per_rank
            ahead, back = one.played(end).phases
            of_position[position] = ahead / each, back / each
        forward: dict[int, float] = {}
        backward: dict[int, float] = {}
        for rank, actions in enumerate(schedule.order):
            nearest = _nearest(rank, list(of_position), len(schedule.order))
            for stage in {action.stage for action in actions}:
                forward[stage], backward[stage] = of_position[nearest]
        return forward, backward


def _position(tables: Tables, program: Program, size: int) -> int:
    """Return the index of a rank in its pipeline."""
    messages = tables.events.filter((pl.col("rank") == program.rank) & pl.col("op").is_in(["send", "recv"]))
    groups = tables.groups.filter(pl.col("group").is_in(messages["group"].unique().implode()))
    for ranks in groups.filter(size=size)["ranks"]:
        if program.rank in ranks:
            return list(ranks).index(program.rank)
    return 0


def _transfer(program: Program, end: int) -> float:
    """Return the seconds of the slowest message between stages."""
    times = [
        item.seconds[end] for item in program.items if isinstance(item, Collective) and item.op in ("send", "recv")
    ]
    return max(times, default=0.0)


def _nearest(position: int, known: list[int], size: int) -> int:
    """Return the traced stage that represents a stage; middle stages are represented by middle stages if possible."""
    middle = [one for one in known if 0 < one < size - 1]
    if position in known:
        return position
    return min(middle or [one for one in known if one < size - 1] or known, key=lambda one: abs(one - position))
