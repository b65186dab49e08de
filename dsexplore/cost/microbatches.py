"""The trace of a pipeline's step with more or fewer microbatches than were run.

Once a stage's first backward is over, each microbatch of a 1F1B schedule does what the one before it did: a backward,
its messages, a forward, its messages. Two such microbatches are compared, row by row; where all is alike but the
numbers that count on, the rows of one are repeated or left out. Where memory grows by as much in each segment of a
microbatch, as it does where outputs are kept, it goes on growing so. A stage holds a buffer for each message that it
receives in a step, from before the first one.

A microbatch is what lies between two receives of a gradient, or of an activation on the last stage, which gets no
gradient.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import polars as pl

from dsexplore.trace.tables import Tables, TraceInfo

_FIRST = 1
"""The first microbatch that others are like: the one before it gathers parameters or makes the gradients."""
_USES = ("parameters", "gradients", "optimizer", "activations", "buffers")
_COUNTERS = {
    "events": ("seq", "batch"),
    "kernels": ("before", "segment", "waits_for"),
    "memory": ("before", "segment", *_USES),
}
"""By table: the columns whose numbers go on from one microbatch to the next."""


def with_microbatches(tables: Tables, count: int) -> Tables | None:
    """The trace of the same step with another number of microbatches.

    Args:
        tables: of one rank or several; `TraceInfo.schedule` says how many microbatches they have.
        count: how many are wanted.

    Returns:
        None where the schedule is not 1F1B, where two microbatches are not alike, or where so few are wanted that
        none of those that are left would be alike.
    """
    described = json.loads(tables.info.schedule) if tables.info.schedule else {}
    if described.get("schedule") != "Schedule1F1B":
        return None
    present = int(described["microbatches"])
    if count == present:
        return tables
    parts = [_of_rank(tables, rank, present, count) for rank in tables.kernels["rank"].unique().sort()]
    if not parts or None in parts:
        return None
    found = [part for part in parts if part is not None]
    return replace(
        tables,
        events=pl.concat([part.events for part in found]),
        kernels=pl.concat([part.kernels for part in found]),
        memory=pl.concat([part.memory for part in found]),
        modules=_all_calls(tables.modules, present, count),
        info=_with_schedule(tables.info, count),
    )


@dataclass(frozen=True)
class _Frames:
    """The tables of one rank that have rows for each microbatch."""

    events: pl.DataFrame
    kernels: pl.DataFrame
    memory: pl.DataFrame


def _of_rank(tables: Tables, rank: int, present: int, count: int) -> _Frames | None:
    frames = {name: getattr(tables, name).filter(rank=rank) for name in _COUNTERS}
    bounds = _bounds(frames["events"], present)
    changed = min(count, present) - 1
    if bounds is None or changed < _FIRST + 2:
        return None
    repeated = {name: _Rows(frame, name, bounds) for name, frame in frames.items()}
    if not all(rows.is_alike() for rows in repeated.values()):
        return None
    whole = {name: rows.repeated(count - present) for name, rows in repeated.items()}
    sent = frames["events"].filter(pl.col("phase") != "start-up")
    received = sent.filter(op="recv")["message_bytes"].sum() // present
    held = pl.when(pl.col("before") >= sent["seq"].min()).then((count - present) * received).otherwise(0)
    return _Frames(whole["events"], whole["kernels"], whole["memory"].with_columns(pl.col("activations") + held))


def _bounds(events: pl.DataFrame, microbatches: int) -> list[int] | None:
    """The seq at which each microbatch begins; None where they cannot be distinguished."""
    received = events.filter(op="recv")
    for phase in ("backward", "forward"):
        found = received.filter(phase=phase)["seq"].to_list()
        if found:
            each, left = divmod(len(found), microbatches)
            return found[::each] if each and not left else None
    return None


class _Rows:
    """The rows of one table of one rank.

    Args:
        frame: all of them.
        table: its name.
        bounds: the seq at which each microbatch begins.
    """

    def __init__(self, frame: pl.DataFrame, table: str, bounds: Sequence[int]) -> None:
        self._frame, self._bounds = frame, bounds
        # What is computed stands before the event that is issued next.
        self._at = pl.col("seq") if table == "events" else pl.col("before") - 1
        self._counters = _COUNTERS[table]
        self._one, self._next = self._microbatch(_FIRST), self._microbatch(_FIRST + 1)
        self._steps = {name: self._step(name) for name in self._counters}

    def _microbatch(self, number: int) -> pl.DataFrame:
        begin, end = self._bounds[number : number + 2]
        return self._frame.filter((self._at >= begin) & (self._at < end))

    def _step(self, column: str) -> int:
        """By how much a column's numbers go on; 0 where it has none."""
        if column in ("seq", "before", "waits_for"):
            return self._bounds[_FIRST + 1] - self._bounds[_FIRST]
        one, following = (rows[column].min() for rows in (self._one, self._next))
        return following - one if isinstance(one, int) and isinstance(following, int) else 0

    def is_alike(self) -> bool:
        """Whether two microbatches have the same rows."""
        return self._moved(self._one, 1).equals(self._next)

    def _moved(self, rows: pl.DataFrame, times: int) -> pl.DataFrame:
        """The rows as they are so many microbatches later."""
        columns = [(pl.col(name) + times * step).cast(rows.schema[name]) for name, step in self._steps.items()]
        return rows.with_columns(columns)

    def repeated(self, more: int) -> pl.DataFrame:
        """All rows, with so many microbatches more, or fewer where it is negative."""
        kept = self._bounds[_FIRST + 2]
        resumed = kept if more > 0 else self._bounds[_FIRST + 2 - more]
        rest = self._frame.filter(self._at >= resumed)
        last = self._moved(rest, more)
        if "waits_for" in self._counters:  # what was issued before the alike microbatches keeps its number
            early = rest["waits_for"] < self._bounds[_FIRST]
            last = last.with_columns(waits_for=pl.when(early).then(rest["waits_for"]).otherwise("waits_for"))
        between = [self._moved(self._next, times) for times in range(1, more + 1)]
        return pl.concat([self._frame.filter(self._at < kept), *between, last])


def _all_calls(modules: pl.DataFrame, present: int, count: int) -> pl.DataFrame:
    """The modules with as many calls as all microbatches make: those that each of them calls as often."""
    calls = pl.col("calls")
    return modules.with_columns(
        calls=pl.when(calls % present == 0).then(calls // present * count).otherwise(calls).cast(pl.Int64)
    )


def _with_schedule(info: TraceInfo, count: int) -> TraceInfo:
    """The info with that number; the list of actions, which is of the number before, is left out."""
    return replace(info, schedule=json.dumps({**json.loads(info.schedule), "microbatches": count, "order": {}}))
