"""The same collective on all ranks of its group.

Where the events have the group's own numbers (``group_seq``), those with one number are one collective. Elsewhere the
k-th collective that a rank issued in a group is the k-th of every other rank, but for records that begin at different
collectives, as profilers of several processes do: there a rank's list of ops and sizes is moved along that of the
longest record until all that both have agrees. Of several such places, as a training loop repeats itself, the times
decide: a collective ends on all ranks at about the same moment, however far their clocks are apart. A record that
agrees from the first collective on is moved only where the ends agree much better, also if all lists are alike.

Worked example: rank 0 recorded all_gather, all_reduce, all_gather, all_reduce that end at 10, 25, 30 and 47 µs, rank 1
an all_gather and an all_reduce that end at 1,030 and 1,047 µs. From the first on, the ends differ by 1,020 and 1,022
µs; two collectives later by 1,000 and 1,000. So rank 1's record begins two collectives later.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import polars as pl

from dsexplore.trace.tables import Tables

POINT_TO_POINT = ("send", "recv")

_FARTHEST = 4096
"""Collectives by which two records of a group may begin apart."""
_LEAST = 3
"""Collectives that two records must have in common for one of them to be moved."""
_CLEARLY = 4
"""How many times less the ends must scatter for a record to be moved that agrees from the first collective on."""
_AT_BEST = 100.0
"""Nanoseconds to which the ends of a collective agree at best: a smaller scatter is luck."""
_PLACES = 256
"""Places, the nearest first, of which the times decide: a loop of one op and size fits everywhere."""
_COMPARED = 256
"""Collectives, from the first that two records have in common, whose ends are compared."""
_NAMED = 4

Array = np.ndarray[tuple[int], np.dtype[Any]]


def matched(tables: Tables) -> pl.DataFrame:
    """The measured collectives, with what is the same for all ranks that take part in one.

    Messages between two ranks are left out, and so are collectives that have not ended, failed, or were switched off:
    they count, so that those behind them still meet, but have no row.

    Returns:
        the events, with the columns of `numbered`.
    """
    found = numbered(tables.events, tables.groups)
    return found.filter(pl.col("start").is_not_null() & pl.col("end").is_not_null())


def numbered(events: pl.DataFrame, groups: pl.DataFrame) -> pl.DataFrame:
    """The collectives of process groups, each with a number that it has on all ranks of its group.

    Returns:
        the events, with the columns ``number``, from 0 in each group; ``same_group``, the group under a name that all
        ranks share; and ``members``, the ranks of the group.
    """
    named = groups.select(
        "group",
        pl.col("ranks").alias("members"),
        pl.concat_str(
            # Two ranks may name a group alike that is another; merging then adds "@rank" to one of the names.
            pl.col("group").str.replace(r"@\d+$", ""),
            pl.col("ranks").cast(pl.List(pl.String)).list.join(","),
            separator=" ",
        ).alias("same_group"),
    )
    is_collective = ~pl.col("op").is_in(POINT_TO_POINT) & ~pl.col("op").str.starts_with("switched_off")
    found = events.filter(is_collective).join(named, on="group", how="inner", maintain_order="left")
    found = found.with_columns(
        pl.int_range(pl.len()).over("rank", "same_group").alias("number"),
        pl.col("group_seq").is_not_null().all().over("same_group").alias("has_own"),
    )
    parts = [_by_group_seq(found.filter("has_own")), _by_position(found.filter(~pl.col("has_own")))]
    return pl.concat([part for part in parts if part.height] or parts[:1]).sort("rank", "seq", maintain_order=True)


def _by_group_seq(found: pl.DataFrame) -> pl.DataFrame:
    """Members of one coalesced call share the group's number: they count in program order."""
    again = pl.int_range(pl.len()).over("rank", "same_group", "group_seq")
    keys = found.with_columns(again=again)
    number = (
        keys.select("same_group", "group_seq", "again")
        .unique()
        .sort("same_group", "group_seq", "again")
        .with_columns(number=pl.int_range(pl.len()).over("same_group"))
    )
    joined = keys.drop("number").join(
        number, on=["same_group", "group_seq", "again"], how="left", maintain_order="left"
    )
    return joined.select(found.columns).drop("has_own")


