"""Match the calls of one collective across all ranks of its group.

Events with the group's own sequence numbers (``group_seq``) are matched by these. Traces recorded by ``commtrace`` have
them, and so have most files of other tools. Without them, the k-th collective that a rank issued in a group is the k-th
of every other rank, unless profilers in several processes began their records at different collectives.

Such a record is shifted along the longest record of its group only on proof that both begin differently: ops or sizes
differ, or no clock offset lets every rank begin a collective before any rank ends it. It is shifted to the only
position at which all ops and sizes agree and the times are possible. If several positions remain, the ends decide,
provided that they agree so much better at one position that chance would do so less than once in a million times. A
record whose position cannot be found is matched with no other.

Worked example: rank 0 recorded 60 all_gathers of one size, rank 1 the last 55 of them, on a clock that is 1 s ahead.
Each lasts 20 ms. At position 0 one of them ends on rank 1 1.010 s after it ends on rank 0, and another one 1.090 s
after. No clock offset lets both overlap, so rank 1's record begins later: at the sixth, where all ends differ by 1.000
s.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import polars as pl

from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.units import format_count, format_seconds

POINT_TO_POINT = ("send", "recv")
TOGETHER = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Ops that end on no rank before all have begun."""

_FARTHEST = 4096
"""Largest number of collectives by which two records of a group may be shifted."""
LEAST_IN_COMMON = 8
"""Number of common collectives that two records need for an agreement to be evidence."""
_CHANCE = 1e-6
"""Probability below which an agreement of times is not considered chance."""
AT_BEST = 100.0
"""Best possible agreement of the ends of a collective in nanoseconds: a smaller spread is luck."""
_INEXACT = 1e6
"""Nanoseconds of contradiction between times that prove nothing, as clocks are read inexactly."""
_DRIFT = 1e-4
"""Drift between the clocks of two machines, in seconds per second."""
_PLACES = 256
"""Number of positions, the closest to 0 first, that are checked by times; a loop of one op and size fits everywhere."""
_COMPARED = 256
"""Number of collectives, from the first common one, whose times are compared."""
_NAMED = 4
"""Number of records that `late_records` describes."""

Array = np.ndarray[tuple[int], np.dtype[Any]]


def is_numbered(op: str) -> bool:
    """Return True if `op` involves all ranks of its group: not for send, recv and ops that were switched off."""
    return op not in POINT_TO_POINT and not op.startswith("switched_off")


def matched(tables: Tables) -> pl.DataFrame:
    """Return the measured collectives with the columns of `numbered`, which identify one collective on all its ranks.

    Point-to-point messages are excluded. Collectives that have not ended, failed, or were switched off take part in the
    numbering, so that later ones still match, but have no row.
    """
    events = numbered(tables.events, tables.groups)
    return events.filter(pl.col("start").is_not_null() & pl.col("end").is_not_null())


def numbered(events: pl.DataFrame, groups: pl.DataFrame) -> pl.DataFrame:
    """Return the collectives of process groups, each with a number that is equal on all ranks of its group.

    Returns:
        The events with the columns ``number``, from 0 in each group; ``same_group``, a name of the group that is equal
        on all ranks; and ``members``, the ranks of the group. Records whose position cannot be found have no rows.
    """
    with_groups = _join_groups(events, groups)
    parts = [
        _number_by_group_seq(with_groups.filter("has_own")),
        _number_by_position(with_groups.filter(~pl.col("has_own"))),
    ]
    return pl.concat([part for part in parts if part.height] or parts[:1]).sort("rank", "seq", maintain_order=True)


def late_records(tables: Tables) -> list[str]:
    """Return sentences about ranks whose record of a group begins later than others' or matches at no position."""
    with_groups = _join_groups(tables.events, tables.groups)
    counted = (
        _number_by_group_seq(with_groups.filter("has_own"))
        .group_by("same_group", "rank", maintain_order=True)
        .agg(pl.col("group", "number").first())
    )
    records = [
        _Record(group=group, rank=rank, name=name, place=number, scatter=math.inf)
        for group, rank, name, number in counted.iter_rows()
    ]
    records += _located(with_groups.filter(~pl.col("has_own")))
    records.sort(key=lambda record: (record.rank, record.group))
    texts = [text for record in records if (text := record.text)]
    more = len(texts) - _NAMED
    return texts[:_NAMED] + (
        [f"{more:,} more files begin elsewhere in a group than another rank's"] if more > 0 else []
    )


def is_beyond_chance(spread: float, width: float, within: int, count: int) -> bool:
    """Return True if values lie closer together than chance would put them.

    Args:
        spread: largest distance from the median among the `within` closest values.
        width: distance from the median that chance would give.
        within: number of values within the spread.
        count: number of all values.
    """
    if within < 2 or width <= spread:
        return False
    if spread == 0:
        return True
    choices = math.lgamma(count + 1) - math.lgamma(within + 1) - math.lgamma(count - within + 1)
    return choices + (within - 1) * math.log(spread / width) < math.log(_CHANCE)


