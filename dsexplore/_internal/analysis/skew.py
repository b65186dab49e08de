"""`Skew` states which ranks come late to collectives, how long others wait for them, and how long transfers take.

The measured time of a rank in a collective is the sum of the transfer and the waiting. The transfer is the shortest
time over the ranks, as the rank that came last did not wait. The *skew* of a collective is the time between the first
and the last start of its ranks. `arrivals` finds the late ranks of one collective, `late_ranks` the ranks that are late
repeatedly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Literal, get_args

import numpy as np
import polars as pl

from dsexplore._internal.analysis.arrivals import arrivals
from dsexplore._internal.analysis.io_waits import reason_of_lateness
from dsexplore._internal.analysis.late_ranks import LateRank, late_ranks
from dsexplore._internal.display import Result
from dsexplore._internal.errors import UsageError
from dsexplore._internal.trace import measured_time
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.units import UNITS_OF_SECONDS, format_count, format_seconds

By = Literal["rank", "module", "axis", "phase", "op", "group"]

COLUMNS: dict[str, pl.DataType] = {
    "group": pl.String(),
    "number": pl.Int64(),  # position among the collectives of that group, from 0
    "op": pl.String(),
    "axis": pl.String(),
    "step": pl.Int32(),
    "phase": pl.String(),
    "module": pl.String(),  # the owner on the first rank
    "source": pl.String(),  # the line on the first rank
    "message_bytes": pl.Int64(),
    "ranks": pl.List(pl.Int32()),  # the ranks on which it was measured
    "first_start": pl.Float64(),  # seconds since the first start of the trace
    "last_start": pl.Float64(),  # seconds since the first start of the trace
    "skew": pl.Float64(),  # seconds between the two
    "late_by": pl.List(pl.Float64()),  # per rank in `ranks`: seconds after the median of the others
    "late_ranks": pl.List(pl.Int32()),  # the ranks that others waited for; empty if none was late
    "duration": pl.Float64(),  # seconds of the transfer: the least over ranks
    "waiting": pl.List(pl.Float64()),  # per rank in `ranks`: measured seconds minus the duration
    "waited": pl.Float64(),  # the sum of `waiting`
    "exposed": pl.List(pl.Float64()),  # per rank in `ranks`: seconds for which it blocked the program; null if unknown
}
"""Columns of `Skew.to_frame`."""
_NAMED = 2
"""Number of late ranks that the verdict describes."""


class Skew(Result):
    """Who came late to the collectives of a trace, for how long the others waited, and what the transfers took.

    Args:
        tables: a trace of several ranks on one clock (see `trace.merge`).
    """

    _INTERNAL = frozenset({"tables"})

    def __init__(self, tables: Tables) -> None:
        self.tables = tables

    def __repr__(self) -> str:
        return f"<Skew: {self.verdict()}>"

    @cached_property
    def arrivals(self) -> pl.DataFrame:
        """One row per rank and collective that several ranks measured; see `analysis.arrivals`."""
        return arrivals(self.tables)

    @cached_property
    def late_ranks(self) -> tuple[LateRank, ...]:
        """Ranks that are late repeatedly, or at great cost, the most costly first."""
        return late_ranks(self.arrivals)

    @property
    def is_timed(self) -> bool:
        """True if the trace has times."""
        return self.tables.events.height > 0 and measured_time.is_timed(self.tables.events)

    def verdict(self) -> str:
        """Return who is late, by how much and since when, and what the transfer takes; or why that is unknown."""
        return self._verdict

    def lines(self) -> list[str]:
        """Return the verdict, then the notes of the trace."""
        return [self._verdict, *self.tables.info.notes]

    @cached_property
    def _verdict(self) -> str:
        if self.tables.info.simulated:
            return (
                "A simulated trace has no times, so it does not show who is late: record real ranks, with "
                "%%commtrace --real 4 in a notebook or commtrace(save=…) under torchrun."
            )
        if not self.is_timed:
            return "The trace has no times, so it does not show who is late."
        if self.arrivals.is_empty():
            return (
                "No collective was measured on two ranks, so nobody shows as late: load the folder with the files of "
                "all ranks."
            )
        return " ".join(map(self._late_text, self.late_ranks[:_NAMED])) + self._others_text()

    def _late_text(self, late: LateRank) -> str:
        """Return a sentence on one late rank, with the disk or input that it blocked on, if that is the reason."""
        return " ".join(filter(None, [late_text(late), reason_of_lateness(self.tables, late)]))

    def _others_text(self) -> str:
        """Return the number of late ranks that are not described; if no rank is late, the usual skew and transfer."""
        if len(self.late_ranks) > _NAMED:
            return f" {format_count(len(self.late_ranks) - _NAMED, 'more rank')} come late."
        if self.late_ranks:
            return ""
        rows = self._rows
        skew, duration = float(np.median(rows["skew"])), rows["duration"].to_numpy()
        return (
            f"No rank comes late again and again: ranks start a collective {format_seconds(skew)} apart (median), and "
            f"the transfer takes {range_text(*np.quantile(duration, (0.1, 0.9)))}."
        )

    def to_frame(self, by: By | None = None) -> pl.DataFrame:
        """Return one row per collective that at least two ranks measured; or sums of them.

        Args:
            by: the column to sum by, which gives the columns of `totals`, or for ``"rank"`` of `per_rank`. None does
                not sum, and gives `COLUMNS`.

        Raises:
            UsageError: there is no such ``by``.
        """
        if by is not None and by not in get_args(By):
            raise UsageError(f"to_frame(by={by!r}) of a Skew: no such sum; they are {', '.join(get_args(By))}")
        if by is None:
            return self._rows.select(list(COLUMNS))
        return per_rank(self._rows) if by == "rank" else totals(self._rows, by)

    @cached_property
    def _rows(self) -> pl.DataFrame:
        return _collectives(self.arrivals)

    def trace(self, index: int = 0) -> Trace:
        """Return the collectives to which the late rank of that number came late, as a `Trace`."""
        rows = self.late_ranks[index].rows.tolist()
        return Trace(replace(self.tables, events=self.tables.events[sorted(rows)]))


def skew(tables: Tables) -> Skew:
    """Return the ranks that came late to the collectives of a trace, and how long the others waited."""
    return Skew(tables)


def late_text(late: LateRank) -> str:
    """Return one late rank as a sentence.

    Worked example: ``"Rank 1 arrives 200 ms late at 6 of 6 all_reduces; those transfers take 2–5 ms."``
    """
    return f"Rank {late.rank} arrives {lateness_text(late)}; those transfers take {range_text(*late.transfer)}."


def lateness_text(late: LateRank) -> str:
    """Return how late a rank arrives, at how many collectives, and since when."""
    by = format_seconds(late.late_by)
    if late.most - late.least > 0.2 * late.late_by:
        by = range_text(late.least, late.most)
    which = late.ops[0] if len(late.ops) == 1 else "collective"
    kinds = f" ({', '.join(late.ops)})" if len(late.ops) > 1 else ""
    axis = f" on {late.axis}" if late.axis else ""
    return f"{by} late at {late.late:,} of {format_count(late.collectives, which)}{kinds}{axis}{_since_text(late)}"


def _since_text(late: LateRank) -> str:
    if late.since_step is not None:
        return f", since step {late.since_step}"
    return f", since number {late.since_number}" if late.since_number is not None else ""


def range_text(low: float, high: float) -> str:
    """Return a range of seconds as text, with its unit once: ``"2–5 ms"``; one number where both look the same."""
    low_text, high_text = (_two_digits(seconds, max(abs(high), 1e-12)) for seconds in (low, high))
    number, _, unit = high_text.partition(" ")
    low_number = low_text.partition(" ")[0]
    return high_text if low_number == number else f"{low_number}–{number} {unit}"


def _two_digits(seconds: float, largest: float) -> str:
    """Return seconds in the unit of the largest, with two significant digits."""
    fitting = [(unit, scale) for unit, scale in UNITS_OF_SECONDS if largest >= 0.995 * scale]
    unit, scale = fitting[0] if fitting else UNITS_OF_SECONDS[-1]
    return f"{float(f'{seconds / scale:.2g}'):,.10g} {unit}"


def _collectives(arrived: pl.DataFrame) -> pl.DataFrame:
    """Return one row per collective, with `COLUMNS`, ``same_group`` and ``took``."""
    rows = (
        arrived.with_columns(exposed=pl.col("waited") / 1e9)
        .sort("rank", maintain_order=True)
        .group_by("instance", maintain_order=True)
        .agg(
            pl.col("same_group", "number", "op", "group", "axis", "step", "phase", "owner", "source").first(),
            pl.col("message_bytes").max(),
            pl.col("rank").alias("ranks"),
            pl.col("begin").min().alias("first_start"),
            pl.col("begin").max().alias("last_start"),
            pl.col("late_by"),
            pl.col("rank").filter("is_late").alias("late_ranks"),
            pl.col("duration").first(),
            (pl.col("took") - pl.col("duration")).alias("waiting"),
            pl.col("took"),
            pl.col("exposed"),
        )
        .rename({"owner": "module"})
    )
    return rows.with_columns(
        pl.col("number").cast(COLUMNS["number"]),
        skew=pl.col("last_start") - pl.col("first_start"),
        waited=pl.col("waiting").list.sum(),
    ).sort("first_start", maintain_order=True)


def totals(rows: pl.DataFrame, by: str) -> pl.DataFrame:
    """Return the number of collectives, their seconds, and the waiting of ranks per module, axis, phase, op or group.

    ``exposed`` sums the seconds for which programs were blocked, and ``hidden`` the rest of the measured time. Both
    cover only events for which blocking was observed; ``seen`` is their number. ``late`` counts the collectives with a
    late rank, and ``latest_rank`` is the rank that was late most often; null if none was. ``slow_ranks`` and
    ``slow_links`` list the ranks that `per_rank` would call so by these collectives alone.

    Args:
        rows: one row per collective, with `COLUMNS`.
        by: the column to sum by.
    """
    shares = pl.col("exposed").list
    slow_ranks = _lateness(rows, [by]).filter(pl.col("late") * 2 > pl.col("collectives"))
    sums = rows.group_by(by, maintain_order=True).agg(
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
        sums = sums.join(listed, on=by, how="left").with_columns(
            pl.col(name).fill_null(pl.lit([], dtype=COLUMNS["ranks"]))
        )
    return sums.sort("waited", by, descending=[True, False])


def _hidden() -> pl.Expr:
    """Return per rank the seconds of a collective in which its program continued; null if unknown."""
    return (pl.col("took") - pl.col("exposed")).list.eval(pl.element().clip(lower_bound=0))


def per_rank(rows: pl.DataFrame) -> pl.DataFrame:
    """Return one row per rank: how often it was late, how long others waited for it, and the likely cause.

    Columns: ``rank``; ``collectives``, their number; ``late``, the number to which it was late; ``kept_waiting``,
    seconds that other ranks waited in those; ``waited``, seconds that it waited itself; ``exposed``, seconds for which
    its program was blocked; and ``likely``. That is ``"slow rank"`` if it was late to more than half of its
    collectives. It is ``"slow link"`` if it is not late, and its collectives take twice as long as those of the same
    op, size and axis in groups without it. Otherwise it is empty.
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
    """Return per rank, and per `by`, its collectives, how often it was late, and the waiting of it and of others."""
    by_rank = rows.explode("ranks", "waiting", "exposed").rename({"ranks": "rank"})
    is_late = pl.col("late_ranks").list.contains(pl.col("rank"))
    others = pl.when(is_late).then(pl.col("waited") - pl.col("waiting")).otherwise(0.0)
    return (
        by_rank.with_columns(is_late=is_late, others=others)
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
    """Return the ranks whose collectives all take twice as long, without waiting, as in groups without them.

    Args:
        rows: one row per collective, with `COLUMNS`.
        by: a column whose values are judged one by one; None for all collectives together. ``"group"`` compares the
            collectives of a group with those of other groups.

    Returns:
        Columns ``rank`` and, if given, ``by``.
    """
    same = list(dict.fromkeys(["op", "message_bytes", "axis", *([by] if by not in (None, "group") else [])]))
    of_groups = rows.group_by("same_group", *same).agg(pl.col("group", "ranks").first(), pl.col("duration").median())
    mine = of_groups.with_columns(rank="ranks").explode("rank").drop("ranks")
    others = of_groups.select(*same, "ranks", theirs="duration")
    return (
        mine.join(others, on=same, nulls_equal=True)
        .filter(~pl.col("ranks").list.contains(pl.col("rank")))
        .group_by("same_group", "group", "rank", *same)
        .agg(pl.col("duration").first(), pl.col("theirs").median())
        .group_by("rank", *([by] if by is not None else []))
        .agg((pl.col("duration") > 2 * pl.col("theirs")).all().alias("is_slow"))
        .filter("is_slow")
    )