def _by_position(found: pl.DataFrame) -> pl.DataFrame:
    moved = [row for row in _places(found) if row[2]]
    found = found.drop("has_own")
    if not moved:
        return found
    places = pl.DataFrame(
        moved, schema={"same_group": pl.String, "rank": pl.Int32, "place": found.schema["number"]}, orient="row"
    )
    return found.join(places, on=["same_group", "rank"], how="left", maintain_order="left").with_columns(
        pl.col("number") + pl.col("place").fill_null(0)
    ).drop("place")  # fmt: skip


def late_records(tables: Tables) -> list[str]:
    """Sentences on ranks whose records of a group begin at a later collective than those of other ranks."""
    found = numbered(tables.events, tables.groups)
    firsts = found.group_by("same_group", "rank", maintain_order=True).agg(
        pl.col("number").min(), pl.col("group").first()
    )
    later = firsts.filter(pl.col("number") > 0).sort("rank", "same_group")
    texts = [
        f"rank {rank}'s file begins {number:,} collectives of group {group} later than another rank's"
        for rank, group, number in later.select("rank", "group", "number").head(_NAMED).iter_rows()
    ]
    more = later.height - len(texts)
    return texts + ([f"{more:,} more files begin later in a group than another rank's"] if more else [])


def _places(found: pl.DataFrame) -> list[tuple[str, int, int]]:
    """By group and rank: the number of the rank's first collective, 0 on the rank whose record begins first."""
    if found.is_empty():
        return []
    lists = found.group_by("same_group", "rank", maintain_order=True).agg(
        pl.struct("op", "message_bytes").hash().alias("call"), pl.col("end").cast(pl.Float64)
    )
    rows = []
    for (group,), of_group in lists.group_by("same_group", maintain_order=True):
        calls = [one.to_numpy() for one in of_group["call"]]
        longest = max(range(len(calls)), key=lambda i: len(calls[i]))
        ends = [one.to_numpy() for one in of_group["end"]]
        places = [_place(calls[i], ends[i], calls[longest], ends[longest]) for i in range(len(calls))]
        first = min(places)
        rows += [(str(group), int(rank), place - first) for rank, place in zip(of_group["rank"], places, strict=True)]
    return rows


def _place(calls: Array, ends: Array, longest: Array, longest_ends: Array) -> int:
    """Where in the longest record another one begins; below 0 before it."""
    fits = (place for place in _candidates(calls, longest) if _fits(calls, longest, place))
    fitting = list(islice(fits, _PLACES))
    if 0 not in fitting:
        return min(fitting, key=lambda place: _scatter(ends, longest_ends, place), default=0)
    at_first = _scatter(ends, longest_ends, 0)
    most = _in_common(calls, longest, 0)
    # The ends of few collectives agree by chance somewhere.
    others = [place for place in fitting if place and 2 * _in_common(calls, longest, place) >= most]
    if at_first <= _AT_BEST * _CLEARLY or not others:
        return 0
    scatter, _, best = min((_scatter(ends, longest_ends, place), abs(place), place) for place in others)
    return best if max(scatter, _AT_BEST) * _CLEARLY < at_first else 0


def _candidates(calls: Array, longest: Array) -> list[int]:
    """The places at which the first collective that both records have is the same."""
    behind = np.flatnonzero(longest[: _FARTHEST + 1] == calls[0])
    before = np.flatnonzero(calls[: _FARTHEST + 1] == longest[0])
    return sorted({*behind.tolist(), *(-before).tolist()}, key=abs)


def _in_common(calls: Array, longest: Array, place: int) -> int:
    return min(len(calls) - max(-place, 0), len(longest) - max(place, 0))


def _fits(calls: Array, longest: Array, place: int) -> bool:
    ours, theirs = calls[max(-place, 0) :], longest[max(place, 0) :]
    count = _in_common(calls, longest, place)
    return count >= min(_LEAST, len(calls)) and bool((ours[:count] == theirs[:count]).all())


def _scatter(ends: Array, longest_ends: Array, place: int) -> float:
    """Nanoseconds by which the differences of both ranks' ends scatter; infinite where nothing was measured."""
    ours, theirs = ends[max(-place, 0) :], longest_ends[max(place, 0) :]
    count = min(len(ours), len(theirs), _COMPARED)
    differences = ours[:count] - theirs[:count]
    differences = differences[~np.isnan(differences)]
    return float(np.median(np.abs(differences - np.median(differences)))) if differences.size > 1 else np.inf
