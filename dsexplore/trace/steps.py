"""The steps of a trace, as figures per step count them."""

from __future__ import annotations

import polars as pl

from dsexplore.trace.schema import IN_STEPS, Phase

IN_A_STEP: tuple[Phase, ...] = ("forward", "backward", "recompute", "optimizer")
"""Phases that only a step of a model has."""


def in_steps(events: pl.DataFrame) -> pl.DataFrame:
    """The events that figures per step count, each with the step that it counts to.

    What a rank sends outside its model after its last optimizer step, such as a loss for a log, has a step number of
    its own; it counts to the step before, or each mean would be over one step too many.
    """
    last, trained = pl.col("step").max(), pl.col("step").filter(pl.col("phase").is_in(IN_A_STEP)).max()
    follows = (pl.col("step") == last.over("rank")) & (trained.over("rank") == last.over("rank") - 1)
    return events.filter(IN_STEPS).with_columns(step=pl.when(follows).then(trained.over("rank")).otherwise("step"))
