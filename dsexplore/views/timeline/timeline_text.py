"""A timeline in words: what its axis counts, a line per lane, and what one span is."""

from __future__ import annotations

from typing import Any

import polars as pl

from dsexplore.analysis.step_timeline import Timeline
from dsexplore.units import format_bytes, format_seconds
from dsexplore.views.page import html
from dsexplore.views.timeline.boxes import extent

AXES = {
    "measured": "measured time",
    "predicted": "predicted time",
    "program order": "program order of one rank, no time",
    "rounds": "earliest order in which the ranks can run, no time",
}
"""By `Timeline.order`: what the axis is."""
_LINES = 12


def place(timeline: Timeline, at: float) -> str:
    """A place on the axis, ``1.2 ms`` or ``17``."""
    return format_seconds(at) if timeline.order in ("measured", "predicted") else f"{at:,.0f}"


def whole(timeline: Timeline) -> str:
    """What the drawing is, in one line."""
    if timeline.spans.is_empty():
        return "Timeline: nothing was sent"
    first, last = extent(timeline)
    length = place(timeline, last - first)
    unit = {"program order": " collectives", "rounds": " rounds"}.get(timeline.order, "")
    return f"Timeline of {timeline.spans.height:,} collectives in {AXES[timeline.order]}: {length}{unit}"


def timeline_text(timeline: Timeline) -> str:
    """What the axis counts, and a line per lane."""
    return "\n".join([whole(timeline), *(f"  {line}" for line in _lane_lines(timeline))])


def _lane_lines(timeline: Timeline) -> list[str]:
    """A line per lane: how many collectives, and their message bytes."""
    totals = timeline.spans.group_by("lane").agg(pl.len().alias("count"), pl.col("bytes").sum())
    found = {lane: (count, size) for lane, count, size in totals.iter_rows()}
    lines = [
        f"{html.plain(lane, 60)}: {found[lane][0]:,} ×, {format_bytes(found[lane][1])} in messages"
        for lane in timeline.lanes[:_LINES]
    ]
    more = len(timeline.lanes) - _LINES
    return [*lines, f"… and {more:,} more lanes"] if more > 0 else lines


def span_text(timeline: Timeline, span: dict[str, Any]) -> str:
    """What one span is: op, module, bytes, where it stands and which line issued it."""
    parts = [span["name"], span["mark"]]
    if span["bytes"] is not None:
        parts.append(f"{format_bytes(span['bytes'])} message")
    if span["row"] is not None:
        event = timeline.tables.events.row(span["row"], named=True)
        parts += [event["owner"], event["cause"], f"peer rank {event['peer']}" if event["peer"] is not None else ""]
        parts.append(event["source"].partition(" ← ")[0])
    begin = place(timeline, span["begin"])
    timed = timeline.order in ("measured", "predicted")
    parts.append(f"at {begin}, for {format_seconds(span['end'] - span['begin'])}" if timed else f"at {begin}")
    return " · ".join(html.plain(part, 90) for part in parts if part)