def _join_groups(events: pl.DataFrame, groups: pl.DataFrame) -> pl.DataFrame:
    """Return the collectives joined with their groups, numbered by position; ``has_own``: all have ``group_seq``."""
    named = groups.select(
        "group",
        pl.col("ranks").alias("members"),
        pl.concat_str(
            # Two ranks may use one name for different groups; merging then adds "@rank" to one of the names.
            pl.col("group").str.replace(r"@\d+$", ""),
            pl.col("ranks").cast(pl.List(pl.String)).list.join(","),
            separator=" ",
        ).alias("same_group"),
    )
    is_collective = ~pl.col("op").is_in(POINT_TO_POINT) & ~pl.col("op").str.starts_with("switched_off")
    collectives = events.filter(is_collective).join(named, on="group", how="inner", maintain_order="left")
    return collectives.with_columns(
        pl.int_range(pl.len()).over("rank", "same_group").alias("number"),
        pl.col("group_seq").is_not_null().all().over("same_group").alias("has_own"),
    )


def _number_by_group_seq(collectives: pl.DataFrame) -> pl.DataFrame:
    """Number collectives by ``group_seq``; members of one coalesced call share it and are numbered in program order."""
    again = pl.int_range(pl.len()).over("rank", "same_group", "group_seq")
    keys = collectives.with_columns(again=again)
    number = (
        keys.select("same_group", "group_seq", "again")
        .unique()
        .sort("same_group", "group_seq", "again")
        .with_columns(number=pl.int_range(pl.len()).over("same_group"))
    )
    joined = keys.drop("number").join(
        number, on=["same_group", "group_seq", "again"], how="left", maintain_order="left"
    )
    return joined.select(collectives.columns).drop("has_own")


def _number_by_position(collectives: pl.DataFrame) -> pl.DataFrame:
    """Number collectives by their position in their rank's record, shifted to where the record begins."""
    shifted = [(record.group, record.rank, record.place) for record in _located(collectives) if record.place != 0]
    collectives = collectives.drop("has_own")
    if not shifted:
        return collectives
    places = pl.DataFrame(
        shifted, schema={"same_group": pl.String, "rank": pl.Int32, "place": collectives.schema["number"]}, orient="row"
    ).with_columns(is_moved=pl.lit(True))
    joined = collectives.join(places, on=["same_group", "rank"], how="left", maintain_order="left")
    placed = joined.filter(pl.col("is_moved").is_null() | pl.col("place").is_not_null())
    return placed.with_columns(pl.col("number") + pl.col("place").fill_null(0)).drop("place", "is_moved")


@dataclass(frozen=True)
class _Record:
    """One rank's collectives of one group, and where they begin among those of the other ranks."""

    group: str
    rank: int
    name: str
    """Name of the group on this rank."""
    place: int | None
    """Number of its first collective, 0 on the rank whose record begins first; None if unknown."""
    scatter: float
    """Scatter, in nanoseconds, of the differences between its ends and those of the longest record."""

    @property
    def text(self) -> str:
        """Sentence on where the record begins; empty for one that begins with the others."""
        group = f"group {self.name}" if self.name else "an unnamed group"
        if self.place is None:
            return (
                f"rank {self.rank}'s file begins elsewhere in {group} than another rank's, and times do not say where: "
                "its collectives there are compared with no other rank's"
            )
        if not self.place:
            return ""
        is_known = math.isfinite(self.scatter)
        within = f" (ends then agree within {format_seconds(self.scatter / 1e9)})" if is_known else ""
        return (
            f"rank {self.rank}'s file begins {format_count(self.place, 'collective')} of {group} later than another "
            f"rank's{within}"
        )


def _located(matches: pl.DataFrame) -> Iterator[_Record]:
    """Yield one `_Record` per group and rank, with its position."""
    if matches.is_empty():
        return
    is_together = pl.col("op").is_in(TOGETHER)
    lists = matches.group_by("same_group", "rank", maintain_order=True).agg(
        pl.col("group").first(),
        pl.struct("op", pl.when(pl.col("op") != "all_to_all").then("message_bytes")).hash().alias("call"),
        *(pl.when(is_together).then(name).cast(pl.Float64).alias(name) for name in ("start", "end")),
    )
    for (group,), of_group in lists.group_by("same_group", maintain_order=True):
        calls, starts, ends = ([column.to_numpy() for column in of_group[name]] for name in ("call", "start", "end"))
        longest = max(range(len(calls)), key=lambda i: len(calls[i]))
        places = [
            _place(
                calls=calls[i],
                ends=ends[i],
                longest=calls[longest],
                longest_ends=ends[longest],
                starts=starts[i],
                longest_starts=starts[longest],
            )
            for i in range(len(calls))
        ]
        first = min(place for place in places if place is not None)  # the longest has place 0
        for i, (rank, name) in enumerate(of_group.select("rank", "group").iter_rows()):
            place = places[i]
            yield _Record(
                group=str(group),
                rank=rank,
                name=name,
                place=None if place is None else place - first,
                scatter=math.inf if place is None else _scatter(ends[i], ends[longest], place),
            )


