"""Joins the timelines of two traces: one step of one rank of each, on one scale, A's lanes above B's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import polars as pl

from dsexplore._internal.analysis.step_timeline import ColorKind, LaneKind, Timeline, axes_by_bytes, timeline_of
from dsexplore._internal.trace.merge import merge_modules
from dsexplore._internal.trace.schema import IN_STEPS
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.trace.unknown_sizes import format_sum
from dsexplore._internal.units import format_change, format_count, format_seconds


def joint_timeline(
    before: Tables, after: Tables, lanes: LaneKind | None = None, colors: ColorKind | None = None
) -> Timeline:
    """Build the timeline of the last step of two traces, lanes ``A · …`` above lanes ``B · …``, both starting at 0.

    Each side shows one rank: the lowest that both traces have, or else its own lowest. Times are measured if both
    traces have measured times, else program order. Axes are sorted by their bytes in both traces together. Spans have a
    further column ``side``, A or B.

    Args:
        before: the trace called A.
        after: the trace called B.
        lanes: the kind of lanes, see `timeline_of`; None for phases.
        colors: the kind of colors, see `timeline_of`; None for axes, or for phases if lanes are not phases.

    Raises:
        UsageError: unknown lanes or colors.
    """
    rank = min(set(before.events["rank"]) & set(after.events["rank"]), default=None)
    tables = [_last_step(before, rank), _last_step(after, rank)]
    of_before, of_after = (timeline_of(step, lanes or "phase", colors) for step in tables)
    if len({timeline.order for timeline in (of_before, of_after) if len(timeline.tables.events)}) > 1:
        tables = [_untimed(step) for step in tables]
        of_before, of_after = (timeline_of(step, lanes or "phase", colors) for step in tables)
    marks = tuple(dict.fromkeys((*of_before.marks, *of_after.marks)))
    if of_before.color_by == "axis":
        marks = tuple(axis for axis in axes_by_bytes(pl.concat([before.events, after.events])) if axis in marks)
    spans = pl.concat([_side_spans(of_before, "A", 0), _side_spans(of_after, "B", of_before.tables.events.height)])
    return replace(
        of_before if len(of_before.spans) else of_after,
        spans=spans.sort("begin", maintain_order=True),
        lanes=(*(f"A · {lane}" for lane in of_before.lanes), *(f"B · {lane}" for lane in of_after.lanes)),
        marks=marks,
        tables=_joined(*tables),
        conclusion=_conclusion(tables, spans if of_before.order == "measured" else None),
    )


def _conclusion(tables: Sequence[Tables], spans: pl.DataFrame | None) -> str:
    """Return a sentence on what A and B send in the steps that are drawn, and how long measured ones take.

    Args:
        tables: the steps that are drawn, A's and B's.
        spans: the measured spans of both sides; None in program order.
    """
    counts = [side.events.height for side in tables]
    if not any(counts):
        return ""
    sums = [int(side.events["wire_bytes"].sum()) for side in tables]
    unknown = [side.events["wire_bytes"].null_count() for side in tables]
    change = f" ({format_change(sums[1] / sums[0] - 1)})" if sums[0] and sums[0] != sums[1] and not any(unknown) else ""
    texts = [
        f"{format_sum(size, missing)} on the wire in {format_count(count, 'collective')}"
        for size, missing, count in zip(sums, unknown, counts, strict=True)
    ]
    sentence = f"In this step A sends {texts[0]}, B {texts[1]}{change}"
    if spans is not None and all(counts):
        ends = dict(spans.group_by("side").agg(pl.col("end").max()).iter_rows())
        sentence += f"; all that is drawn takes {format_seconds(ends['A'])} in A, {format_seconds(ends['B'])} in B"
    return f"{sentence}."


def shown_ranks(timeline: Timeline) -> str:
    """Name the rank that each side of a joint timeline shows: ``rank 0``, or ``A: rank 0, B: rank 4``."""
    shown = timeline.spans.join(timeline.tables.events.with_row_index("row").select("row", "rank"), on="row")
    ranks = dict(shown.select("side", "rank").unique(maintain_order=True).iter_rows())
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


def _side_spans(timeline: Timeline, side: Literal["A", "B"], first_row: int) -> pl.DataFrame:
    """Return the spans of one side, shifted to begin at 0, with its name in their lanes and in a column ``side``.

    Args:
        timeline: the timeline of the side's step.
        side: the side's name.
        first_row: the row of the side's first event in the joined events.
    """
    first = pl.col("begin").min()
    return timeline.spans.with_columns(
        pl.format("{} · {}", pl.lit(side), pl.col("lane")).alias("lane"),
        pl.col("begin") - first,
        pl.col("end") - first,
        pl.col("row") + first_row,
        side=pl.lit(side),
    ).cast({"row": pl.UInt32()})


def _joined(before: Tables, after: Tables) -> Tables:
    return replace(
        before,
        events=pl.concat([before.events, after.events]),
        modules=merge_modules([before.modules, after.modules]),
        groups=pl.concat([before.groups, after.groups]).unique(maintain_order=True),
    )
