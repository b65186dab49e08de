"""Repeat intervals of a recording: rows of the tables for layers and microbatches that were skipped.

An interval is compared, row by row, with the one before it. They may differ in counters, such as ``seq``, in the number
of a layer, and by a constant number of bytes in memory. Then the second one can be repeated: counters and memory go on
growing by the same difference. The recorded rows become the last repetition, which the following rows refer to.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from dsexplore._internal.capture.kernels.fused_tensors import USES
from dsexplore._internal.torch_internals.pipelining import stages_hold_buffers
from dsexplore._internal.worlds.repeats.layer_runs import CannotSkip, LayerRuns

Frames = dict[str, pl.DataFrame]
"""The tables of one rank that have rows for each interval: events, kernels and memory, by name."""
Increments = Mapping[str, int]
"""{counter: how much larger it is}."""

_COUNTERS = ("seq", "segment", "batch", *USES)
_COUNTING_COLUMNS: dict[str, dict[str, str]] = {
    "events": {"seq": "seq", "batch": "batch"},
    "kernels": {"before": "seq", "segment": "segment", "waits_for": "seq"},
    "memory": {"before": "seq", "segment": "segment", **{use: use for use in USES}},
}
"""{table: {column that counts on from one interval to the next: its counter}}."""
_MODULE_COLUMNS = {"events": ["trigger", "owner"], "kernels": ["module"], "memory": ["module"]}
"""{table: its columns of module names}."""
_SUMMED = ("count", "flops", "read_bytes", "written_bytes", "fused_bytes", "fused_count")
"""The columns of kernels that are summed where segments are joined."""
_KEYS = ("segment", "phase", "module", "kind", "op", "dtype", "shape", "compiled", "waits_for")
"""The columns that identify a row of kernels."""


class RowBoundary(NamedTuple):
    """A place between two intervals: the numbers of the event and of the segment that come next."""

    seq: int
    segment: int


class RepeatedRows(NamedTuple):
    """Tables with repeated intervals."""

    frames: Frames
    cuts: list[RowBoundary]
    """The cuts of the recording, with the numbers that they have in these tables."""
    grown: Increments
    """How much larger counters are at the end."""


class _Copy(NamedTuple):
    """One copy of an interval's rows in the tables."""

    interval: int
    repetition: int
    """Number of the repetition; -1 is the last one, the rows that were recorded."""
    added: Increments
    """What is added to the counters of its rows."""


def repeat(
    frames: Frames,
    cuts: Sequence[RowBoundary],
    times: Mapping[int, int],
    layers: LayerRuns | None = None,
    freed: Mapping[int, Mapping[Any, int]] | None = None,
) -> RepeatedRows:
    """Repeat intervals of a recording.

    Args:
        frames: the tables: events, kernels and memory.
        cuts: the places between intervals, in program order; interval i begins at cut i - 1.
        times: {interval that is compared with the one before it: number of repetitions to add}; a negative number
            drops as many of the intervals after it.
        layers: the names of layers, which may differ between two intervals; None if all names must be equal.
        freed: {interval: {use: bytes}} that repetitions have added, and that are freed when the interval begins.

    Raises:
        CannotSkip: an interval differs from the one before it.
    """
    intervals = _Intervals(frames, cuts, layers)
    copies: list[_Copy] = []
    last_added: list[Increments] = []  # by interval, of the rows that were recorded
    added: Increments = dict.fromkeys(_COUNTERS, 0)
    to_drop = 0
    for interval in range(len(cuts) + 1):
        added = _plus(added, (freed or {}).get(interval, {}), times=-1)
        repetitions = times.get(interval, 0)
        growth = intervals.growth(interval) if interval in times else {}
        for repetition in range(repetitions):
            copies.append(_Copy(interval, repetition, added))
            added = _plus(added, growth)
        if to_drop > 0:
            to_drop -= 1
        else:
            copies.append(_Copy(interval, -1, added))
        last_added.append(added)
        if repetitions < 0:
            to_drop, added = -repetitions, _plus(added, growth, times=repetitions)
    placed = [
        RowBoundary(seq + last["seq"], segment + last["segment"])
        for (seq, segment), last in zip(cuts, last_added[1:], strict=True)
    ]
    repeated = [interval for interval in times if times[interval]]
    return RepeatedRows(intervals.copied(copies, last_added, repeated), placed, added)


