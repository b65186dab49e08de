"""`PlanDifference` states what a step of one trace, B, sends more or less than a step of another, A.

All numbers are means per rank and step, and per rank for start-up. So traces with different numbers of ranks and steps
can be compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import polars as pl

from dsexplore._internal.analysis.findings.finding import Findings
from dsexplore._internal.analysis.headline import Headline
from dsexplore._internal.analysis.numeric_difference import NumericDifference
from dsexplore._internal.analysis.traffic import listed, purpose_of
from dsexplore._internal.display import Result
from dsexplore._internal.trace.diff import KEYS
from dsexplore._internal.trace.numbered_modules import OUTSIDE, place_of
from dsexplore._internal.trace.schema import IN_STEPS, NO_AXIS, OUTSIDE_STEPS
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.units import format_bytes, format_change, format_count, format_seconds

SIZES = ("count", "message_bytes", "wire_bytes")
COLUMNS: dict[str, pl.DataType] = {
    **dict.fromkeys(KEYS, pl.String()),  # module (the owner), op, axis, phase
    **{f"{size}_{side}": pl.Float64() for size in SIZES for side in ("before", "after")},
}
"""Columns of `PlanDifference.to_frame`; per rank and step, for start-up per rank."""
SAME = "Both communicate the same."
_MOST_AXES = 4
_LEAST_CHANGE = 0.5
"""Bytes below which a difference of means is rounding."""
_DIGITS = 3
"""Decimals to which means are rounded, so that equal means over different ranks compare equal."""


@dataclass(frozen=True)
class DifferenceSentence:
    """One sentence about two traces."""

    about: str
    """``axes``, ``module``, ``finding``, ``time`` or ``values``."""
    text: str
    module: str = ""
    """The first of the modules that the sentence is about; empty for none."""

    def __str__(self) -> str:
        return self.text


class PlanDifference(Result):
    """The difference of two traces: bytes that B sends more or less than A, per rank and step."""

    _INTERNAL = frozenset({"sentences"})

    def __init__(self, before: Tables, after: Tables) -> None:
        self.before = Headline(before)
        self.after = Headline(after)
        self._numerics = before.numerics, after.numerics

    def __repr__(self) -> str:
        return f"<PlanDifference: {' '.join(self.lines())}>"

    def verdict(self) -> str:
        """Return how much more or less B sends than A, by axis."""
        return self.lines()[0]

    def lines(self) -> list[str]:
        """Return the verdict; then the module that changes most, findings of one trace alone, time, and values."""
        return [sentence.text for sentence in self.sentences] or [SAME]

    @cached_property
    def sentences(self) -> tuple[DifferenceSentence, ...]:
        """At most five sentences: bytes by axis, by module, findings of one trace only, times, and the first recorded
        values that differ. Each is omitted if there is no difference."""
        parts = (self._axes, self._module, self._findings, self._time, self._values)
        return tuple(sentence for part in parts for sentence in part())

    def to_frame(self, *, unchanged: bool = False) -> pl.DataFrame:
        """Return one row per module × op × axis × phase that differs; columns: `COLUMNS`.

        Args:
            unchanged: also return the rows that are equal in both.
        """
        differs = pl.any_horizontal(pl.col(f"{size}_before") != pl.col(f"{size}_after") for size in SIZES)
        return self._rows if unchanged else self._rows.filter(differs)

    @cached_property
    def _rows(self) -> pl.DataFrame:
        before, after = (_rows_per_step(side) for side in (self.before, self.after))
        joined = before.join(after, on=KEYS, how="full", coalesce=True, suffix="_after")
        numbers = [
            pl.col(name).fill_null(0.0).alias(f"{size}_{side}")
            for size in SIZES
            for side, name in (("before", size), ("after", f"{size}_after"))
        ]
        return joined.select(*KEYS, *numbers).sort(*KEYS)

    @property
    def means(self) -> str:
        """Scope over which the figures of both are averaged, in words; empty for one rank and one step of each."""
        before, after = _mean_of(self.before), _mean_of(self.after)
        last = _last_of(self.before), _last_of(self.after)
        if not before and not after and max(last) > 1:
            texts = [f"the last of {whole} steps" if whole > 1 else "one step" for whole in last]
            return texts[0] if texts[0] == texts[1] else f"A: {texts[0]}, B: {texts[1]}"
        if before == after:
            return f"means of {before}" if before else ""
        return f"means: A of {before or 'one rank and step'}, B of {after or 'one rank and step'}"

    @property
    def findings_gone(self) -> Findings:
        """Findings in A that are not in B."""
        return _remove_shared(self.before.findings, self.after.findings)

    @property
    def findings_new(self) -> Findings:
        """Findings in B that are not in A."""
        return _remove_shared(self.after.findings, self.before.findings)

    def _values(self) -> Iterator[DifferenceSentence]:
        """Yield the sentence about the first values that differ, if both traces have recorded values."""
        if all(numerics.height for numerics in self._numerics):
            yield DifferenceSentence("values", " ".join(NumericDifference(*self._numerics).lines()))

    def _axes(self) -> Iterator[DifferenceSentence]:
        """Yield the sentence about the change of bytes, in total and by axis, and of the number of collectives."""
        rows = self.to_frame()
        unknown = [
            f"; {name}: {side.unknown}" for name, side in (("A", self.before), ("B", self.after)) if side.unknown
        ]
        if rows.is_empty():
            if unknown:
                yield DifferenceSentence(
                    "axes", f"A and B send the same, not counting unknown sizes{''.join(unknown)}."
                )
            return
        in_steps = rows.filter(IN_STEPS)
        a, b = (float(side.to_frame()["wire_bytes"].sum()) for side in (self.before, self.after))
        changes = [
            (axis or NO_AXIS, size)
            for axis, size in _changes(in_steps, "axis").iter_rows()
            if abs(size) >= _LEAST_CHANGE
        ]
        text = ("not counting unknown sizes, " if unknown else "") + _compared(b - a, a, b)
        if len(changes) == 1 and abs(b - a) >= _LEAST_CHANGE:
            text += f", all on {changes[0][0]}"
        elif changes:
            text += f": {listed(f'{_amount(size)} on {axis}' for axis, size in changes[:_MOST_AXES])}"
        text += self._calls() + self._start_up() + "".join(unknown)
        text = text[0].upper() + text[1:]
        yield DifferenceSentence("axes", f"{text}{f' ({self.means})' if self.means else ''}.")

    def _calls(self) -> str:
        """Return the part of a sentence on the number of collectives of both."""
        a, b = (float(side.to_frame()["count"].sum()) for side in (self.before, self.after))
        if round(a, _DIGITS) == round(b, _DIGITS):
            return f", in {_collectives(b)} each" if b else ""
        return f", in {_collectives(b)} instead of {count_text(a)}"

    def _start_up(self) -> str:
        """Return the part of a sentence on changes outside steps, such as start-up; empty if there are none."""
        text = ""
        for what, a, b in (
            ("start-up sends", self.before.start_up_bytes, self.after.start_up_bytes),
            ("forwards without gradients send", self.before.no_grad_bytes, self.after.no_grad_bytes),
            ("what is sent between steps:", self.before.between_bytes, self.after.between_bytes),
        ):
            text += f"; {what} {_amount(b - a)} per rank" if abs(b - a) >= _LEAST_CHANGE else ""
        return text

    def _module(self) -> Iterator[DifferenceSentence]:
        """Yield the sentence about the place in the model that changes most in the direction of the whole change."""
        in_steps = self.to_frame().filter(IN_STEPS)
        placed = in_steps.with_columns(place_of(pl.col("module")).alias("place"))
        changes = [row for row in _changes(placed, "place").iter_rows() if abs(row[1]) >= _LEAST_CHANGE]
        if not changes:
            return
        net = sum(size for _, size in changes)
        place, size = next((change for change in changes if change[1] * net > 0), changes[0])
        owners = placed.filter(place=place)["module"].unique(maintain_order=True)
        many = f" (×{len(owners):,})" if len(owners) > 1 else ""
        where = place if place != OUTSIDE else "what runs outside any module"
        part = "All of it" if len(changes) == 1 else f"The largest part, {_amount(size)},"
        text = f"{part} is in {where}{many}: {listed(self._purposes(owners))}."
        yield DifferenceSentence("module", text, str(owners[0]))

    def _purposes(self, owners: pl.Series) -> list[str]:
        """Return the purposes that account for the largest changes of these modules, each with its bytes."""
        sums: dict[str, float] = {}
        for sign, side in ((-1, self.before), (1, self.after)):
            events = side.step_events.filter(pl.col("owner").is_in(owners.implode()))
            totals = events.group_by("cause", "op").agg((pl.col("wire_bytes") * pl.col("weight")).sum())
            for cause, op, size in totals.iter_rows():
                purpose = purpose_of(cause, op)
                sums[purpose] = sums.get(purpose, 0.0) + sign * size / (side.ranks * side.steps)
        ranked = sorted(sums.items(), key=lambda item: (-abs(item[1]), item[0]))
        changed = [(purpose, size) for purpose, size in ranked if abs(size) >= _LEAST_CHANGE]
        return [f"{purpose} ({_amount(size)})" for purpose, size in changed[:3]] or ["other collectives"]

    def _findings(self) -> Iterator[DifferenceSentence]:
        """Yield the sentence about findings that only one of the traces has."""
        new, gone = self.findings_new, self.findings_gone
        for only_here, alone, other in ((new, "Only in B", gone), (gone, "Only in A", new)):
            if not len(only_here):
                continue
            first, more = only_here[0], len(only_here) - 1
            spared = f", worth {format_bytes(first.spare_bytes)} on the wire" if first.spare_bytes else ""
            where = "" if first.module == OUTSIDE else f"{first.module}: "
            rest = f" ({format_count(more, 'more finding')})" if more else ""
            fewer = "1 finding of A is" if len(other) == 1 else f"{len(other):,} findings of A are"
            resolved = f"; {fewer} gone" if len(other) else ""
            events = only_here.tables.events
            module = str(events["owner"][int(first.rows[0])]) if len(first.rows) else first.module
            yield DifferenceSentence("finding", f"{alone}: {where}{first.why}{spared}{rest}{resolved}.", module)
            return

    def _time(self) -> Iterator[DifferenceSentence]:
        """Yield the sentence about the time that collectives run per step, and are exposed, if both were measured."""
        a, b = self.before.times, self.after.times
        if a is None or b is None:
            return
        text = (
            f"Collectives are under way for {format_seconds(b.under_way)} of a step in B, "
            f"{format_seconds(a.under_way)} in A"
        )
        if a.exposed or b.exposed:
            text += f"; exposed are {format_seconds(b.exposed)} in B, {format_seconds(a.exposed)} in A"
        yield DifferenceSentence("time", f"{text}.")


def plan_difference(before: Tables, after: Tables) -> PlanDifference:
    """Compare a step of `after` (B) with one of `before` (A): what is sent more or less."""
    return PlanDifference(before, after)


def _rows_per_step(side: Headline) -> pl.DataFrame:
    """Return count and bytes per module × op × axis × phase: per rank and step; per rank for `OUTSIDE_STEPS`."""
    totals = []
    outside = pl.concat([side.events_of(phase) for phase in OUTSIDE_STEPS])
    for events, share in ((side.step_events, side.ranks * side.steps), (outside, side.ranks)):
        numbers = [
            pl.col("weight").sum().alias("count"),
            *((pl.col(size) * pl.col("weight")).sum().alias(size) for size in SIZES[1:]),
        ]
        sums = events.rename({"owner": "module"}).group_by(*KEYS).agg(*numbers)
        totals.append(sums.select(*KEYS, *((pl.col(size).cast(pl.Float64) / share).round(_DIGITS) for size in SIZES)))
    return pl.concat(totals)


def _mean_of(side: Headline) -> str:
    """Return the scope of a side's means: ``"4 ranks and 2 steps"``; empty for one rank and one step."""
    counts = {"ranks": side.ranks, "steps": side.steps}
    return " and ".join(f"{count:,} {what}" for what, count in counts.items() if count > 1)


