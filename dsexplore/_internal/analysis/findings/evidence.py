"""`Evidence` gives rules the events of a trace, and turns the events that they flag into findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from dsexplore._internal.analysis.findings.finding import Finding
from dsexplore._internal.analysis.skew import Skew
from dsexplore._internal.trace.numbered_modules import place_of
from dsexplore._internal.trace.steps import SteadySteps, steady_steps
from dsexplore._internal.trace.tables import Tables

REDISTRIBUTE = "redistribute "
"""The beginning of the cause of a redistribute that the program asked for."""
BY_PLACE = ("place", "op", "axis", "line")
"""The columns by which flagged events are grouped into findings."""
_MOST_NAMED = 4
"""Number of values that a finding names for a column in which its events differ."""


@dataclass(frozen=True)
class EventGroup:
    """The events of one finding, which share place, op, axis and source line."""

    place: str
    axis: str
    calls: str
    """Count per rank and step, and op: ``"3 all_gathers"``."""
    largest_bytes: int
    """Wire bytes of the largest event."""
    causes: list[str]
    """The distinct causes of its events."""


def _expression(fraction: pl.Expr | float) -> pl.Expr:
    return (fraction if isinstance(fraction, pl.Expr) else pl.lit(fraction)).cast(pl.Float64)


class Evidence:
    """The tables of a trace, as rules read them.

    Args:
        tables: the trace.
        skew: the skew of the trace; None to compute it.
        steady: the steps from which figures per step are computed; None to compute them.
    """

    def __init__(self, tables: Tables, skew: Skew | None = None, steady: SteadySteps | None = None) -> None:
        self.tables = tables
        self.skew = skew or Skew(tables)
        self.steady = steady or steady_steps(tables, tables.coded_in_steps)
        self._distinct: dict[str, pl.DataFrame] = {}
        """{categorical column: its distinct codes and texts}, columns ``code`` and ``text``."""
        self._earlier: dict[tuple[str, ...], npt.NDArray[np.int32]] = {}
        """{lane: the result of `earlier`}."""

    @cached_property
    def events(self) -> pl.DataFrame:
        """Events of steady steps that send tensors, sorted by rank and program order.

        Start-up, object collectives, and collectives that the comm layer switched off are excluded. Columns are those
        of `Tables.coded_in_steps`, with ``row``, the position in the trace. `texts` tests categorical columns.
        """
        return _sent_in_order(self.steady.events)

    @cached_property
    def of_all_steps(self) -> pl.DataFrame:
        """Events of all steps that send tensors, see `events`."""
        return _sent_in_order(self.steady.of_all_steps)

    @cached_property
    def start_up(self) -> pl.DataFrame:
        """Events of start-up, which `events` excludes."""
        return _sent_in_order(self.tables.coded_start_up)

    def texts(self, column: str, test: Callable[[str], object]) -> pl.Expr:
        """Return a mask of `events` or `start_up`: True where the text in a column passes a test.

        The test is called once per distinct text.
        """
        if column not in self._distinct:
            unique = pl.concat([rows[column].unique() for rows in (self.events, self.start_up)]).unique().drop_nulls()
            self._distinct[column] = pl.DataFrame({"code": unique.to_physical(), "text": unique.cast(pl.String)})
        codes, texts = self._distinct[column]
        passing = codes.filter(pl.Series([bool(test(text)) for text in texts], dtype=pl.Boolean))
        return pl.col(column).to_physical().is_in(passing.implode())

    @property
    def steps(self) -> int:
        """Number of steady steps."""
        return self.steady.count

    @cached_property
    def of_ended_steps(self) -> pl.Expr:
        """Mask of `events`: True in steps that ended; without an end, several steps may have one number."""
        last = int(self.tables.events["step"].max() or 0)  # type: ignore[arg-type]  # an integer column
        return pl.col("step") < (self.tables.info.whole_steps or last)

    @cached_property
    def calls(self) -> dict[str, int]:
        """{module: number of its forward calls while recording}."""
        return dict(self.tables.modules.select("module", "calls").iter_rows())

    def earlier(self, lane: tuple[str, ...]) -> npt.NDArray[np.int32]:
        """Return, for each of `events`, the position of the previous event in its lane; -1 for the first one.

        Args:
            lane: columns; events with equal values in them are one lane, and other events may lie between.
        """
        if lane not in self._earlier:
            placed = self.events.select(*lane, place=pl.int_range(pl.len(), dtype=pl.Int32))
            before = placed.select(pl.col("place").shift(1).over(lane).fill_null(-1))
            self._earlier[lane] = before.to_series().to_numpy()
        return self._earlier[lane]

    def repeats(self, lane: tuple[str, ...], equal: tuple[str, ...]) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return the events that equal their predecessor in a lane, and those predecessors.

        Args:
            lane: columns that define lanes, see `earlier`.
            equal: columns in which both must be equal; columns of the trace that `events` lacks are added to the
                results.
        """
        events, earlier = self.events, self.earlier(lane)
        possible = earlier >= 0
        for name in ("message_bytes", "group_size"):  # numbers first, as most rows differ in them
            values = events[name].to_numpy()
            possible &= values == values[earlier]
        rows = np.flatnonzero(possible)
        more = [name for name in equal if name not in events.columns]
        now = self.tables.with_columns(events[rows], *more)
        before = self.tables.with_columns(events[earlier[rows]], *more)
        same = equal_rows(now, before, equal)
        return now.filter(same), before.filter(same)

    def findings(
        self,
        rule: str,
        flagged: pl.DataFrame,
        why: Callable[[EventGroup], str],
        change: Callable[[EventGroup], str],
        *,
        spare: pl.Expr | float = 0.0,
        spare_calls: pl.Expr | float | None = None,
        per_step: bool = True,
        by: tuple[str, ...] = BY_PLACE,
    ) -> Iterator[Finding]:
        """Yield one finding per place, op, axis and source line of `flagged`.

        Args:
            rule: name of the rule.
            flagged: rows of `events` or `start_up`.
            why: returns the sentence for one group of events.
            change: returns the change to try for one group of events.
            spare: the fraction of each event's wire bytes that the change would save, 0 to 1.
            spare_calls: the fraction of each call that the change would save; None for that of `spare`.
            per_step: whether counts and bytes are per rank and step; otherwise per rank.
            by: the columns to group by.
        """
        if flagged.is_empty():
            return
        spared_calls = _expression(spare if spare_calls is None else spare_calls)
        totals = (
            _add_places(flagged)
            .with_columns(spared=pl.col("wire_bytes") * _expression(spare), spared_calls=spared_calls)
            .group_by(by, maintain_order=True)
            .agg(
                *(pl.col(name).unique(maintain_order=True) for name in BY_PLACE if name not in by),
                pl.len().alias("count"),
                pl.col("message_bytes", "wire_bytes", "spared", "spared_calls").sum(),
                pl.col("wire_bytes").max().alias("each"),
                pl.col("cause").unique(maintain_order=True).alias("causes"),
                pl.col("rank").n_unique().alias("ranks"),
                pl.col("owner").unique(maintain_order=True).alias("owners"),
                pl.col("row"),
            )
        )
        coded, lists = pl.col(pl.Categorical).cast(pl.String), pl.col(pl.List(pl.Categorical))
        texts = totals.drop("row").with_columns(coded, lists.cast(pl.List(pl.String)))
        for row, events in zip(texts.iter_rows(named=True), totals["row"], strict=True):
            share = row["ranks"] * (self.steps if per_step else 1)
            yield _finding(rule, row, events, why, change, share, per="rank and step" if per_step else "rank")