def _plus(added: Increments, more: Increments, times: int = 1) -> Increments:
    """Return the increments plus so many times others, of which some may be missing."""
    return {counter: added[counter] + times * more.get(counter, 0) for counter in _COUNTERS}


class _Intervals:
    """The rows of tables, by interval."""

    def __init__(self, frames: Frames, cuts: Sequence[RowBoundary], layers: LayerRuns | None) -> None:
        self._cuts, self._layers = cuts, layers
        self._first_events = np.array([cut.seq for cut in cuts], dtype=np.int64)
        first_segments = np.array([cut.segment for cut in cuts], dtype=np.int64)
        self._frames: Frames = {}
        for table, frame in frames.items():
            if table == "events":
                interval = _intervals_of(frame["seq"], self._first_events)
            else:
                interval = _intervals_of(frame["segment"], first_segments)
            self._frames[table] = frame.with_columns(_interval=interval, _row=pl.int_range(pl.len()))

    def growth(self, interval: int) -> dict[str, int]:
        """Compare an interval with the one before it, and return how much larger its counters are.

        Raises:
            CannotSkip: the two differ, or a later row depends on the first one.
        """
        begin, middle, end = self._cuts[interval - 2 : interval + 1]
        growth = dict.fromkeys(_COUNTERS, 0) | {"seq": end.seq - middle.seq, "segment": end.segment - middle.segment}
        for table, frame in self._frames.items():
            earlier, later = frame.filter(_interval=interval - 1), frame.filter(_interval=interval)
            for column in {"batch", *USES}.intersection(_COUNTING_COLUMNS[table]):
                least: list[Any] = [rows[column].min() or 0 for rows in (earlier, later)]
                growth[column] = least[1] - least[0]
            earlier = earlier.with_columns(
                _increased(frame, column, growth[counter]) for column, counter in _COUNTING_COLUMNS[table].items()
            )
            ignored = ["_interval", "_row", *(["group_seq"] if table == "events" else [])]
            relative_name = None if self._layers is None else self._layers.relative_name
            earlier, later = (_with_names(table, rows, relative_name).drop(ignored) for rows in (earlier, later))
            if not earlier.equals(later, null_equal=True):
                raise CannotSkip(f"{table} of two that look equal differ")
        waited_for = self._frames["kernels"].filter(pl.col("_interval") > interval)["waits_for"]
        if waited_for.is_between(begin.seq, middle.seq, closed="left").any():
            raise CannotSkip("what follows waits for a collective of one that is not the last")
        return growth

    def copied(self, copies: Sequence[_Copy], last_added: Sequence[Increments], repeated: Collection[int]) -> Frames:
        """Return the tables that these copies make.

        Args:
            copies: the copies of intervals, in program order.
            last_added: by interval, what is added to the counters of its recorded rows.
            repeated: the intervals that are repeated.
        """
        columns = ("_interval", "_repetition", "_order", *(f"_{counter}" for counter in _COUNTERS))
        rows = [(copy.interval, copy.repetition, order, *copy.added.values()) for order, copy in enumerate(copies)]
        plan = pl.DataFrame(rows, schema=dict.fromkeys(columns, pl.Int64), orient="row")
        result = {}
        for table, frame in self._frames.items():
            whole = frame.join(plan, on="_interval").sort("_order", "_row")
            added = {column: f"_{counter}" for column, counter in _COUNTING_COLUMNS[table].items()}
            if table == "kernels":
                # A repetition waits for a collective as far back as the recorded rows do; others for the very same one.
                of_collective = pl.Series([last["seq"] for last in last_added])
                recorded = of_collective[_intervals_of(whole["waits_for"], self._first_events)]
                is_repeated = pl.col("_interval").is_in(repeated)
                whole = whole.with_columns(_waits_for=pl.when(is_repeated).then("_seq").otherwise(recorded))
                added["waits_for"] = "_waits_for"
            whole = whole.with_columns(_increased(frame, column, pl.col(by)) for column, by in added.items())
            if table == "events":
                number = pl.col("group_seq")  # counts the collectives of a group, repeated or not
                counted = number.is_not_null().cum_sum() - 1 + number.min()
                whole = whole.with_columns(pl.when(number.is_not_null()).then(counted.over("group")).alias("group_seq"))
            whole = _with_names(table, whole, None if self._layers is None else self._layers.repeated_name)
            result[table] = whole.select(frame.drop("_interval", "_row").columns)
        return result


