"""The share of a step in which collectives run, and the share of that in which the program waits."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from dsexplore._internal.units import format_seconds


@dataclass(frozen=True)
class StepTimes:
    """Seconds of a step, means over ranks and steps."""

    span: float
    """From the start of the first collective to the end of the last."""
    under_way: float
    """Seconds in which at least one collective is under way."""
    exposed: float
    """Seconds in which the program waits for collectives: in their calls, or later where all are asynchronous."""

    def sentence(self, *, is_async: bool) -> str:
        """Return these times as a sentence.

        Args:
            is_async: whether all collectives were asynchronous, so that the program waits for them later.
        """
        how = "stands still" if is_async else "waits in the call"
        waits = (
            f"; for {format_seconds(self.exposed)} of it the program {how}, exposed"
            if self.exposed
            else "; what of it compute hides is not known, as no call waits for its collective"
        )
        return (
            f"Collectives are under way for {format_seconds(self.under_way)} of the {format_seconds(self.span)} from "
            f"the start of the step's first collective to the end of its last{waits}."
        )


def step_times(timed: pl.DataFrame, steps: int) -> StepTimes | None:
    """Return the time that collectives run per step, mean over ranks and steps; None without collectives.

    Args:
        timed: collectives in steps that have a measured duration.
        steps: number of steps that they are of.
    """
    if timed.is_empty():
        return None
    divisor = max(timed["rank"].n_unique(), 1) * steps * 1e9
    spans = timed.lazy().group_by("rank", "step").agg((pl.col("end").max() - pl.col("start").min()).alias("span"))
    of_steps = spans.collect(engine="streaming")
    under_way = nanoseconds_under_way(timed)
    exposed = nanoseconds_under_way(timed.filter(~pl.col("is_async")))
    stood = exposed or min(float(timed["waited"].sum() or 0), under_way)
    return StepTimes(float(of_steps["span"].sum()) / divisor, under_way / divisor, stood / divisor)


def nanoseconds_under_way(events: pl.DataFrame) -> float:
    """Return the nanoseconds in which at least one of these collectives runs, summed over ranks."""
    timed = events.select("rank", "start", "end")
    if timed["start"].null_count() or timed["end"].null_count():
        timed = timed.drop_nulls(["start", "end"])
    if timed["rank"].n_unique() == 1:  # no lanes to keep apart, and what one rank issued is mostly in order
        timed = timed if timed["start"].is_sorted() else timed.sort("start")
        before = pl.col("end").cum_max().shift(1, fill_value=0)
    else:
        timed = timed.sort("rank", "start")
        before = pl.col("end").cum_max().shift(1).over("rank").fill_null(0)
    length = (pl.col("end") - pl.max_horizontal(pl.col("start"), before)).clip(lower_bound=0)
    return float(timed.select(length.sum()).item())