def _place(
    calls: Array,
    ends: Array,
    longest: Array,
    longest_ends: Array,
    starts: Array | None = None,
    longest_starts: Array | None = None,
) -> int | None:
    """Return the position in the group's longest record at which another record begins.

    Returns:
        A number below 0 if it begins before the longest record; None if unknown.

    Args:
        calls: a number for op and size of each collective, shape (collectives,).
        ends: ends in nanoseconds, shape (collectives,); NaN if not measured, or if the op need not end together.
        longest: the same as ``calls`` for the longest record.
        longest_ends: the same as ``ends`` for the longest record.
        starts: starts in nanoseconds, shape (collectives,); None if unknown, so that every position is possible.
        longest_starts: the same as ``starts`` for the longest record.
    """

    def is_possible(place: int) -> bool:
        if starts is None or longest_starts is None:
            return True
        return _contradiction(starts, ends, longest_starts, longest_ends, place) <= 0

    fitting = list(islice((place for place in _candidates(calls, longest) if _fits(calls, longest, place)), _PLACES))
    if 0 in fitting and is_possible(0):
        return 0
    possible = [place for place in fitting if is_possible(place)]
    if not possible:
        return 0 if 0 in fitting or not fitting else None
    if len(possible) == 1:
        return possible[0]
    return _place_by_ends(ends, longest_ends, possible)


def _candidates(calls: Array, longest: Array) -> list[int]:
    """Return the positions at which the first common collective of both records is equal, the closest to 0 first."""
    behind = np.flatnonzero(longest[: _FARTHEST + 1] == calls[0])
    before = np.flatnonzero(calls[: _FARTHEST + 1] == longest[0])
    return sorted({*behind.tolist(), *(-before).tolist()}, key=abs)


def _fits(calls: Array, longest: Array, place: int) -> bool:
    """Return True if ops and sizes agree at `place`; a position other than 0 also needs enough common collectives."""
    ours, theirs = calls[max(-place, 0) :], longest[max(place, 0) :]
    count = min(len(ours), len(theirs))
    is_enough = not place or count >= max(LEAST_IN_COMMON, len(calls) / 2)
    return is_enough and bool((ours[:count] == theirs[:count]).all())


def _pairs(ours: Array, theirs: Array, place: int) -> tuple[Array, Array]:
    """Return the values of the first `_COMPARED` collectives that two records have in common at `place`."""
    ours, theirs = ours[max(-place, 0) :], theirs[max(place, 0) :]
    count = min(len(ours), len(theirs), _COMPARED)
    return ours[:count], theirs[:count]


def _contradiction(starts: Array, ends: Array, longest_starts: Array, longest_ends: Array, place: int) -> float:
    """Return the nanoseconds by which times at `place` contradict each other for any clock offset; 0 if they do not.

    No rank ends a collective before every rank has begun it. So the clock of this record is ahead of the longest one's
    by at least each start minus the end there, and by at most each end minus the start there.
    """
    start, other_start = _pairs(starts, longest_starts, place)
    end, other_end = _pairs(ends, longest_ends, place)
    least, most = start - other_end, end - other_start
    is_bounded = ~np.isnan(least + most)
    if not is_bounded.any():
        return 0.0
    span = float(np.ptp(other_end[is_bounded]))
    return max(0.0, float(least[is_bounded].max() - most[is_bounded].min()) - _INEXACT - _DRIFT * span)


def _place_by_ends(ends: Array, longest_ends: Array, places: Sequence[int]) -> int | None:
    """Return the position at which the ends agree much better than at any other; None if chance explains it."""
    best, second = sorted(places, key=lambda place: (_scatter(ends, longest_ends, place), abs(place)))[:2]
    spread = max(_scatter(ends, longest_ends, best), AT_BEST)
    count = int((~np.isnan(np.subtract(*_pairs(ends, longest_ends, best)))).sum())
    width = _scatter(ends, longest_ends, second)
    is_proven = is_beyond_chance(spread=spread, width=width, within=(count + 1) // 2, count=count)
    return best if is_proven else None


def _scatter(ends: Array, longest_ends: Array, place: int) -> float:
    """Return the median absolute deviation, in ns, of the differences of both ranks' ends; infinite if unknown."""
    differences = np.subtract(*_pairs(ends, longest_ends, place))
    differences = differences[~np.isnan(differences)]
    return float(np.median(np.abs(differences - np.median(differences)))) if differences.size > 1 else np.inf