def _intervals_of(numbers: pl.Series, starts: np.ndarray[Any, Any]) -> pl.Series:
    """Return the interval that each number of an event or segment lies in; interval 0 for null.

    Args:
        numbers: the numbers.
        starts: the numbers that intervals 1 and up begin with.
    """
    return pl.Series(np.searchsorted(starts, numbers.fill_null(-1).to_numpy(), side="right"), dtype=pl.Int64)


def _with_names(table: str, rows: pl.DataFrame, rename: Callable[..., str] | None) -> pl.DataFrame:
    """Return the rows with other module names.

    Args:
        table: name of the table.
        rows: its rows, with a column ``_interval`` and, if they are copies, ``_repetition``.
        rename: called with a name, its phase and these columns; None keeps the names.
    """
    if rename is None:
        return rows
    for column in _MODULE_COLUMNS[table]:
        keys = rows.select(column, "phase", pl.col("^_(interval|repetition)$")).unique()
        names = keys.with_columns(pl.Series("_name", [rename(*key) for key in keys.rows()], dtype=pl.String))
        rows = rows.join(names, on=keys.columns, how="left", maintain_order="left")
        rows = rows.with_columns(pl.col("_name").alias(column)).drop("_name")
    return rows


def _increased(frame: pl.DataFrame, column: str, by: int | pl.Expr) -> pl.Expr:
    """Return the column plus a number, in the dtype that it has in the frame."""
    return (pl.col(column) + by).cast(frame.schema[column])


def join_segments(frames: Frames) -> Frames:
    """Join each segment of kernels and memory that has True in the column ``goes_on`` with the one before it."""
    joined = frames["memory"].select("segment", _joined=pl.col("goes_on").cum_sum())
    kernels, memory = (
        frames[name]
        .join(joined, on="segment", how="left", maintain_order="left")
        .with_columns((pl.col("segment") - pl.col("_joined")).cast(frames[name].schema["segment"]))
        .drop("_joined", "goes_on")
        for name in ("kernels", "memory")
    )
    same_kernels = kernels.group_by(_KEYS, maintain_order=True)
    kernels = same_kernels.agg(pl.col(_SUMMED).sum(), pl.exclude(_SUMMED).first()).select(kernels.columns)
    same_segment = memory.group_by("segment", maintain_order=True)
    peak = pl.sum_horizontal(USES).arg_max()
    memory = same_segment.agg(pl.col(USES).get(peak), pl.exclude(USES).last()).select(memory.columns)
    return {**frames, "kernels": kernels, "memory": memory}


def with_buffers(memory: pl.DataFrame, events: pl.DataFrame, microbatches: int, more: int) -> pl.DataFrame:
    """Add the receive buffers of further microbatches to the memory of a pipeline stage.

    Up to torch 2.14 a stage holds a buffer for each message that it receives, from before the first one.

    Args:
        memory: the table of memory.
        events: the table of events.
        microbatches: number of microbatches in these tables.
        more: number of further microbatches.
    """
    if not stages_hold_buffers():
        return memory
    sent = events.filter(pl.col("phase") != "start-up")
    received = sent.filter(op="recv")["message_bytes"].sum() // microbatches
    held = pl.when(pl.col("before") >= sent["seq"].min()).then(more * received).otherwise(0)
    return memory.with_columns(pl.col("activations") + held)
