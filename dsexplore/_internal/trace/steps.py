"""The steps of a trace: how a recording marks them, and how figures per step count them (see `docs/steps.md`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Protocol

import polars as pl

from dsexplore._internal.trace.schema import IN_STEPS, OUTSIDE_STEPS, Phase
from dsexplore._internal.trace.tables import Tables

IN_A_STEP: tuple[Phase, ...] = ("forward", "backward", "recompute", "optimizer")
"""Phases that only training steps have."""


def in_steps(events: pl.DataFrame) -> pl.DataFrame:
    """Return the events that figures per step count, each with the step that it counts towards.

    Events after a rank's last optimizer step, such as the all_reduce of a loss for a log, have a step number of their
    own. They count towards the step before; otherwise each mean would be over one step too many.
    """
    trained = pl.when(pl.col("phase").is_in(IN_A_STEP)).then("step").max()
    counted = events.filter(IN_STEPS) if events["phase"].is_in(OUTSIDE_STEPS).any() else events
    of_ranks = (  # streamed, here and below, so that the keys of millions of rows are never in memory together
        counted.lazy().group_by("rank").agg(last=pl.col("step").max(), trained=trained).collect(engine="streaming")
    )
    following = of_ranks.filter(pl.col("trained") == pl.col("last") - 1)
    if following.is_empty():
        return counted
    last = pl.col("rank").replace_strict(following["rank"], following["last"], default=-1, return_dtype=pl.Int32)
    return counted.with_columns(step=pl.when(pl.col("step") == last).then(pl.col("step") - 1).otherwise("step"))


@dataclass(frozen=True)
class SteadySteps:
    """The steps of a trace that send what most of its steps send."""

    events: pl.DataFrame
    """Events of the steady steps."""
    count: int
    """Number of steady steps; at least 1."""
    whole: int
    """Number of complete steps: all but those that the end of the recording is known to have cut off."""
    are_equal: bool
    """True if every steady step sends the same number of collectives and bytes on each rank."""
    more: Mapping[int, int]
    """{number of each other step: its wire bytes minus the mean of the steady steps, over all ranks}."""
    of_all_steps: pl.DataFrame
    """Events of all steps, each with the step that it counts towards: see `in_steps`."""


def steady_steps(tables: Tables, events: pl.DataFrame | None = None) -> SteadySteps:
    """Return the steps from which figures of one step are computed.

    Steps that send the same are steady if they are at least half of the complete steps. Otherwise, steps with equal
    numbers of collectives but other sizes are, by the same rule. If no steps agree, the last of two steps is steady,
    and of more steps all are.

    Args:
        tables: tables of the trace.
        events: events of `tables` with additional columns; None for `Tables.events`. Only events in steps are used.
    """
    events = in_steps(tables.events if events is None else events)
    ended = tables.info.whole_steps
    is_cut = bool(ended) and bool(events.select((pl.col("step") >= ended).any()).item())
    whole = events.filter(pl.col("step") < ended) if is_cut else events
    if whole.is_empty():
        whole = events
    counted = (
        whole.lazy()
        .group_by("step", "rank", "op", "axis", "phase")
        .agg(pl.len().alias("count"), pl.col("wire_bytes").sum())
        .collect(engine="streaming")
    )
    counts: dict[int, set[Hashable]] = {}
    sizes: dict[int, set[Hashable]] = {}
    sums: Counter[int] = Counter()
    for step, *key, count, size in counted.iter_rows():
        counts.setdefault(step, set()).add((*key, count))
        sizes.setdefault(step, set()).add((*key, count, size))
        sums[step] += size
    if len(sizes) < 2:
        return SteadySteps(events=whole, count=1, whole=len(sizes), are_equal=False, more={}, of_all_steps=events)
    steady = _largest_repeated(sizes)
    are_equal = bool(steady)
    if not steady:
        steady = _largest_repeated(counts)
    if not steady:
        steady = {max(sizes)} if len(sizes) == 2 else set(sizes)
    mean = sum(sums[step] for step in steady) // len(steady)
    more = {step: sums[step] - mean for step in sorted(set(sizes) - steady)}
    return SteadySteps(
        events=whole.filter(pl.col("step").is_in(sorted(steady))) if more else whole,
        count=len(steady),
        whole=len(sizes),
        are_equal=are_equal,
        more=more,
        of_all_steps=events,
    )


def _largest_repeated(contents: Mapping[int, set[Hashable]]) -> set[int]:
    """Return the largest set of steps with equal content; empty if it is a single step or less than half of all."""
    by_content: dict[Hashable, set[int]] = {}
    for step, content in contents.items():
        by_content.setdefault(frozenset(content), set()).add(step)
    largest = max(by_content.values(), key=lambda steps: (len(steps), max(steps)))
    return largest if len(largest) > 1 and 2 * len(largest) >= len(contents) else set()


class StepMarks(Protocol):
    """The ends of a recording's training steps."""

    def step(self) -> None:
        """Assign all later events to the next step."""

    def lengthen_step(self) -> None:
        """Assign the events since the end of the last step to that step.

        Raises:
            UsageError: no step has ended.
        """

    @property
    def of_optimizers(self) -> StepMarks:
        """Marks set by optimizers, which end steps if the program does not call `step` itself."""

    def end_with_step(self) -> None:
        """Leave out the events of the last step, which the program began but will not end."""
