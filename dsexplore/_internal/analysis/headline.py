"""`Headline` summarizes a trace in a few sentences, each with the events and the module that it is about."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import polars as pl

from dsexplore._internal.analysis.findings.all_rules import findings
from dsexplore._internal.analysis.findings.finding import Findings
from dsexplore._internal.analysis.io_waits import io_sentence
from dsexplore._internal.analysis.skew import Skew
from dsexplore._internal.analysis.traffic import (
    StepTimes,
    listed,
    purposes_of,
    source_line_of,
    step_times,
    traffic_by_axis,
    weighed,
    wire_text,
)
from dsexplore._internal.analysis.uneven_sends import most_sent, uneven_sends
from dsexplore._internal.display import Result
from dsexplore._internal.trace.ends import ENDED_EARLY
from dsexplore._internal.trace.numbered_modules import OUTSIDE, place_of
from dsexplore._internal.trace.schema import IN_STEPS, NO_AXIS, OUTSIDE_STEPS, Phase
from dsexplore._internal.trace.steps import IN_A_STEP, SteadySteps, steady_steps
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.trace.unknown_sizes import known_sum, what_is_unknown
from dsexplore._internal.units import format_bytes, format_count, format_share

_WITHOUT_STEPS: dict[Phase, str] = {
    "start-up": "start-up sends {}",
    "no-grad forward": "forwards without gradients send {}",
    "between steps": "between steps {} are sent",
}
_BESIDE_STEPS: dict[Phase, str] = {
    "start-up": "; start-up sent {} before it",
    "no-grad forward": "; forwards without gradients sent {} besides",
    "between steps": "; between steps {} were sent",
}
NOTHING = "Nothing is sent: the program called no collective."
_MOST_AXES = 4  # that are named
_MOST_STEPS = 3  # that are named if they differ from steady ones
_UNEVEN = 1.25
"""The multiple of the mean from which a rank is named to which uneven all_to_alls send more."""


@dataclass(frozen=True)
class Sentence:
    """One sentence of a headline, and the events that it is about."""

    about: str
    """``stopped``, ``skew``, ``axes``, ``experts``, ``module``, ``finding``, ``time`` or ``io``."""
    text: str
    rows: npt.NDArray[np.int64] = field(repr=False, compare=False)
    """The events that the sentence is about, as positions in `Trace.events`."""
    module: str = ""
    """The first of the modules that the sentence is about; empty for none."""

    def __str__(self) -> str:
        return self.text


class Headline(Result):
    """A summary of what a step sends, in words and by axis."""

    _INTERNAL = frozenset({"events_of", "sentences", "skew", "steady", "step_events", "tables", "times"})

    def __init__(self, tables: Tables) -> None:
        self.tables = tables

    def __repr__(self) -> str:
        return f"<Headline: {' '.join(self.lines())}>"

    def verdict(self) -> str:
        """Return who is late or where the recording stopped; if neither, what a step sends over each axis."""
        return self.lines()[0]

    def lines(self) -> list[str]:
        """Return the verdict; then the largest sender, the largest finding, exposed time, and waits for the disk."""
        return [sentence.text for sentence in self.sentences] or [NOTHING]

    @cached_property
    def sentences(self) -> tuple[Sentence, ...]:
        """At most eight, each with its events: where the recording stopped, late ranks, experts with uneven traffic,
        axes, modules, findings, exposed time, and time blocked on disk and input."""
        events = self.tables.events
        if events.is_empty():
            return tuple(self._io())
        finding = tuple(self._finding())  # first, as it needs most memory, before there is what the others keep
        parts = (self._stopped, self._late, self._experts, self._axes, self._module)
        said = (sentence for part in parts for sentence in part())
        return (*said, *finding, *filter(None, [self.time]), *self._io())

    @cached_property
    def skew(self) -> Skew:
        """Late ranks of the trace's collectives."""
        return Skew(self.tables)

    @cached_property
    def findings(self) -> Findings:
        """Findings of the rules in the trace."""
        return findings(self.tables, self.skew, self.steady)

    @cached_property
    def ranks(self) -> int:
        """Number of ranks that sent something, including those that recorded ranks represent."""
        weights = self.tables.info.weights
        ranks = self.tables.events.select(pl.col("rank").unique()).to_series()
        return max(sum(weights.get(rank, 1) for rank in ranks), 1)

    @cached_property
    def _coded(self) -> pl.DataFrame:
        """Events of steady steps with ``weight``, as narrow as `Tables.coded_in_steps`."""
        return self._weighed(self.steady.events)

    @cached_property
    def steps(self) -> int:
        """Number of steady steps."""
        return self.steady.count

    @cached_property
    def steady(self) -> SteadySteps:
        """Steps from which the figures per step are computed."""
        return steady_steps(self.tables, self.tables.coded_in_steps)

    @cached_property
    def start_up_bytes(self) -> float:
        """Wire bytes per rank that were sent before the first step."""
        return self._bytes_of("start-up")

    @cached_property
    def no_grad_bytes(self) -> float:
        """Wire bytes per rank that forwards without gradients sent, in all steps together."""
        return self._bytes_of("no-grad forward")

    @cached_property
    def between_bytes(self) -> float:
        """Wire bytes per rank between steps: state dicts, whole parameters, and what followed the last step once."""
        return self._bytes_of("between steps")

    def events_of(self, phase: Phase) -> pl.DataFrame:
        """Return the events of a phase, with ``weight`` as in `step_events`."""
        return self._weighed(self.tables.events.filter(pl.col("phase") == phase))

    @cached_property
    def _events_outside_steps(self) -> dict[Phase, pl.DataFrame]:
        """{phase outside steps: wire bytes by rank and step, with ``weight``; null in a row of its own for unknown}."""
        unknown = pl.col("wire_bytes").is_null()
        sums = (
            self.tables.events.lazy()
            .filter(~IN_STEPS)
            .group_by("phase", "rank", "step", unknown=unknown)
            .agg(known_sum(pl.col("wire_bytes")).alias("wire_bytes"))
            .collect(engine="streaming")
        )
        return {phase: self._weighed(sums.filter(pl.col("phase") == phase)) for phase in OUTSIDE_STEPS}

    def _bytes_of(self, phase: Phase) -> float:
        return float(self._events_outside_steps[phase].select(weighed("wire_bytes")).item()) / self.ranks

    def to_frame(self) -> pl.DataFrame:
        """Return the bytes that a rank sends per step, one row per axis, most wire bytes first.

        Columns: `traffic.COLUMNS`.
        """
        return self._rows_by_axis

    @cached_property
    def _rows_by_axis(self) -> pl.DataFrame:
        recorded = max(self.tables.events.select(pl.col("rank").n_unique()).item(), 1)
        return traffic_by_axis(self._coded, self._timed, self.ranks * self.steps, recorded * self.steps)

    def trace(self, index: int) -> Trace:
        """Return the events that one of `lines` is about, as a `Trace`."""
        return Trace(replace(self.tables, events=self.tables.events[self.sentences[index].rows.tolist()]))

    @cached_property
    def step_events(self) -> pl.DataFrame:
        """Events of steady steps, with ``row``, the position in the trace's events, and ``weight``.

        The weight is the number of ranks that the event's rank represents: 1 if a trace has each rank once.
        """
        of_steps = self._coded.select("row", "step", "weight")
        return self.tables.events[of_steps["row"]].with_columns(of_steps)

    @cached_property
    def _timed(self) -> pl.DataFrame:
        """Times of the collectives of steady steps; null if they were not measured."""
        placed = self._coded.select("row", "rank", "step", "axis")
        return self.tables.with_columns(placed, "start", "end", "is_async", "waited")

    def _weighed(self, events: pl.DataFrame) -> pl.DataFrame:
        """Add ``weight``, the number of ranks that an event's rank represents."""
        weight = pl.lit(1, pl.Int64)
        if self.tables.info.stands_for:
            weights = dict(self.tables.info.weights)
            weight = pl.col("rank").replace_strict(weights, default=1, return_dtype=pl.Int64)
        return events.with_columns(weight.alias("weight"))

    @cached_property
    def stopped_with(self) -> str:
        """Name of the exception that ended the recording; empty if its block completed."""
        notes = (note for note in self.tables.info.notes if note.startswith(ENDED_EARLY))
        return next(notes, "").removeprefix(ENDED_EARLY)

    def _stopped(self) -> Iterator[Sentence]:
        """Yield the sentence about the exception that ended the recording."""
        if not self.stopped_with:
            return
        last = self.tables.events.tail(1)
        step, op, phase, source = last.select("step", "op", "phase", "source").row(0)
        line = str(source).partition(" ← ")[0]
        ended = self.tables.info.whole_steps
        where = f"in step {step}" if step >= ended else f"after step {step}"
        text = (
            f"The recording stopped with {self.stopped_with} {where}: its last collective was {op} in phase {phase}"
            f"{f' ({line})' if line else ''}, and {format_count(ended, 'step')} had ended."
        )
        yield Sentence("stopped", text, np.array([self.tables.events.height - 1]))

    def _late(self) -> Iterator[Sentence]:
        """Yield the sentence about late ranks."""
        if self.skew.late_ranks:
            rows = np.unique(np.concatenate([late.rows for late in self.skew.late_ranks]))
            yield Sentence("skew", self.skew.verdict(), rows)

    def _axes(self) -> Iterator[Sentence]:
        """Yield the sentence about the bytes of a step by axis, and about start-up."""
        if not len(self._coded):
            clauses = self._outside_steps(_WITHOUT_STEPS, lambda events: not events.is_empty())
            text = f"{listed(clauses)}; no step was recorded."
            yield Sentence("axes", text[0].upper() + text[1:], np.arange(self.tables.events.height))
            return
        frame, rows = self.to_frame(), _positions(self._coded)
        total = float(frame["wire_bytes"].sum())
        has_steps = self.steps > 1 or bool(self._coded["phase"].is_in(IN_A_STEP).any())
        what = "A step" if has_steps else "The program"
        if self.stopped_with:
            what = "A whole step" if self.tables.info.whole_steps else "Until then the program"
        before = self._more + "".join(self._outside_steps(_BESIDE_STEPS, _sends))
        unknown = self.unknown
        parts = [(axis or NO_AXIS, size) for axis, size in frame.select("axis", "wire_bytes").iter_rows() if size]
        if not parts and unknown:
            yield Sentence("axes", f"What {what.lower()} sends is not known: {unknown}{before}.", rows)
            return
        if unknown:
            before = f"; {unknown}{before}"
        if not parts:
            got = float(self._coded.filter(pl.col("op") == "recv").select(weighed("message_bytes")).item())
            received = f", and receives {format_bytes(got / self.ranks / self.steps)} in messages" if got else ""
            yield Sentence("axes", f"{what} puts nothing on the wire{received}{before}.", rows)
            return
        shown = [f"{format_bytes(size)} on {axis}" for axis, size in parts[:_MOST_AXES]]
        if len(parts) > _MOST_AXES:
            others = [size for _, size in parts[_MOST_AXES:]]
            shown.append(f"{format_bytes(sum(others))} on {len(others)} more")
        all_on = f"on {parts[0][0]}" if frame["axis"][0] else "in groups outside a mesh"
        by_axis = f", all {all_on}" if len(parts) == 1 else f": {listed(shown)}"
        least = "at least " if unknown else ""
        yield Sentence(
            "axes",
            f"{what} sends {least}{format_bytes(total)} on the wire per rank{self._spread()}{by_axis}{before}.",
            rows,
        )

    @cached_property
    def unknown(self) -> str:
        """What is not known of the wire bytes of a step; empty if all is known."""
        unknown = self._coded.filter(pl.col("wire_bytes").is_null())["row"]
        return what_is_unknown(self.tables.events[unknown], self._coded.height)

    def _outside_steps(self, clauses: dict[Phase, str], is_said: Callable[[pl.DataFrame], bool]) -> list[str]:
        """Return a clause per phase outside of steps on what it sends, for phases whose events pass `is_said`."""
        outside = self._events_outside_steps
        return [text.format(self._per_rank(phase)) for phase, text in clauses.items() if is_said(outside[phase])]

    def _per_rank(self, phase: Phase) -> str:
        """Return the bytes of a phase outside of steps: ``8 MiB per rank``.

        Of forwards without gradients ``8 MiB per rank and step``, if several steps have some, and all steps have.
        """
        events = self._events_outside_steps[phase]
        steps = events["step"].unique()
        if phase == "no-grad forward" and len(steps) > 1 and set(self._coded["step"].unique()) == set(steps):
            return f"{wire_text(events, self.ranks * len(steps))} per rank and step"
        return f"{wire_text(events, self.ranks)} per rank"

    def _spread(self) -> str:
        """Say what the figures are means over and how far ranks and steps differ; empty for one rank and one step."""
        over = [f"{self.ranks:,} ranks"] if self.ranks > 1 else []
        over += [f"{self.steps:,} steps"] if self.steps > 1 and not self.steady.are_equal else []
        which = f"{self.steps:,} steady steps, equal" if self.steady.are_equal else ""
        which = f"the last of {self.steady.whole} steps" if self.steps < self.steady.whole == 2 else which
        if not over:
            return f" ({which})" if which else ""
        of_steps = self._coded.lazy().group_by("rank", "step").agg(pl.col("wire_bytes").sum())
        sent = of_steps.collect(engine="streaming")["wire_bytes"].to_list()
        least, most = min(sent, default=0), max(sent, default=0)
        range_ = f", {format_bytes(least)} to {format_bytes(most)}" if most > 1.01 * least else ""
        return f" (mean of {' and '.join(over)}{range_}{f'; {which}' if which else ''})"

    @property
    def _more(self) -> str:
        """Differences of other steps from steady ones: ``; step 0 sent 2 MiB more``."""
        more = {step: size / self.ranks for step, size in self.steady.more.items() if size}
        if not more:
            return ""
        if len(more) > _MOST_STEPS:
            largest = max(more, key=lambda step: abs(more[step]))
            return f"; {len(more):,} other steps differ, step {largest} most, by {format_bytes(abs(more[largest]))}"
        parts = [
            f"step {step} sent {format_bytes(abs(size))} {'more' if size > 0 else 'less'}"
            for step, size in more.items()
        ]
        return f"; {listed(parts)}"

    def _experts(self) -> Iterator[Sentence]:
        """Yield the sentence about the rank that uneven all_to_alls send most, if that is far more than to others."""
        most = most_sent(uneven_sends(self.tables))
        if most is not None and most.times >= _UNEVEN:
            yield Sentence("experts", f"{most}.", np.flatnonzero(self.tables.events["send_splits"].is_not_null()))

    def _module(self) -> Iterator[Sentence]:
        """Yield the sentence about the place in the model that sends most, and why."""
        owners = self._coded.group_by("owner", maintain_order=True).agg(weighed("wire_bytes"))
        placed = owners.with_columns(place_of(pl.col("owner").cast(pl.String)).alias("place"))
        sums = placed.group_by("place").agg(pl.col("wire_bytes").sum(), pl.len().alias("modules"))
        total = int(sums["wire_bytes"].sum())
        if not total:
            return
        place, size, modules = sums.sort("wire_bytes", "place", descending=[True, False]).row(0)
        its_owners = placed.filter(place=place)["owner"]
        events = self._coded.filter(pl.col("owner").is_in(its_owners.implode()))
        many = f" (×{modules:,})" if modules > 1 else ""
        where = place if place != OUTSIDE else f"what runs outside any module ({source_line_of(events)})"
        part = f"{format_bytes(size / self.ranks / self.steps)} ({format_share(size, total)})"
        if size == total:
            sent = f"All {'that is known of it' if self.unknown else 'of it'} is for {where}{many}"
        elif 2 * size > total:
            sent = f"Most, {part}, is for {where}{many}"
        else:
            sent = f"Largest sender: {where}{many} with {part}"
        first = str(events["owner"][0])
        text = f"{sent}: {listed(purposes_of(events, size))}."
        yield Sentence("module", text, _positions(events), first)

    def _finding(self) -> Iterator[Sentence]:
        """Yield the sentence about the finding that would save most, and the number of others, late ranks excluded."""
        others = [finding for finding in self.findings if finding.rule != "late_rank"]
        if not others:
            return
        first, more = others[0], len(others) - 1
        spared = f", worth {format_bytes(first.spare_bytes)} on the wire" if first.spare_bytes else ""
        rest = f" ({format_count(more, 'more finding')})" if more else ""
        where = "" if first.module == OUTSIDE else f"{first.module}: "
        module = str(self.tables.events["owner"][int(first.rows[0])]) if len(first.rows) else first.module
        yield Sentence("finding", f"{where}{first.why}{spared}{rest}.", first.rows, module)

    @cached_property
    def _timed_events(self) -> pl.DataFrame:
        """Start and end of the collectives in steps that have a measured duration."""
        has_duration = self._timed.select((pl.col("end") > pl.col("start")).fill_null(False)).to_series()
        return self._timed if has_duration.all() else self._timed.filter(has_duration)

    @cached_property
    def times(self) -> StepTimes | None:
        """Time that collectives run per step, mean over ranks and steps; None if nothing was measured."""
        return step_times(self._timed_events, self.steps)

    @property
    def time(self) -> Sentence | None:
        """Sentence about the time that collectives run per step, and how much of it is exposed."""
        if self.times is None:
            return None
        is_async = bool(self._timed_events["is_async"].all())
        return Sentence("time", self.times.sentence(is_async=is_async), _positions(self._timed_events))

    def _io(self) -> Iterator[Sentence]:
        """Yield the sentence about the time that the program blocks on disk and input."""
        if said := io_sentence(self.tables):
            yield Sentence("io", said, np.arange(0))


def _sends(events: pl.DataFrame) -> bool:
    """Return True if any event sends bytes, or may."""
    return bool((events["wire_bytes"].fill_null(1) > 0).any())


def _positions(events: pl.DataFrame) -> npt.NDArray[np.int64]:
    """Return the positions of events in the trace, from their column ``row``."""
    return events["row"].cast(pl.Int64).to_numpy()
