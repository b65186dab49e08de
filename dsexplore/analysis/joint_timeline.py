"""The timelines of two traces as one, on one scale: a step of one rank of each, A's lanes above B's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from dsexplore.analysis.step_timeline import ColorKind, LaneKind, Timeline, axes_by_bytes, timeline_of
from dsexplore.trace.merge import merge_modules
from dsexplore.trace.schema import IN_STEPS
from dsexplore.trace.tables import Tables
from dsexplore.trace.unknown_sizes import format_sum
from dsexplore.units import format_change, format_count, format_seconds

_SIDES = ("A", "B")


def joint_timeline(
    before: Tables, after: Tables, lanes: LaneKind | None = None, colors: ColorKind | None = None
) -> Timeline:
    """Build the timeline of the last step of two traces, lanes ``A · …`` above lanes ``B · …``, both starting at 0.

    Each side shows one rank: the lowest that both traces have, else its own lowest. Times are measured ones if both
    traces have them, else program order. Axes are sorted by their bytes in both traces together, as in the tree of the
    difference.

    Args:
        before: the trace called A.
        after: the trace called B.
        lanes: as in `timeline_of`; None for phases.
        colors: as in `timeline_of`; None for axes, or for phases where lanes are not phases.

    Raises:
        UsageError: unknown lanes or colors.
    """
    common = set(before.events["rank"]) & set(after.events["rank"])
    steps = [_last_step(tables, min(common, default=None)) for tables in (before, after)]
    timelines = [timeline_of(tables, lanes or "phase", colors) for tables in steps]
    if len({timeline.order for timeline, tables in zip(timelines, steps, strict=True) if len(tables.events)}) > 1:
        steps = [_untimed(tables) for tables in steps]
        timelines = [timeline_of(tables, lanes or "phase", colors) for tables in steps]
    first, second = timelines
    marks = tuple(dict.fromkeys((*first.marks, *second.marks)))
    if first.color_by == "axis":
        both = pl.concat([before.events, after.events])
        marks = tuple(axis for axis in axes_by_bytes(both) if axis in marks)
    spans = pl.concat([_named(first, "A", 0), _named(second, "B", first.tables.events.height)])
    return replace(
        first if len(first.spans) else second,
        spans=spans.sort("begin", maintain_order=True),
        lanes=tuple(
            f"{side} · {lane}" for side, timeline in zip(_SIDES, timelines, strict=True) for lane in timeline.lanes
        ),
        marks=marks,
        tables=_joined(*steps),
        verdict=_verdict(steps, spans if first.order == "measured" else None),
    )


def _verdict(steps: Sequence[Tables], spans: pl.DataFrame | None) -> str:
    """Return a sentence on what A and B send in the steps that are drawn, and how long measured ones take.

    Args:
        steps: events that are drawn of each side.
        spans: of both sides, measured; None in program order.
    """
    counts = [tables.events.height for tables in steps]
    if not any(counts):
        return ""
    sums = [int(tables.events["wire_bytes"].sum()) for tables in steps]
    unknown = [tables.events["wire_bytes"].null_count() for tables in steps]
    change = f" ({format_change(sums[1] / sums[0] - 1)})" if sums[0] and sums[0] != sums[1] and not any(unknown) else ""
    sides = [
        f"{format_sum(size, missing)} on the wire in {format_count(count, 'collective')}"
        for size, missing, count in zip(sums, unknown, counts, strict=True)
    ]
    said = f"In this step A sends {sides[0]}, B {sides[1]}{change}"
    if spans is not None and all(counts):
        last = spans.group_by(pl.col("lane").str.head(1).alias("side")).agg(pl.col("end").max()).sort("side")["end"]
        said += f"; all that is drawn takes {format_seconds(last[0])} in A, {format_seconds(last[1])} in B"
    return f"{said}."


def rank_and_step(timeline: Timeline) -> str:
    """Name the rank that each side of a joint timeline shows: ``rank 0``, or ``A: rank 0, B: rank 4``."""
    shown = timeline.spans.join(timeline.tables.events.with_row_index("row").select("row", "rank"), on="row")
    ranks = dict(shown.select(pl.col("lane").str.head(1), "rank").unique(maintain_order=True).rows())
    if len(set(ranks.values())) <= 1:
        return f"rank {next(iter(ranks.values()))}" if ranks else "no rank"
    return ", ".join(f"{side}: rank {rank}" for side, rank in sorted(ranks.items()))


def _last_step(tables: Tables, rank: int | None) -> Tables:
    """Return the events of the last step of a rank (the lowest recorded one if it has none), without start-up."""
    events = tables.events.filter(IN_STEPS)
    if events.is_empty():
        return replace(tables, events=events, io=tables.io.clear())
    shown_rank = rank if rank in set(events["rank"]) else int(events["rank"].min())  # type: ignore[arg-type]  # of integers
    of_rank = events.filter(pl.col("rank") == shown_rank)
    step = of_rank["step"].max()
    io = tables.io.filter(pl.col("rank") == shown_rank, pl.col("step") == step)
    return replace(tables, events=of_rank.filter(pl.col("step") == step).sort("seq"), io=io)


def _untimed(tables: Tables) -> Tables:
    no_times = (pl.lit(None, pl.Int64).alias(at) for at in ("start", "end"))
    return replace(tables, events=tables.events.with_columns(no_times), io=tables.io.clear())


def _named(timeline: Timeline, side: str, rows_before: int) -> pl.DataFrame:
    """Return the spans of one side, shifted to begin at 0, with its lanes and the row numbers of the joined events."""
    first = pl.col("begin").min()
    return timeline.spans.with_columns(
        pl.format("{} · {}", pl.lit(side), pl.col("lane")).alias("lane"),
        pl.col("begin") - first,
        pl.col("end") - first,
        pl.col("row") + rows_before,
    ).cast({"row": pl.UInt32()})


def _joined(before: Tables, after: Tables) -> Tables:
    return replace(
        before,
        events=pl.concat([before.events, after.events]),
        modules=merge_modules([before.modules, after.modules]),
        groups=pl.concat([before.groups, after.groups]).unique(maintain_order=True),
    )
