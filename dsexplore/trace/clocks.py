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

TOGETHER = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""The ops that end on no rank before all have begun."""

Key = tuple[str, str]
"""A group, by its name and its ranks."""


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
    members = {name: str(list(ranks)) for name, ranks in groups.select("group", "ranks").iter_rows()}
    ends = _ends(events, members)
    ranks = sorted({rank for of_rank in ends.values() for rank in of_rank})
    if not ranks:
        return {}
    found = {ranks[0]: ClockOffset(0, 0, 0, 0)}
    waiting = [ranks[0]]
    neighbours = _neighbours(ends)
    while waiting:
        known = waiting.pop(0)
        for rank in sorted(neighbours[known] - found.keys()):
            differences = _differences(ends, known, rank)
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


def _ends(events: pl.DataFrame, members: Mapping[str, str]) -> dict[Key, dict[int, list[tuple[str, int, int]]]]:
    """By group and rank: op, bytes and end of the measured collectives, in program order."""
    measured = events.filter(pl.col("op").is_in(TOGETHER) & pl.col("end").is_not_null() & (pl.col("group_size") > 1))
    found: dict[Key, dict[int, list[tuple[str, int, int]]]] = defaultdict(lambda: defaultdict(list))
    columns = ("rank", "group", "op", "message_bytes", "end")
    for rank, group, op, size, end in measured.sort("rank", "seq").select(columns).iter_rows():
        found[group, members.get(group, "")][rank].append((op, size, end))
    return found


def _neighbours(ends: Mapping[Key, Mapping[int, object]]) -> dict[int, set[int]]:
    found: dict[int, set[int]] = defaultdict(set)
    for of_rank in ends.values():
        for rank in of_rank:
            found[rank] |= of_rank.keys() - {rank}
    return found


def _differences(
    ends: Mapping[Key, Mapping[int, list[tuple[str, int, int]]]], first: int, second: int
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Ends on the second rank less those on the first, of the collectives of their common groups."""
    found: list[int] = []
    for of_rank in ends.values():
        if first in of_rank and second in of_rank:
            ours, theirs = of_rank[first], of_rank[second]
            found += _of_pairs(ours, theirs)
    return np.array(found, dtype=np.int64)


def _of_pairs(ours: list[tuple[str, int, int]], theirs: list[tuple[str, int, int]]) -> list[int]:
    """The differences of pairs of the same op and size: counted from the first one, or from the last, whichever
    fits."""
    count = min(len(ours), len(theirs))
    choices = ((ours[:count], theirs[:count]), (ours[-count:], theirs[-count:]))
    pairs = max(choices, key=lambda choice: sum(one[:2] == other[:2] for one, other in zip(*choice, strict=True)))
    return [other[2] - one[2] for one, other in zip(*pairs, strict=True) if one[:2] == other[:2]]
