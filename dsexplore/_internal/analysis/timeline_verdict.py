"""What a timeline concludes: who is late, which time is exposed, the longest chain, or the lane that sends most."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from dsexplore._internal.analysis.headline import Headline
from dsexplore._internal.analysis.io_waits import io_sentence
from dsexplore._internal.analysis.skew import Skew, skew
from dsexplore._internal.trace.schema import PHASES
from dsexplore._internal.units import format_bytes, format_count, format_share

if TYPE_CHECKING:
    from dsexplore._internal.analysis.step_timeline import Timeline

WORDS = {"wire": "on the wire", "message": "in messages"}
"""{`Timeline.sizes`: name of the bytes in sentences}."""
_RANK = re.compile(r"rank \d+")


def verdict(timeline: Timeline) -> str:
    """Return what measured times or the order of the collectives show, in a sentence or two."""
    if timeline.spans.is_empty():
        return "Nothing was sent."
    return (_of_times(timeline) if timeline.order == "measured" else _of_order(timeline)) or _extent(timeline)


def who_waits(timeline: Timeline) -> Skew | None:
    """Return the skew of the ranks that the lanes are; None if they are no ranks, or nothing was measured."""
    if timeline.order != "measured" or len(timeline.lanes) < 2 or not is_rank(timeline.lanes[0]):
        return None
    result = skew(timeline.tables)
    return result if result.is_timed and not result.arrivals.is_empty() else None


def is_rank(lane: str) -> bool:
    """Return True if a lane has all collectives of one rank."""
    return _RANK.fullmatch(lane) is not None


def _of_times(timeline: Timeline) -> str:
    """Return who is late and how long the program blocks on disk and input; if neither, which time is exposed."""
    io = io_sentence(timeline.tables) if timeline.tables.io.height else ""
    late = who_waits(timeline)
    if late is not None:
        return " ".join(filter(None, [late.verdict() if late.late_ranks or not io else "", io]))
    time = Headline(timeline.tables).time
    return io or (time.text if time is not None else "")


def _extent(timeline: Timeline) -> str:
    """Return the number of collectives and ranks."""
    collectives = format_count(timeline.spans.height, "collective")
    return f"{collectives} of {format_count(len(timeline.tables.info.ranks), 'rank')}."


def _of_order(timeline: Timeline) -> str:
    """Return the longest chain of ranks that wait, or the lane that sends most; empty if bytes are unknown."""
    spans = timeline.spans
    if spans["bytes"].null_count() or spans["row"].null_count():
        return ""
    collectives = format_count(spans.height, "collective")
    if timeline.order == "rounds":
        first, last = spans.select(pl.col("begin").min(), pl.col("end").max()).row(0)
        return (
            f"The longest chain in which one waits for the other has {round(last - first):,} of the {collectives} of "
            f"{len(timeline.tables.info.ranks):,} ranks."
        )
    words = WORDS[timeline.sizes]
    sizes = spans.group_by("lane").agg(pl.col("bytes").sum(), pl.len()).sort("bytes", "lane", descending=[True, False])
    lane, most, count = sizes.row(0)
    lane = lane.capitalize() if lane in PHASES else lane
    total = int(spans["bytes"].sum() or 0)
    if sizes.height == 1 or not total:
        return f"{lane} sends {format_bytes(total)} {words} in {collectives}."
    return (
        f"{lane} sends most: {format_bytes(most)} of {format_bytes(total)} {words} "
        f"({format_share(most, total)}), in {count:,} of {collectives}."
    )
