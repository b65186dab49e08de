"""A timeline as text: its title, what its axis counts, a line per lane, and a text per span."""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from math import floor

import numpy as np
import numpy.typing as npt
import polars as pl

from dsexplore._internal.analysis.step_timeline import DISK, Timeline
from dsexplore._internal.analysis.timeline_verdict import WORDS
from dsexplore._internal.trace.unknown_sizes import format_sum
from dsexplore._internal.units import format_bytes, format_count, format_seconds
from dsexplore._internal.views.page import html
from dsexplore._internal.views.page.charts import round_numbers
from dsexplore._internal.views.timeline.boxes import extent

LEFT_TO_RIGHT = {
    "measured": "measured time",
    "predicted": "predicted time",
    "program order": "program order of one rank, no time",
    "rounds": "earliest order in which the ranks can run, no time",
    "slots": "time, in units of the forward of a microbatch; its backward takes 2",
}
"""{`Timeline.order`: what the axis counts}."""
_LENGTHS = {
    "measured": "{} of measured time",
    "predicted": "{} of predicted time",
    "program order": "program order",
    "rounds": "the earliest possible order",
    "slots": "the time of {} forwards",
}
"""{`Timeline.order`: what the title says about the length of the axis}."""
_MOST_LINES = 12
"""Maximal number of lanes that the text lists."""
_COLUMNS_OF_EVENTS = ("owner", "cause", "peer", "source")
"""Columns of events that the text of a span contains."""


def place(timeline: Timeline, at: float) -> str:
    """Return the text of a position on the axis: ``1.2 ms`` or ``17``."""
    return format_seconds(at) if is_timed(timeline) else f"{floor(at + 0.5):,}"


def is_timed(timeline: Timeline) -> bool:
    """Return True if the axis is time, not an order."""
    return timeline.order in ("measured", "predicted")


def ticks(timeline: Timeline, first: float, last: float) -> list[tuple[float, str]]:
    """Return (position, text) of a window's ticks, at round numbers; the position is a fraction of the window."""
    numbers = [at for at in round_numbers(first, last) if is_timed(timeline) or at == floor(at)]
    places = numbers or [float(floor(first))]
    return [(min(max((at - first) / (last - first), 0.0), 1.0), place(timeline, at)) for at in places]


def title_text(timeline: Timeline) -> str:
    """Return the title of the drawing, in one line."""
    if timeline.spans.is_empty():
        return "Timeline: nothing was sent"
    first, last = extent(timeline)
    events = len(timeline.spans) - timeline.spans["row"].null_count()
    what = format_count(events, "collective") if events else _what(timeline)
    return f"Timeline of {what} in {_LENGTHS[timeline.order].format(place(timeline, last - first))}"


def _what(timeline: Timeline) -> str:
    """Return what the spans are if they are not collectives."""
    of_stages = timeline.spans["label"].null_count() < timeline.spans.height
    return "a pipeline's stages" if of_stages else format_count(timeline.spans.height, "part")


def axis_text(timeline: Timeline) -> str:
    """Return the meaning of the horizontal axis and of the heights."""
    sized = timeline.spans["bytes"].null_count() < len(timeline.spans)
    tall = f"; taller is more {timeline.sizes} bytes" if sized else ""
    tall += ", in the compute stream more of the time" if timeline.has_busy_lane else ""
    note = f"; {timeline.note}" if timeline.note else ""
    return f"left to right: {LEFT_TO_RIGHT[timeline.order]}{tall}{note}"


def timeline_text(timeline: Timeline) -> str:
    """Return the timeline as text: title, verdict, and a line per lane."""
    notes = [f"  {html.plain(line, longest=600)}" for line in timeline.lines()]
    return "\n".join([title_text(timeline), *notes, *(f"  {line}" for line in _lane_lines(timeline))])


