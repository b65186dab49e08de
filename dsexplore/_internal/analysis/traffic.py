"""Sums what a rank sends per step: bytes and time by mesh axis, purposes in words, and exposed time.

The headline, its report and the difference of plans share these figures and words.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import polars as pl

from dsexplore._internal.trace import measured_time
from dsexplore._internal.trace.causes import FSDP_GATHERS, FSDP_REDUCES, PIPELINE_SCHEDULE
from dsexplore._internal.trace.unknown_sizes import format_sum, known_sum
from dsexplore._internal.units import format_seconds, format_share


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
        how = "waits" if is_async else "waits in the call"
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
        timed: the collectives in steps with a measured duration.
        steps: the number of these steps.
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
    if timed["rank"].n_unique() == 1:  # the events of one rank are mostly sorted already
        timed = timed if timed["start"].is_sorted() else timed.sort("start")
        before = pl.col("end").cum_max().shift(1, fill_value=0)
    else:
        timed = timed.sort("rank", "start")
        before = pl.col("end").cum_max().shift(1).over("rank").fill_null(0)
    length = (pl.col("end") - pl.max_horizontal(pl.col("start"), before)).clip(lower_bound=0)
    return float(timed.select(length.sum()).item())


COLUMNS: dict[str, pl.DataType] = {
    "axis": pl.String(),  # mesh axis; "" for groups that are no axis
    "count": pl.Float64(),  # collectives per rank and step
    "message_bytes": pl.Float64(),  # per rank and step, of collectives with known sizes; null if no size is known
    "wire_bytes": pl.Float64(),  # likewise
    "ms": pl.Float64(),  # milliseconds per step in which a collective of this axis runs; null if not measured
}
"""Columns of `traffic_by_axis`."""


def traffic_by_axis(events: pl.DataFrame, timed: pl.DataFrame, share: int, timed_share: int) -> pl.DataFrame:
    """Return one row per axis, most wire bytes first; columns: `COLUMNS`.

    Args:
        events: the events of steady steps, with ``weight``, the number of ranks that the event's rank represents.
        timed: rank, axis, start and end of the same events.
        share: number of ranks, including represented ones, times number of steps.
        timed_share: number of recorded ranks times number of steps.
    """
    sums = (
        events.lazy()
        .group_by("axis")
        .agg(
            pl.col("weight").sum().alias("count"),
            *(known_sum(pl.col(name) * pl.col("weight")).alias(name) for name in ("message_bytes", "wire_bytes")),
        )
        .collect(engine="streaming")
        .with_columns(pl.col("axis").cast(pl.String))
        .sort("wire_bytes", "axis", descending=[True, False], nulls_last=True)
    )
    under_way = (
        {
            axis: nanoseconds_under_way(timed.select("rank", "start", "end").filter(timed["axis"] == axis)) / 1e6
            for axis in sums["axis"]
        }
        if measured_time.is_timed(timed)
        else {}
    )
    times = pl.Series("ms", [under_way.get(axis) for axis in sums["axis"]], pl.Float64)
    numbers = [pl.col(name).cast(pl.Float64) / share for name in ("count", "message_bytes", "wire_bytes")]
    return sums.select("axis", *numbers, (times / timed_share).alias("ms"))


_PURPOSES = {  # {(cause, op): purpose in words}
    **{(cause, "all_gather"): "FSDP gathers parameters" for cause in FSDP_GATHERS},
    **{(cause, "reduce_scatter"): "FSDP reduces gradients" for cause in FSDP_REDUCES},
    **{(cause, "all_reduce"): "FSDP reduces gradients over replicas" for cause in FSDP_REDUCES},
    ("DDP gradient bucket", "all_reduce"): "DDP reduces gradients",
    (PIPELINE_SCHEDULE, "send"): "stages pass activations and gradients on",
}


def purpose_of(cause: str, op: str) -> str:
    """Return the purpose of a collective with this cause, in words."""
    return _PURPOSES.get((cause, op)) or (f"{op} ({cause})" if cause else op)


def purposes_of(events: pl.DataFrame, total: int) -> list[str]:
    """Return the purposes that account for most of `total` bytes, with the share of each if there are several."""
    sums = events.group_by("cause", "op").agg(weighed("wire_bytes"))
    bytes_of: dict[str, int] = {}
    for cause, op, size in sums.iter_rows():
        purpose = purpose_of(cause, op)
        bytes_of[purpose] = bytes_of.get(purpose, 0) + size
    ranked = sorted(bytes_of.items(), key=lambda item: (-item[1], item[0]))
    if ranked[0][1] >= 0.995 * total:
        return [ranked[0][0]]
    named = [(purpose, size) for purpose, size in ranked if size >= total / 100] or ranked
    most = named if len(named) == 3 else named[:2]
    shown = [f"{purpose} ({format_share(size, total)})" for purpose, size in most]
    return [*shown, "others"] if sum(size for _, size in most) < 0.995 * total else shown


def wire_text(events: pl.DataFrame, share: float) -> str:
    """Return wire bytes of some of `Headline.step_events`, divided by `share`, as text; says if sizes are unknown."""
    total = float(events.select(weighed("wire_bytes")).item())
    return format_sum(total / share, events["wire_bytes"].null_count())


def weighed(size: str) -> pl.Expr:
    """Return the sum of a column of `Headline.step_events` over all ranks that the recorded ones represent."""
    return (pl.col(size) * pl.col("weight")).sum().alias(size)


def listed(parts: Iterable[str]) -> str:
    """Join names to a list in words: ``["a", "b", "c"]`` → ``"a, b and c"``."""
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last


def source_line_of(events: pl.DataFrame) -> str:
    """Return the source line that sends most bytes."""
    sums = events.group_by("source").agg(pl.col("wire_bytes").sum()).cast({"source": pl.String})
    sums = sums.sort("wire_bytes", "source")
    return str(sums["source"][-1]).partition(" ← ")[0] or "no line"