def _sent_in_order(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of tensors that were sent, sorted by rank and program order."""
    off = [op for op in rows["op"].unique().cast(pl.String) if op.startswith("switched_off:")]
    if off or rows["is_object"].any():
        rows = rows.filter(~pl.col("is_object") & ~pl.col("op").is_in(off))
    order = pl.col("rank").cast(pl.Int64) * 2**40 + pl.col("seq")
    is_sorted = rows.select((order.diff().fill_null(0) >= 0).all()).item()
    return rows if is_sorted else rows.sort("rank", "seq", maintain_order=True)


def _add_places(flagged: pl.DataFrame) -> pl.DataFrame:
    """Add ``place`` and ``line``, computed once per distinct owner and source."""
    line = pl.col("text").str.split(" ← ").list.first()
    for column, name, computed in (("owner", "place", place_of(pl.col("text"))), ("source", "line", line)):
        values = flagged.select(pl.col(column).unique()).with_columns(text=pl.col(column).cast(pl.String))
        named = values.select(column, computed.cast(pl.Categorical).alias(name))
        flagged = flagged.join(named, on=column, how="left", maintain_order="left", nulls_equal=True)
    return flagged


def equal_rows(now: pl.DataFrame, before: pl.DataFrame, columns: tuple[str, ...]) -> pl.Series:
    """Return a mask of shape (rows,): True where both frames agree in `columns`; null equals null."""
    both = pl.concat(
        [now.select(columns), before.select(pl.col(name).alias(f"{name} before") for name in columns)], how="horizontal"
    )
    return both.select(
        pl.all_horizontal(pl.col(name).eq_missing(pl.col(f"{name} before")) for name in columns)
    ).to_series()


def _finding(
    rule: str,
    row: dict[str, Any],
    events: pl.Series,
    why: Callable[[EventGroup], str],
    change: Callable[[EventGroup], str],
    share: int,
    per: str,
) -> Finding:
    """Build the finding of one row of totals.

    Args:
        rule: name of the rule.
        row: totals of one group of events.
        events: positions of these events in the trace.
        why: returns the sentence for a group.
        change: returns what to try for a group.
        share: divisor of counts and bytes: the number of ranks, or of ranks times steps.
        per: unit of the result, in words.
    """
    named = {name: _named(name, row[name]) for name in BY_PLACE}
    if len(row["owners"]) == 1 and row["owners"][0]:
        named["place"] = row["owners"][0]
    count = row["count"] / share
    group = EventGroup(named["place"], named["axis"], calls(count, named["op"]), row["each"], row["causes"])
    return Finding(
        rule=rule,
        module=named["place"],
        source=named["line"],
        op=named["op"],
        axis=named["axis"],
        count=count,
        message_bytes=round(row["message_bytes"] / share),
        wire_bytes=round(row["wire_bytes"] / share),
        spare_bytes=round(row["spared"] / share),
        spare_calls=row["spared_calls"] / share,
        why=why(group),
        change=change(group),
        rows=events.cast(pl.Int64).to_numpy(),
        per=per,
    )


def _named(column: str, value: str | list[str]) -> str:
    """Return a value of `BY_PLACE`, or the first of several; lines of one file share its name: ``"model.py:3, 7"``."""
    if isinstance(value, str):
        return value
    if column != "line":
        return ", ".join(value[:_MOST_NAMED])
    of_file: dict[str, list[str]] = {}
    for line in value[:_MOST_NAMED]:
        file, _, number = line.rpartition(":")
        of_file.setdefault(file, []).append(number)
    return ", ".join(f"{file}:{', '.join(numbers)}" if file else numbers[0] for file, numbers in of_file.items())


def calls(count: float, ops: str) -> str:
    """Format a mean count with its unit: ``"27 all_reduces"``, ``"1 all_gather"``, ``"12.5 broadcasts"``."""
    number = f"{count:,.0f}" if count == round(count) else f"{count:,.1f}"
    what = f"collectives ({ops})" if "," in ops else ops if number == "1" else f"{ops}s"
    return f"{number} {what}"


def after_a_sibling(evidence: Evidence, candidates: pl.Expr) -> pl.DataFrame:
    """Return the events that repeat the previous event of a sibling module, for the same input and group.

    Example: ``q``, ``k`` and ``v`` each gather their input. Three children of one module issue equal all_gathers in a
    row, and were called with the same tensor. The second and third are returned. If a trace does not record the inputs
    of modules, nothing is returned.

    Args:
        evidence: the evidence of a trace.
        candidates: a mask of the events that may be returned.

    Returns:
        Rows of `Evidence.events`, with the common parent module as ``owner``.
    """
    if evidence.events.filter(candidates).is_empty():
        return evidence.events.clear()
    now, before = evidence.repeats(("rank", "step", "axis"), ("op", "phase", "group", "dtype", "shape", "cause"))
    have_same_input = evidence.tables.with_columns(now.select("row"), "same_input")["same_input"].fill_null(False)
    now, before = now.filter(have_same_input), before.filter(have_same_input)
    triggers = [frame["trigger"].cast(pl.String) for frame in (now, before)]
    parents = [trigger.str.replace(r"\.[^.]*$", "") for trigger in triggers]
    siblings = (parents[0] == parents[1]) & (triggers[0] != triggers[1])
    inside = triggers[0].str.contains(".", literal=True)
    return now.with_columns(owner=parents[0].cast(pl.Categorical)).filter(siblings & inside).filter(candidates)
