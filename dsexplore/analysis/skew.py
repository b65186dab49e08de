"""Who came late to each collective, how long the others waited for it, and what the collective itself took.

The time of a collective on a rank is made of two: the collective's own duration, the least over its ranks, as the rank
that came last waited for nobody; and the waiting, which is the rest. The two add up to what was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import polars as pl

from dsexplore.errors import UsageError
from dsexplore.trace.matching import matched
from dsexplore.trace.tables import Tables

LATE = 50e-6
"""Seconds between first and last start from which on a rank is called late: less is the time a process wakes up in."""
LATE_SHARE = 0.05
"""The same as a share of the collective's own duration."""

By = Literal["rank", "module", "axis", "phase", "op", "group"]

COLUMNS: dict[str, pl.DataType] = {
    "group": pl.String(),
    "number": pl.Int64(),  # position among the collectives of that group, from 0
    "op": pl.String(),
    "axis": pl.String(),
    "step": pl.Int32(),
    "phase": pl.String(),
    "module": pl.String(),  # the owner; of the first rank
    "source": pl.String(),  # of the first rank
    "message_bytes": pl.Int64(),
    "ranks": pl.List(pl.Int32()),  # those on which it was measured
    "first_start": pl.Float64(),  # seconds since the first start of the trace
    "last_start": pl.Float64(),
    "late_ranks": pl.List(pl.Int32()),  # those that the others waited for; empty where none was late
    "duration": pl.Float64(),  # seconds of the collective itself: the least over ranks
    "waiting": pl.List(pl.Float64()),  # per rank in `ranks`: seconds measured less the duration
    "waited": pl.Float64(),  # the sum of `waiting`
    "exposed": pl.List(pl.Float64()),  # per rank: seconds for which the program stood still for it; null: not seen
}


def skew(tables: Tables, by: By | None = None) -> pl.DataFrame:
    """One row per collective that at least two ranks measured; or sums of them.

    Args:
        tables: of several ranks, on one clock (see `dsexplore.trace.clock_alignment`).
        by: None for `COLUMNS`; else what to sum over, see `totals`.

    Raises:
        UsageError: no such ``by``.
    """
    if by is not None and by not in get_args(By):
        raise UsageError(f"skew(by={by!r}): no such sum; they are {', '.join(get_args(By))}")
    rows = _rows(matched(tables))
    if by is None:
        return rows.select(list(COLUMNS))
    return per_rank(rows) if by == "rank" else totals(rows, by)


def _rows(measured: pl.DataFrame) -> pl.DataFrame:
    took = (pl.col("end") - pl.col("start")) / 1e9
    begin = (pl.col("start") - pl.col("start").min()) / 1e9
    rows = (
        measured.with_columns(took=took, begin=begin, stood=pl.col("waited") / 1e9)
        .sort("rank", maintain_order=True)
        .group_by("same_group", "number", "op", maintain_order=True)
        .agg(
            pl.col("group", "axis", "step", "phase", "owner", "source").first(),
            pl.col("message_bytes").max(),
            pl.col("rank").alias("ranks"),
            pl.col("begin"),
            pl.col("took"),
            pl.col("stood").alias("exposed"),
        )
        .filter(pl.col("ranks").list.len() > 1)
        .rename({"owner": "module"})
    )
    waiting = pl.col("took") - pl.col("duration")
    first, last = pl.col("begin").list.min(), pl.col("begin").list.max()
    rows = rows.with_columns(
        duration=pl.col("took").list.min(), first_start=first, last_start=last, spread=last - first
    ).with_columns(waiting=waiting, late=_late_positions())
    late = pl.col("ranks").list.gather(pl.col("late"))
    empty = pl.lit([], dtype=COLUMNS["late_ranks"])
    is_late = pl.col("spread") > pl.max_horizontal(pl.lit(LATE), pl.col("duration") * LATE_SHARE)
    return rows.with_columns(
        waited=pl.col("waiting").list.sum(), late_ranks=pl.when(is_late).then(late).otherwise(empty)
    ).sort("first_start", maintain_order=True)


def _late_positions() -> pl.Expr:
    """Positions of the ranks that began in the later half of the spread."""
    middle = pl.col("first_start") + pl.col("spread") / 2
    count = pl.col("begin").list.len()
    positions = pl.int_ranges(count)
    began_late = (pl.col("begin") - middle).list.eval(pl.element() > 0)
    return pl.concat_list(positions).list.gather(began_late.list.eval(pl.arg_where(pl.element())))