def lane_totals(timeline: Timeline) -> dict[str, str]:
    """Return {lane: number and bytes of its collectives as text}; the number of its spans if it has none."""
    unknown = (pl.col("bytes").is_null() & pl.col("row").is_not_null()).sum().alias("unknown")
    of_disk = (pl.col("mark") == DISK).any().alias("of_disk")
    totals = timeline.spans.group_by("lane").agg(
        pl.len(), pl.col("row").count().alias("events"), pl.col("bytes").sum(), unknown, of_disk
    )
    texts = {}
    for row in totals.iter_rows(named=True):
        if row["events"]:
            sizes = f"{format_sum(row['bytes'], row['unknown'])} {WORDS[timeline.sizes]}"
            texts[row["lane"]] = f"{format_count(row['events'], 'collective')}, {sizes}"
        elif row["of_disk"]:
            texts[row["lane"]] = f"{format_count(row['len'], 'transfer')}, {format_bytes(row['bytes'])}"
        else:
            texts[row["lane"]] = format_count(row["len"], "span")
    return texts


def _lane_lines(timeline: Timeline) -> list[str]:
    """Return a line per lane: number and bytes of its collectives."""
    totals = lane_totals(timeline)
    lines = [f"{html.plain(lane, longest=60)}: {totals[lane]}" for lane in timeline.lanes[:_MOST_LINES]]
    more = len(timeline.lanes) - _MOST_LINES
    return [*lines, f"… and {more:,} more lanes"] if more > 0 else lines


def span_texts(timeline: Timeline, at: npt.NDArray[np.int64]) -> list[str]:
    """Return spans as text: op, module, bytes, position, and the line that issued each.

    Args:
        timeline: timeline that holds the spans.
        at: (n,) Row indices in `Timeline.spans`.
    """
    if not len(at):
        return []
    spans = timeline.spans.select("name", "mark", "bytes", "begin", "end", "row")[at]
    events = timeline.tables.events
    rows = spans["row"].to_list()
    with_row = [row for row in rows if row is not None]
    columns = {name: iter(events[name].gather(with_row).to_list()) for name in _COLUMNS_OF_EVENTS} if with_row else {}
    words, timed = WORDS[timeline.sizes], is_timed(timeline)
    messages = _messages(timeline, at)
    plain = cache(lambda text: html.plain(text, longest=90))  # names and sizes repeat from span to span
    sized = cache(lambda size: f"{format_bytes(size)} {words}")
    texts = []
    for span, (name, mark, size, begin, end, row) in zip(at.tolist(), spans.iter_rows(), strict=True):
        if size is None:
            size_text = "" if row is None else format_bytes(None)
        else:
            size_text = format_bytes(size) if mark == DISK else sized(size)
        parts = [plain(name), plain(mark), size_text, messages.get(span, "")]
        if row is not None:
            owner, cause, peer, source = (next(columns[column]) for column in _COLUMNS_OF_EVENTS)
            from_peer = "" if peer is None else f"peer rank {peer}"
            parts += [plain(owner), plain(cause), from_peer, plain(source.partition(" ← ")[0])]
        since = place(timeline, begin)
        parts.append(f"at {since}, for {format_seconds(end - begin)}" if timed else f"at {since}")
        texts.append(" · ".join(part for part in dict.fromkeys(parts) if part))
    return texts


def _messages(timeline: Timeline, at: npt.NDArray[np.int64]) -> dict[int, str]:
    """Return {span: the messages that it sends and receives, with their source line}, for spans that hold messages."""
    held = timeline.held.filter(pl.col("span").is_in(at.tolist()))
    if held.is_empty():
        return {}
    events = timeline.tables.events[held["row"].to_list()].select("op", "message_bytes", "source")
    texts: dict[int, list[str]] = defaultdict(list)
    for (span, op), part in held.hstack(events).group_by("span", "op", maintain_order=True):
        verb = "sends" if op == "send" else "receives"
        source = html.plain(part["source"][0].partition(" ← ")[0], longest=90)
        texts[span] += [
            f"{verb} {format_count(part.height, 'message')}, "
            f"{format_sum(int(part['message_bytes'].sum()), part['message_bytes'].null_count())}",
            source,
        ]
    return {span: " · ".join(dict.fromkeys(filter(None, parts))) for span, parts in texts.items()}
