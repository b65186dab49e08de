"""Derives the verdict of a timeline: who is late, which time is exposed, the longest chain, or the largest sender."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import polars as pl

from dsexplore._internal.analysis.headline import Headline
from dsexplore._internal.analysis.io_waits import io_sentence
from dsexplore._internal.analysis.skew import Skew
from dsexplore._internal.trace.schema import PHASES
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.units import format_bytes, format_count, format_share

WORDS = {"wire": "on the wire", "message": "in messages"}
"""{`Timeline.sizes`: name of the bytes in sentences}."""
_RANK = re.compile(r"rank \d+")


@dataclass(frozen=True)
class DrawnSpans:
    """The fields of a `Timeline` that its verdict depends on."""

    tables: Tables
    spans: pl.DataFrame
    lanes: tuple[str, ...]
    order: str
    sizes: str

    def verdict(self) -> str:
        """Return what measured times or the order of the collectives show, in a sentence or two."""
        if self.spans.is_empty():
            return "Nothing was sent."
        return (self._of_times() if self.order == "measured" else self._of_order()) or self._extent()

    def rank_skew(self) -> Skew | None:
        """Return the skew if each lane is a rank and times were measured; else None."""
        if self.order != "measured" or len(self.lanes) < 2 or not is_rank(self.lanes[0]):
            return None
        return self.skew if self.skew.is_timed and not self.skew.arrivals.is_empty() else None

    @cached_property
    def skew(self) -> Skew:
        """Skew of the trace."""
        return Skew(self.tables)

    def _of_times(self) -> str:
        """Return who is late and how long the program blocks on disk and input; if neither, which time is exposed."""
        io = io_sentence(self.tables) if self.tables.io.height else ""
        late = self.rank_skew()
        if late is not None and (late.late_ranks or not io):
            return f"{late.verdict()} {io}" if io else late.verdict()
        if late is not None:
            return io
        time = Headline(self.tables).time
        return io or (time.text if time is not None else "")

    def _extent(self) -> str:
        """Return the number of collectives and ranks."""
        collectives = format_count(self.spans.height, "collective")
        return f"{collectives} of {format_count(len(self.tables.info.ranks), 'rank')}."

    def _of_order(self) -> str:
        """Return the longest chain of ranks that wait, or the lane that sends most; empty if bytes are unknown."""
        spans = self.spans
        if spans["bytes"].null_count() or spans["row"].null_count():
            return ""
        collectives = format_count(spans.height, "collective")
        if self.order == "rounds":
            first, last = spans.select(pl.col("begin").min(), pl.col("end").max()).row(0)
            return (
                f"The longest chain in which one waits for the other has {round(last - first):,} of the {collectives} "
                f"of {len(self.tables.info.ranks):,} ranks."
            )
        words = WORDS[self.sizes]
        by_lane = spans.group_by("lane").agg(pl.col("bytes").sum(), pl.len())
        lane, most, count = by_lane.sort("bytes", "lane", descending=[True, False]).row(0)
        lane = lane.capitalize() if lane in PHASES else lane
        total = int(spans["bytes"].sum() or 0)
        if by_lane.height == 1 or not total:
            return f"{lane} sends {format_bytes(total)} {words} in {collectives}."
        return (
            f"{lane} sends most: {format_bytes(most)} of {format_bytes(total)} {words} "
            f"({format_share(most, total)}), in {count:,} of {collectives}."
        )


def is_rank(lane: str) -> bool:
    """Return True if a lane has all collectives of one rank."""
    return _RANK.fullmatch(lane) is not None