def totals(rows: pl.DataFrame, by: str) -> pl.DataFrame:
    """Per module, axis, phase, op or group: how many collectives, their durations and what ranks waited, in seconds.

    ``exposed`` sums the seconds for which programs stood still, and ``hidden`` is the rest of the measured time; both
    are over the collectives where that was seen, ``seen`` of all rank's shares. ``late`` counts the collectives with a
    late rank, and ``latest_rank`` is the rank that was late most often; null where none was. ``slow_ranks`` and
    ``slow_links`` list the ranks that `per_rank` would call so by these collectives alone.
    """
    shares = pl.col("exposed").list
    slow_ranks = _lateness(rows, [by]).filter(pl.col("late") * 2 > pl.col("collectives"))
    found = rows.group_by(by, maintain_order=True).agg(
        pl.len().alias("collectives"),
        pl.col("duration").sum(),
        pl.col("waited").sum(),
        shares.sum().sum().alias("exposed"),
        _hidden().list.sum().sum().alias("hidden"),
        shares.drop_nulls().list.len().sum().alias("seen"),
        (pl.col("late_ranks").list.len() > 0).sum().alias("late"),
        pl.col("late_ranks").explode().drop_nulls().mode().sort().first().alias("latest_rank"),
    )
    for name, slow in (("slow_ranks", slow_ranks), ("slow_links", _slow_links(rows, by))):
        listed = slow.group_by(by).agg(pl.col("rank").sort().alias(name))
        found = found.join(listed, on=by, how="left").with_columns(
            pl.col(name).fill_null(pl.lit([], dtype=COLUMNS["ranks"]))
        )
    return found.sort("waited", by, descending=[True, False])


def _hidden() -> pl.Expr:
    """Per rank, seconds of a collective in which its program went on; null where that was not seen."""
    return (pl.col("took") - pl.col("exposed")).list.eval(pl.element().clip(lower_bound=0))


def per_rank(rows: pl.DataFrame) -> pl.DataFrame:
    """Per rank: how often it was late, for how long the others waited then, and what a slow one of them looks like.

    Columns: ``rank``; ``collectives``; ``late``, how often it was late; ``kept_waiting``, seconds that other ranks
    waited in those; ``waited``, its own waiting; ``exposed``; and ``likely``: ``"slow rank"`` where it was late in
    more than half of its collectives (its program comes late), ``"slow link"`` where it is not late and its collectives
    take twice as long as those of the same op, size and axis in groups without it; empty where neither shows.
    """
    slow = _slow_links(rows)["rank"].to_list()
    likely = (
        pl.when(pl.col("late") * 2 > pl.col("collectives"))
        .then(pl.lit("slow rank"))
        .when(pl.col("rank").is_in(slow))
        .then(pl.lit("slow link"))
        .otherwise(pl.lit(""))
    )
    return _lateness(rows).with_columns(likely=likely).sort("rank")


def _lateness(rows: pl.DataFrame, by: Sequence[str] = ()) -> pl.DataFrame:
    """Per rank, and per ``by``: its collectives, how often it was late, and what it and the others waited."""
    each = rows.explode("ranks", "waiting", "exposed").rename({"ranks": "rank"})
    is_late = pl.col("late_ranks").list.contains(pl.col("rank"))
    others = pl.when(is_late).then(pl.col("waited") - pl.col("waiting")).otherwise(0.0)
    return (
        each.with_columns(is_late=is_late, others=others)
        .group_by(*by, "rank")
        .agg(
            pl.len().alias("collectives"),
            pl.col("is_late").sum().alias("late"),
            pl.col("others").sum().alias("kept_waiting"),
            pl.col("waiting").sum().alias("waited"),
            pl.col("exposed").sum(),
        )
    )


def _slow_links(rows: pl.DataFrame, by: str | None = None) -> pl.DataFrame:
    """The ranks whose collectives all take twice as long as like ones of groups without them: they waited for no rank.

    Returns:
        ``rank``, and ``by`` where it is given: then only collectives of one value of it are compared, but for groups,
        which are compared with each other.
    """
    alike = list(dict.fromkeys(["op", "message_bytes", "axis", *([by] if by not in (None, "group") else [])]))
    of_groups = rows.group_by("same_group", *alike).agg(pl.col("group", "ranks").first(), pl.col("duration").median())
    mine = of_groups.with_columns(rank="ranks").explode("rank").drop("ranks")
    others = of_groups.select(*alike, "ranks", theirs="duration")
    return (
        mine.join(others, on=alike, nulls_equal=True)
        .filter(~pl.col("ranks").list.contains(pl.col("rank")))
        .group_by("same_group", "group", "rank", *alike)
        .agg(pl.col("duration").first(), pl.col("theirs").median())
        .group_by("rank", *([by] if by is not None else []))
        .agg((pl.col("duration") > 2 * pl.col("theirs")).all().alias("is_slow"))
        .filter("is_slow")
    )
