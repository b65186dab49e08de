"""Rows of a rank's tables, repeated: an interval of a recording that does again what the interval before it did.

Two neighboring intervals are compared, row by row. Where they are equal but for numbers that count on, and for the
number of a layer, the second one is repeated. Where memory is larger by as many bytes in each of its rows, it goes on
growing so. What was recorded is the last repetition, so that what follows refers to that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from dsexplore._internal.capture.kernels.held_storage import USES
from dsexplore._internal.torch_internals.pipelining import stages_hold_buffers
from dsexplore._internal.worlds.repeats.layer_runs import CannotSkip, LayerRuns

Frames = dict[str, pl.DataFrame]
"""The tables of one rank that have rows of what was run, by name."""
Numbers = npt.NDArray[np.int64]
"""Increments of the counters of rows, in the order of `_ADDED`."""

_ADDED = ("seq", "segment", "batch", *USES)
_COUNTERS: dict[str, dict[str, str]] = {
    "events": {"seq": "seq", "batch": "batch"},
    "kernels": {"before": "seq", "segment": "segment", "waits_for": "seq"},
    "memory": {"before": "seq", "segment": "segment", **{use: use for use in USES}},
}
"""{table: {column that counts on from one interval to the next: its counter in `_ADDED`}}."""
_NAMES = {"events": ["trigger", "owner"], "kernels": ["module"], "memory": ["module"]}
"""{table: its columns of module names}."""
_SUMS = ("count", "flops", "read_bytes", "written_bytes", "fused_bytes", "fused_count")
_KINDS = ("segment", "phase", "module", "kind", "op", "dtype", "shape", "compiled", "waits_for")
"""The columns of kernels in which two rows differ."""


class RowBoundary(NamedTuple):
    """A place between two intervals: the numbers of the event and of the segment that come next."""

    seq: int
    segment: int


def repeat(
    frames: Frames,
    cuts: Sequence[RowBoundary],
    times: Mapping[int, int],
    layers: LayerRuns | None = None,
    freed: Mapping[int, Mapping[Any, int]] | None = None,
) -> tuple[Frames, list[RowBoundary], Numbers]:
    """Repeat intervals of a recording.

    Args:
        frames: the tables: events, kernels and memory.
        cuts: in program order; interval 0 lies before the first, and interval i + 1 behind cut i.
        times: by interval that is compared with the one before it, how many repetitions are added; -2 drops the two
            intervals behind it.
        layers: whose names differ from one interval to the next; all names are equal unless given.
        freed: by interval, bytes by use that are freed from there on, and that repetitions have added.

    Returns:
        The tables with repetitions, the cuts in them, and by how much counters are larger in the end.

    Raises:
        CannotSkip: an interval differs from the one before it.
    """
    intervals = _Intervals(frames, cuts, layers)
    emissions: list[tuple[int, int, int, Numbers]] = []  # interval, number of the repetition or -1, order, added
    added, ends, dropped = np.zeros(len(_ADDED), dtype=np.int64), [], 0
    for interval in range(len(cuts) + 1):
        less = (freed or {}).get(interval, {})
        added = added - np.array([less.get(counter, 0) for counter in _ADDED])
        more, dropped = times.get(interval, 0), dropped - 1
        step = intervals.compared(interval) if interval in times else added
        for number in (*range(more), *([-1] if dropped < 0 else [])):
            emissions.append((interval, number, len(emissions), added))
            added = added + step if number >= 0 else added
        ends.append(added)
        if more < 0:
            dropped, added = -more, added + more * step
    placed = [
        RowBoundary(seq + int(end[0]), segment + int(end[1]))
        for (seq, segment), end in zip(cuts, ends[1:], strict=True)
    ]
    return intervals.emitted(emissions, ends, [interval for interval in times if times[interval]]), placed, added


class _Intervals:
    """The rows of tables, by interval."""

    def __init__(self, frames: Frames, cuts: Sequence[RowBoundary], layers: LayerRuns | None) -> None:
        self.cuts, self.layers = cuts, layers
        self.frames = {
            name: frame.with_columns(
                _interval=self._places(0, frame["seq"]) if name == "events" else self._places(1, frame["segment"]),
                _row=pl.int_range(pl.len()),
            )
            for name, frame in frames.items()
        }

    def _places(self, position: int, numbers: pl.Series) -> pl.Series:
        """Return the interval that each number lies in; `position` 0 for numbers of events, 1 for those of segments."""
        starts = np.array([cut[position] for cut in self.cuts], dtype=np.int64)
        return pl.Series(np.searchsorted(starts, numbers.fill_null(-1).to_numpy(), side="right"), dtype=pl.Int64)

    def compared(self, interval: int) -> Numbers:
        """Compare an interval with the one before it, and return by how much its counters are larger."""
        begin, middle, end = self.cuts[interval - 2 : interval + 1]
        grown = dict.fromkeys(_ADDED, 0) | {"seq": end.seq - middle.seq, "segment": end.segment - middle.segment}
        for name, frame in self.frames.items():
            earlier, later = (frame.filter(_interval=number) for number in (interval - 1, interval))
            for column in {"batch", *USES}.intersection(_COUNTERS[name]):
                least: list[Any] = [rows[column].min() or 0 for rows in (earlier, later)]
                grown[column] = least[1] - least[0]
            earlier = earlier.with_columns(_plus(frame, *column, grown) for column in _COUNTERS[name].items())
            ignored = ["_interval", "_row", *(["group_seq"] if name == "events" else [])]
            rows = [self._named(name, part, "relative").drop(ignored) for part in (earlier, later)]
            if not rows[0].equals(rows[1], null_equal=True):
                raise CannotSkip(f"{name} of two that look equal differ")
        waiting = self.frames["kernels"].filter(pl.col("_interval") > interval)["waits_for"]
        if waiting.is_between(begin.seq, middle.seq, closed="left").any():
            raise CannotSkip("what follows waits for a collective of one that is not the last")
        return np.array(list(grown.values()))

    def _named(self, table: str, rows: pl.DataFrame, method: str) -> pl.DataFrame:
        """Return the rows with the module names that this method of `LayerRuns` returns."""
        for column in _NAMES[table] if self.layers is not None else ():
            keys = rows.select(column, "phase", pl.col("^_(interval|number)$")).unique()
            names = [getattr(self.layers, method)(*key) for key in keys.rows()]
            named = keys.with_columns(pl.Series("_name", names, dtype=pl.String))
            rows = rows.join(named, on=keys.columns, how="left", maintain_order="left")
            rows = rows.with_columns(pl.col("_name").alias(column)).drop("_name")
        return rows

    def emitted(
        self, emissions: Sequence[tuple[int, int, int, Numbers]], ends: Sequence[Numbers], repeated: Collection[int]
    ) -> Frames:
        """Return the tables of these emissions; ``ends`` are, by interval, what is added to its last repetition."""
        names = ("_interval", "_number", "_order", *(f"_{counter}" for counter in _ADDED))
        rows = [(*emission[:3], *emission[3].tolist()) for emission in emissions]
        plan = pl.DataFrame(rows, schema=dict.fromkeys(names, pl.Int64), orient="row")
        result = {}
        for name, frame in self.frames.items():
            whole = frame.join(plan, on="_interval").sort("_order", "_row")
            counters = _COUNTERS[name]
            if name == "kernels":  # a repetition waits for what is as far behind it, others for the very collective
                issued = pl.Series([end[0] for end in ends])[self._places(0, whole["waits_for"])]
                whole = whole.with_columns(
                    _waits=pl.when(pl.col("_interval").is_in(repeated)).then("_seq").otherwise(issued)
                )
                counters = {**counters, "waits_for": "waits"}
            added = {counter: pl.col(f"_{counter}") for counter in counters.values()}
            whole = whole.with_columns(_plus(frame, *column, added) for column in counters.items())
            if name == "events":
                number = pl.col("group_seq")  # collectives of a group count on, whatever is repeated
                counted = number.is_not_null().cum_sum() - 1 + number.min()
                whole = whole.with_columns(pl.when(number.is_not_null()).then(counted.over("group")).alias("group_seq"))
            whole = self._named(name, whole, "renamed")
            result[name] = whole.select(frame.drop("_interval", "_row").columns)
        return result


def _plus(frame: pl.DataFrame, column: str, counter: str, added: Mapping[str, Any]) -> pl.Expr:
    total: pl.Expr = pl.col(column) + added[counter]
    return total.cast(frame.schema[column])


def join_segments(frames: Frames) -> Frames:
    """Join the segments of kernels and memory that go on with the one before them, as a column ``goes_on`` says."""
    joined = frames["memory"].select("segment", _joined=pl.col("goes_on").cum_sum())
    kernels, memory = (
        frames[name]
        .join(joined, on="segment", how="left", maintain_order="left")
        .with_columns((pl.col("segment") - pl.col("_joined")).cast(frames[name].schema["segment"]))
        .drop("_joined", "goes_on")
        for name in ("kernels", "memory")
    )
    of_kind = kernels.group_by(_KINDS, maintain_order=True)
    most = pl.sum_horizontal(USES).arg_max()
    of_segment = memory.group_by("segment", maintain_order=True)
    return {
        **frames,
        "kernels": of_kind.agg(pl.col(_SUMS).sum(), pl.exclude(_SUMS).first()).select(kernels.columns),
        "memory": of_segment.agg(pl.col(USES).get(most), pl.exclude(USES).last()).select(memory.columns),
    }


def with_buffers(memory: pl.DataFrame, events: pl.DataFrame, microbatches: int, more: int) -> pl.DataFrame:
    """Return the memory of a stage of a pipeline with so many microbatches more.

    Up to torch 2.14 a stage holds a buffer for each message that it receives, from before the first one.
    """
    if not stages_hold_buffers():
        return memory
    sent = events.filter(pl.col("phase") != "start-up")
    received = sent.filter(op="recv")["message_bytes"].sum() // microbatches
    held = pl.when(pl.col("before") >= sent["seq"].min()).then(more * received).otherwise(0)
    return memory.with_columns(pl.col("activations") + held)
