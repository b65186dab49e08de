"""The trace of a pipeline's step with more or fewer microbatches than were run.

A stage of a 1F1B schedule begins with forwards (the warm-up), goes on with pairs of a backward and a forward, and ends
with as many backwards as it began with forwards. But for the first ones, each microbatch of one of the three does what
the one before it did, with its messages. Two such microbatches are compared, row by row; where all is alike but the
numbers that count on, the rows of one are repeated or left out. Where memory grows or shrinks by as much in each
segment of a microbatch, as it does in the warm-up, it goes on doing so. A stage holds a buffer for each message that it
receives in a step, from before the first one.

A microbatch is what lies between two receives; in the warm-up of the first stage, which receives nothing there, what
lies between two sends.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

import polars as pl

from dsexplore.cost.fewer_microbatches import WARM_UP
from dsexplore.trace.tables import Tables, TraceInfo

_ALIKE = 1
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
    present = _microbatches(tables)
    if present is None or count == present:
        return tables if present else None
    return _with_parts(tables, present, count, (_pairs,))


def with_warm_up(tables: Tables, more: int) -> Tables | None:
    """The trace of the same step with a longer warm-up, as of a stage that has more stages behind it.

    Args:
        tables: of one rank, whose warm-up has `WARM_UP` forwards where any are wanted besides.
        more: forwards of the warm-up that are wanted besides, and backwards of the end.

    Returns:
        None where the schedule is not 1F1B, or where two microbatches are not alike.
    """
    present = _microbatches(tables)
    if present is None or not more:
        return tables if present else None
    return _with_parts(tables, present, present + more, (_warm_up, _end))


def _microbatches(tables: Tables) -> int | None:
    """How many microbatches a 1F1B schedule has; None of any other."""
    described = json.loads(tables.info.schedule) if tables.info.schedule else {}
    return int(described["microbatches"]) if described.get("schedule") == "Schedule1F1B" else None


_Part = Callable[[pl.DataFrame, int], list[int]]
"""Returns for the events of a rank and its number of microbatches where the alike microbatches of a part of the step
begin, and the one behind them."""


def _with_parts(tables: Tables, present: int, count: int, parts: Sequence[_Part]) -> Tables | None:
    """The trace with so many microbatches, of which each part has as many more or fewer."""
    ranks = [_of_rank(tables, rank, present, count, parts) for rank in tables.kernels["rank"].unique().sort()]
    if not ranks or None in ranks:
        return None
    found = [frames for frames in ranks if frames is not None]
    return replace(
        tables,
        events=pl.concat([frames["events"] for frames in found]),
        kernels=pl.concat([frames["kernels"] for frames in found]),
        memory=pl.concat([frames["memory"] for frames in found]),
        modules=_all_calls(tables.modules, present, count),
        info=_with_schedule(tables.info, count),
    )


def _of_rank(
    tables: Tables, rank: int, present: int, count: int, parts: Sequence[_Part]
) -> dict[str, pl.DataFrame] | None:
    """The tables of one rank that have rows for each microbatch, by name; None where these are not alike."""
    frames = {name: getattr(tables, name).filter(rank=rank) for name in _COUNTERS}
    events, more = frames["events"], count - present
    for part in reversed(parts):  # what lies before a part stays where it is
        begins = part(events, present)
        if len(begins) < 3 + max(0, -more):
            return None
        repeated = {name: _Rows(frame, name, begins) for name, frame in frames.items()}
        if not all(rows.is_alike() for rows in repeated.values()):
            return None
        frames = {name: rows.repeated(more) for name, rows in repeated.items()}
    sent = events.filter(pl.col("phase") != "start-up")
    received = sent.filter(op="recv")["message_bytes"].sum() // present
    held = pl.when(pl.col("before") >= sent["seq"].min()).then(more * received).otherwise(0)
    return {**frames, "memory": frames["memory"].with_columns(pl.col("activations") + held)}


def _pairs(events: pl.DataFrame, microbatches: int) -> list[int]:
    """The seq at which each pair that others are like begins; the last stage receives no gradients."""
    gradients = _begins(events, "recv", "backward", microbatches)
    return (gradients or _begins(events, "recv", "forward", microbatches))[_ALIKE:]


def _warm_up(events: pl.DataFrame, microbatches: int) -> list[int]:
    """The seq at which each forward of the warm-up that others are like begins."""
    received = _begins(events, "recv", "forward", microbatches)
    return received[_ALIKE:WARM_UP] or _begins(events, "send", "forward", microbatches)[: WARM_UP - _ALIKE]


def _end(events: pl.DataFrame, microbatches: int) -> list[int]:
    """The seq at which each backward of the end that others are like begins, and the last one."""
    return _begins(events, "recv", "backward", microbatches)[1 - WARM_UP :]


def _begins(events: pl.DataFrame, op: str, phase: str, microbatches: int) -> list[int]:
    """The seq of the first message of each microbatch; empty where they cannot be distinguished."""
    found = events.filter(op=op, phase=phase)["seq"].to_list()
    each, left = divmod(len(found), microbatches)
    return found[::each] if each and not left else []


class _Rows:
    """The rows of one table of one rank.

    Args:
        frame: all of them.
        table: its name.
        begins: the seq at which each of three or more microbatches begins, of which the first two are alike.
    """

    def __init__(self, frame: pl.DataFrame, table: str, begins: Sequence[int]) -> None:
        self._frame, self._begins = frame, begins
        # What is computed stands before the event that is issued next.
        self._at = pl.col("seq") if table == "events" else pl.col("before") - 1
        self._counters = _COUNTERS[table]
        self._one, self._next = self._microbatch(0), self._microbatch(1)
        self._steps = {name: self._step(name) for name in self._counters}

    def _microbatch(self, number: int) -> pl.DataFrame:
        begin, end = self._begins[number : number + 2]
        return self._frame.filter((self._at >= begin) & (self._at < end))

    def _step(self, column: str) -> int:
        """By how much a column's numbers go on; 0 where it has none."""
        if column in ("seq", "before", "waits_for"):
            return self._begins[1] - self._begins[0]
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
        kept = self._begins[2]
        resumed = kept if more > 0 else self._begins[2 - more]
        rest = self._frame.filter(self._at >= resumed)
        last = self._moved(rest, more)
        if "waits_for" in self._counters:  # what was issued before the alike microbatches keeps its number
            early = rest["waits_for"] < self._begins[0]
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
