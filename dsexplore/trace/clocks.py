"""Clocks of ranks put onto one, by the ends of their collectives.

A collective that all ranks of a group need, such as an all_reduce, ends on all of them at nearly the same moment,
whoever came late. So where the clocks of two ranks differ, the ends of their common collectives differ by just that:
the offset is the median difference. Ranks without a common group are related over others.

Worked example: three all_reduces end on rank 0 at 10, 20 and 30 µs, on rank 1 at 1,010, 1,020 and 1,032 µs: rank 1's
clock is 1,000 µs ahead. Its spread is the median of 0, 0 and 2, which is 0, and the residual that over √3.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from dsexplore.trace.matching import numbered

TOGETHER = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""The ops that end on no rank before all have begun."""

SAME = ("same_group", "number", "op", "message_bytes")
"""The columns that are equal for one collective on all ranks."""


@dataclass(frozen=True)
class ClockOffset:
    """How one rank's clock stands to that of the first rank."""

    offset: int
    """Nanoseconds by which it is ahead; 0 where the ends differ by less than their spread."""
    residual: int
    """Nanoseconds within which the offset is known: the spread over the square root of the number of collectives."""
    spread: int
    """Nanoseconds by which the ends of one collective still differ after alignment: the median."""
    collectives: int
    """How many common collectives that rests on."""


def clock_offsets(events: pl.DataFrame, groups: pl.DataFrame) -> dict[int, ClockOffset]:
    """Each rank's clock against that of the lowest rank; ranks that no collective relates to it are not there.

    Args:
        events: of all ranks.
        groups: of the same trace.
    """
    measured = numbered(events, groups).filter(
        pl.col("op").is_in(TOGETHER) & pl.col("end").is_not_null() & (pl.col("group_size") > 1)
    )
    ends = {
        rank: part for (rank,), part in measured.select("rank", *SAME, "end").partition_by("rank", as_dict=True).items()
    }
    ranks = sorted(ends)
    if not ranks:
        return {}
    found = {ranks[0]: ClockOffset(0, 0, 0, 0)}
    waiting = [ranks[0]]
    neighbours = _neighbours(measured)
    while waiting:
        known = waiting.pop(0)
        for rank in sorted(neighbours[known] - found.keys()):
            differences = _differences(ends[known], ends[rank])
            if differences.size:
                found[rank] = _related(found[known], differences)
                waiting.append(rank)
    return found


def _related(known: ClockOffset, differences: np.ndarray[tuple[int], np.dtype[np.int64]]) -> ClockOffset:
    """The offset of a rank from the differences of its ends to those of a rank whose offset is known."""
    offset = int(np.median(differences))
    spread = int(np.median(np.abs(differences - offset)))
    residual = known.residual + round(spread / math.sqrt(differences.size))
    return ClockOffset(known.offset + (offset if abs(offset) > spread else 0), residual, spread, differences.size)


def aligned(events: pl.DataFrame, offsets: Mapping[int, ClockOffset]) -> pl.DataFrame:
    """The events, with all times on the clock that `offsets` is against."""
    shift = pl.col("rank").replace_strict(
        {rank: one.offset for rank, one in offsets.items()}, default=0, return_dtype=pl.Int64
    )
    return events.with_columns(pl.col("start") - shift, pl.col("end") - shift)


def _neighbours(measured: pl.DataFrame) -> dict[int, set[int]]:
    """By rank: the ranks with which it shares a group."""
    found: dict[int, set[int]] = defaultdict(set)
    for ranks in measured.group_by("same_group").agg(pl.col("rank").unique())["rank"]:
        for rank in ranks:
            found[rank] |= set(ranks) - {rank}
    return found


def _differences(ours: pl.DataFrame, theirs: pl.DataFrame) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Ends on the second rank less those on the first, of the collectives of both that are of one op and size."""
    both = ours.join(theirs, on=SAME, how="inner", suffix="_of_second")
    return (both["end_of_second"] - both["end"]).to_numpy()
