"""Pipeline parallelism: what schedules and stages know of themselves, and the local variables of a schedule."""

from __future__ import annotations

from typing import Any


def is_schedule(candidate: Any) -> bool:
    """Return True for a pipeline schedule."""
    return hasattr(candidate, "_n_microbatches")


def count_microbatches(schedule: Any) -> int:
    """Return how many microbatches a schedule makes of a batch."""
    count: int = schedule._n_microbatches
    return count


def stages_of(schedule: Any) -> list[Any]:
    """Return the stages of a schedule on this rank; none for another object."""
    if hasattr(schedule, "_stage"):
        return [schedule._stage]
    return list(getattr(schedule, "_stages", ()))


def rank_of_stage(stage: Any, index: int) -> int:
    """Return the global rank of another stage of the pipeline."""
    rank: int = stage._resolve_peer_global_rank(index)
    return rank