def _last_of(side: Headline) -> int:
    """Return the number of whole steps if the figures are of the last one alone; else 1."""
    return side.steady.whole if side.steps == 1 else 1


def _changes(rows: pl.DataFrame, key: str) -> pl.DataFrame:
    """Sum the change of wire bytes by a column, the largest change first."""
    change = (pl.col("wire_bytes_after") - pl.col("wire_bytes_before")).sum().alias("change")
    return rows.group_by(key).agg(change).sort(pl.col("change").abs(), key, descending=[True, False])


def _remove_shared(findings: Findings, others: Findings) -> Findings:
    """Return the findings that are not among others; those of the same rule, module and axis are equal."""
    in_others = {(finding.rule, finding.module, finding.axis) for finding in others}
    return Findings(
        findings.tables,
        [finding for finding in findings if (finding.rule, finding.module, finding.axis) not in in_others],
    )


def _compared(change: float, a: float, b: float) -> str:
    """Say how much more or less B sends.

    Example: ``B sends 40 MiB less on the wire per rank and step than A, 160 MiB instead of 200 MiB (−20 %)``.
    """
    if abs(change) < _LEAST_CHANGE:
        return f"B sends as much on the wire per rank and step as A, {format_bytes(b)}"
    return (
        f"B sends {_amount(change)} on the wire per rank and step than A, {format_bytes(b)} instead of "
        f"{format_bytes(a)}{_share(change, a)}"
    )


def _share(change: float, a: float) -> str:
    """Format a change relative to `a`: `` (−20 %)``, `` (over 99 % less)``; empty if it is tenfold or more."""
    return f" ({format_change(change / a)})" if a and abs(change) < 10 * a else ""


def _amount(change: float) -> str:
    return f"{format_bytes(abs(change))} {'more' if change > 0 else 'less'}"


def _collectives(count: float) -> str:
    text = count_text(count)
    return f"{text} collective{'s' if text != '1' else ''}"


def count_text(value: float) -> str:
    """Format a number of collectives per rank and step: an integer, or one decimal."""
    return f"{value:,.0f}" if abs(value - round(value)) < 0.01 else f"{value:,.1f}"
