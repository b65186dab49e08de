"""The trace of a step with all layers of a model, from one in which some alike layers were left out.

What passes through the layers of a stretch, a forward or a backward, is a run; it has a period for each layer that was
performed. Two periods are compared, row by row; where all is alike but the layer's number and the numbers that count
on, the second one is repeated for each layer that was left out. Where memory grows by as much from row to row of these
two, it goes on growing so, until the gradients that were given to the layers left out are counted.

Worked example: of layers 0 to 9 those numbered 0, 1, 2 and 9 were performed, at positions 0 to 3. In forward the period
of position 2 is alike that of position 1, and comes seven times: for layers 2 to 8. In backward the period of position
1 is alike that of position 2, which is layer 8 now, and comes seven times too: for layers 7 to 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from dsexplore.capture.held_storage import USES
from dsexplore.cost.fewer_layers import LeftOutLayers, Mark
from dsexplore.trace.tables import Tables
from dsexplore.worlds.simulated.alike_layers import FIRST, LAST

_NAMES = {"events": ("trigger", "owner"), "kernels": ("module",), "memory": ("module",)}
"""By table: the columns that hold names of modules."""
_COUNTERS = {
    "events": ("seq", "batch"),
    "kernels": ("before", "segment", "waits_for"),
    "memory": ("before", "segment", *USES),
}
_SUMS = ("count", "flops", "read_bytes", "written_bytes", "fused_bytes", "fused_count")


class _UnlikePeriods(Exception):
    """Two layers that look alike do not compute or send the same."""


def with_layers(tables: Tables, left_out: LeftOutLayers) -> Tables | None:
    """The tables of the same step with all layers.

    Args:
        tables: of one rank.
        left_out: what its step left out.

    Returns:
        None where layers turn out not to be alike.
    """
    try:
        return _Extension(tables, left_out).tables()
    except _UnlikePeriods:
        return None


@dataclass(frozen=True)
class _Run:
    """The marks of one way through all layers that were performed.

    Attributes:
        first: the number of its first mark.
        step: by how much the position grows from mark to mark: 1 or −1.
        layers: how many its stretch has.
    """

    first: int
    step: int
    layers: int

    @property
    def positions(self) -> int:
        """How many layers were performed."""
        return FIRST + LAST

    @property
    def earlier(self) -> int:
        """The interval of the first of the two alike periods, which is what follows its mark."""
        place = 1 if self.step > 0 else self.positions - FIRST
        return self.first + place + 1

    @property
    def repeated(self) -> int:
        """The interval of the second one, which is repeated for each layer that was left out."""
        return self.earlier + 1

    @property
    def repeats(self) -> int:
        """How many layers were left out."""
        return self.layers - self.positions


@dataclass
class _Emitted:
    """One occurrence of an interval in the whole step.

    Attributes:
        at: the interval: 0 stands before the first mark, i + 1 after mark i.
        seq: added to numbers of events.
        segment: added to segments.
        batch: added to numbers of coalesced calls.
        shift: added to positions of layers; None where the names stand as they are.
        memory: added to bytes, by use.
        is_copy: whether it stands for a layer that was left out.
    """

    at: int
    seq: int
    segment: int
    batch: int
    shift: int | None
    memory: tuple[int, ...]
    is_copy: bool = False


@dataclass
class _Bounds:
    """Where the intervals between marks begin, in the counts of each table."""

    segments: list[int] = field(default_factory=list)
    events: list[int] = field(default_factory=list)


class _Extension:
    """Makes the tables of a whole step; see `with_layers`."""

    def __init__(self, tables: Tables, left_out: LeftOutLayers) -> None:
        self.performed, self.marks, self.names = tables, left_out.marks, left_out.names
        before = dict(tables.memory.select("segment", "before").iter_rows())
        self.bounds = _Bounds([mark.segment for mark in self.marks], [before[mark.segment - 1] for mark in self.marks])
        self.frames = {name: self._prepared(name) for name in _NAMES}
        self.runs = {run.repeated: run for run in _runs(self.marks, self.names)}
        self._check_names()
        self.emitted = self._emit()

    def tables(self) -> Tables:
        """The tables of all layers."""
        events = self._repeated("events").with_columns(_moved("seq", "_seq"), _moved("batch", "_batch"))
        kernels = self._waits(self._repeated("kernels"))
        memory = self._repeated("memory").with_columns(_moved(use, f"_{use}") for use in USES)
        parts = [
            part.with_columns(_moved("before", "_seq"), _moved("segment", "_segment")) for part in (kernels, memory)
        ]
        cuts = np.array([self.bounds.segments[one.at - 1] + one.segment for one in self.emitted if one.at > 0])
        whole = {"events": events, "kernels": _joined_kernels(parts[0], cuts), "memory": _joined_memory(parts[1], cuts)}
        events, kernels, memory = (self._named(name, frame) for name, frame in whole.items())
        return replace(self.performed, events=events, kernels=kernels, memory=memory, modules=self._modules())

    def _prepared(self, name: str) -> pl.DataFrame:
        """A table with more columns: ``_at``, the interval between marks in which each row lies (`_Emitted.at`), and
        for each column of module names the parts of each name, see `_position`."""
        frame: pl.DataFrame = getattr(self.performed, name)
        starts, column = (self.bounds.events, "seq") if name == "events" else (self.bounds.segments, "segment")
        at = np.searchsorted(np.array(starts), frame[column].to_numpy(), side="right")
        frame = frame.with_columns(pl.Series("_at", at, dtype=pl.Int64), pl.int_range(pl.len()).alias("_row"))
        for text in _NAMES[name]:
            known = {one: self._position(one) for one in frame[text].unique()}
            taken = pl.col(text).replace_strict(
                list(known), list(known.values()), return_dtype=pl.List(pl.String), default=None
            )
            frame = frame.with_columns(taken.alias(f"_{text}"))
        return frame

    def _position(self, name: str) -> list[str] | None:
        """Stretch, position and the rest of the name of a module inside a layer that was performed."""
        for number, names in enumerate(self.names):
            for index, layer in enumerate(names):
                if name == layer or name.startswith(layer + "."):
                    if FIRST <= index < len(names) - LAST:
                        return [str(number), "", ""]
                    position = index if index < FIRST else index - (len(names) - FIRST - LAST)
                    return [str(number), str(position), name[len(layer) :]]
        return None

    def _check_names(self) -> None:
        """No layer that was left out may compute or send, but in the optimizer; nor may those that were performed
        outside of a run, as it would be unknown what the others do there."""
        inside = {at for run in self.runs.values() for at in range(run.first, run.first + run.positions + 1)}
        for name, texts in _NAMES.items():
            frame = self.frames[name].filter(~pl.col("phase").is_in(["optimizer", "start-up"]))
            for text in texts:
                named = frame.filter(pl.col(f"_{text}").is_not_null())
                if not named.filter(pl.col(f"_{text}").list.get(1) == "").is_empty():
                    raise _UnlikePeriods
                if not set(named["_at"].unique()) <= inside:
                    raise _UnlikePeriods

    def _emit(self) -> list[_Emitted]:
        """The intervals of the whole step, in order."""
        emitted: list[_Emitted] = []
        seq = segment = batch = 0
        memory = np.zeros(len(USES), dtype=np.int64)
        for at in range(len(self.marks) + 1):
            if at and self.marks[at - 1].stretch < 0:
                given = self.marks[at - 1].given
                memory = memory - np.array([given.get(use, 0) for use in USES])
            run = self.runs.get(at)
            if run is not None:
                batches, grows = self._compared(run)
                bounds = self.bounds
                steps = bounds.events[at] - bounds.events[at - 1], bounds.segments[at] - bounds.segments[at - 1]
                for number in range(run.repeats):
                    shift = number if run.step > 0 else run.repeats - number
                    emitted.append(_Emitted(at, seq, segment, batch, shift, tuple(memory), is_copy=True))
                    seq, segment, batch, memory = seq + steps[0], segment + steps[1], batch + batches, memory + grows
            emitted.append(_Emitted(at, seq, segment, batch, self._shift(at), tuple(memory)))
        if memory.any():
            raise _UnlikePeriods
        return emitted

    def _shift(self, at: int) -> int | None:
        """The shift of positions in an interval that is no copy."""
        for second, run in self.runs.items():
            if run.first < at < run.first + run.positions:
                is_late = at >= second
                return run.repeats if is_late == (run.step > 0) else 0
        return None

    def _compared(self, run: _Run) -> tuple[int, npt.NDArray[np.int64]]:
        """Compare two periods.

        Returns:
            how many coalesced calls a period has, and by how many bytes memory grows, by use.
        """
        one, other = run.earlier, run.repeated
        grows = np.zeros(len(USES), dtype=np.int64)
        batches = 0
        for name in _NAMES:
            left, right = (self.frames[name].filter(pl.col("_at") == at) for at in (one, other))
            counters = _COUNTERS[name]
            if not _same(left, right, name, run.step):
                raise _UnlikePeriods
            if left.is_empty():
                continue
            if name == "memory":
                differences = right.select(USES).to_numpy() - left.select(USES).to_numpy()
                if (differences != differences[0]).any():
                    raise _UnlikePeriods
                grows = differences[0]
            for counter in set(counters) - {"waits_for", *USES}:
                relative = [part[counter] - part[counter].min() for part in (left, right)]
                if not relative[0].equals(relative[1], null_equal=True):
                    raise _UnlikePeriods
            if name == "events" and left["batch"].null_count() < left.height:
                batches = right["batch"].drop_nulls()[0] - left["batch"].drop_nulls()[0]
            if name == "kernels":
                self._compare_waits(left["waits_for"], right["waits_for"], one)
        return batches, grows

    def _compare_waits(self, left: pl.Series, right: pl.Series, one: int) -> None:
        """Both wait for collectives as far behind themselves; nothing later waits for one of the first period."""
        length = self.bounds.events[one] - self.bounds.events[one - 1]
        if not (left + length).equals(right, null_equal=True):
            raise _UnlikePeriods
        begin, end = self.bounds.events[one - 1], self.bounds.events[one]
        later = self.frames["kernels"].filter(pl.col("_at") > one + 1)["waits_for"]
        if ((later >= begin) & (later < end)).any():
            raise _UnlikePeriods

    def _repeated(self, name: str) -> pl.DataFrame:
        """The rows of a table as often as they come, with what is added to their numbers."""
        rows = [
            (one.at, order, one.seq, one.segment, one.batch, one.shift, one.is_copy, *one.memory)
            for order, one in enumerate(self.emitted)
        ]
        columns = ("_at", "_order", "_seq", "_segment", "_batch", "_shift", "_copy", *(f"_{use}" for use in USES))
        kinds = {name: pl.Boolean if name == "_copy" else pl.Int64 for name in columns}
        plan = pl.DataFrame(rows, schema=kinds, orient="row")
        return self.frames[name].join(plan, on="_at", how="inner").sort("_order", "_row")

    def _waits(self, kernels: pl.DataFrame) -> pl.DataFrame:
        """The kernels with the collectives that they wait for: in repeated periods as far behind as in the first, else
        the very one."""
        main = {one.at: one.seq for one in self.emitted if not one.is_copy}
        waits = kernels["waits_for"].fill_null(-1).to_numpy()
        where = np.searchsorted(np.array(self.bounds.events), waits, side="right")
        own = np.array([main[at] for at in range(len(self.marks) + 1)])[where]
        in_period = kernels["_at"].is_in(list(self.runs)).to_numpy()
        moved = waits + np.where(in_period, kernels["_seq"].to_numpy(), own)
        return kernels.with_columns(
            pl.when(pl.col("waits_for").is_not_null()).then(pl.Series(moved)).otherwise(None).alias("waits_for")
        )

    def _named(self, name: str, frame: pl.DataFrame) -> pl.DataFrame:
        """The rows with whole names again, and the table's own columns."""
        original: pl.DataFrame = getattr(self.performed, name)
        for text in _NAMES[name]:
            taken = pl.col(f"_{text}")
            keys = frame.select(taken, pl.col("_shift")).unique()
            known = {
                (*parts, shift): self._name(parts, shift)
                for parts, shift in keys.iter_rows()
                if parts and shift is not None
            }
            if not known:
                continue
            renamed = [
                known.get((*parts, shift), own) if parts and shift is not None else own
                for parts, shift, own in frame.select(taken, "_shift", text).iter_rows()
            ]
            frame = frame.with_columns(pl.Series(text, renamed, dtype=pl.String))
        return frame.select(pl.col(column).cast(kind) for column, kind in original.schema.items())

    def _name(self, parts: Sequence[str], shift: int) -> str:
        stretch, position, rest = parts
        return self.names[int(stretch)][int(position) + shift] + rest

    def _modules(self) -> pl.DataFrame:
        """The table of modules; a layer that was left out has as many calls as one that was performed."""
        calls = dict(self.performed.modules.select("module", "calls").iter_rows())
        for names in self.names:
            for left_out in names[FIRST : len(names) - LAST]:
                for module in [one for one in calls if one == left_out or one.startswith(left_out + ".")]:
                    calls[module] = calls.get(names[FIRST - 1] + module[len(left_out) :], 0)
        counted = pl.col("module").replace_strict(list(calls), list(calls.values()), return_dtype=pl.Int64)
        return self.performed.modules.with_columns(counted.alias("calls"))


def _moved(column: str, by: str) -> pl.Expr:
    return (pl.col(column) + pl.col(by)).alias(column)


def _runs(marks: Sequence[Mark], names: Sequence[Sequence[str]]) -> list[_Run]:
    """The runs among marks, each of which meets all positions one after another."""
    found = []
    number = 0
    while number < len(marks):
        mark = marks[number]
        if mark.stretch < 0:
            number += 1
            continue
        step = -1 if mark.way == "backward" else 1
        positions = range(FIRST + LAST)[::step]
        here = [(one.stretch, one.way, one.position) for one in marks[number : number + len(positions)]]
        if here != [(mark.stretch, mark.way, position) for position in positions]:
            raise _UnlikePeriods
        found.append(_Run(number, step, len(names[mark.stretch])))
        number += len(positions)
    return found


def _same(left: pl.DataFrame, right: pl.DataFrame, table: str, step: int) -> bool:
    """Whether the rows of two periods are alike, but for counters and for the number of the layer."""
    if left.height != right.height:
        return False
    named = _NAMES[table]
    ignored = {*_COUNTERS[table], *named, *(f"_{text}" for text in named), "_at", "_row"}
    plain = [column for column in left.columns if column not in ignored]
    if not left.select(plain).equals(right.select(plain), null_equal=True):
        return False
    for text in named:
        for one, other, parts, others in zip(left[text], right[text], left[f"_{text}"], right[f"_{text}"], strict=True):
            if parts is None or others is None:
                if one != other or (parts is None) != (others is None):
                    return False
            elif (parts[0], int(parts[1]) + step, parts[2]) != (others[0], int(others[1]), others[2]):
                return False
    return True


def _joined_kernels(frame: pl.DataFrame, cuts: npt.NDArray[np.int64]) -> pl.DataFrame:
    """The rows of segments that a mark divided, joined."""
    frame = frame.with_columns(_whole_segments(frame, cuts))
    keys = ("_merged", "phase", "module", "_module", "_shift", "kind", "op", "dtype", "shape", "compiled", "waits_for")
    rest = [column for column in frame.columns if column not in {*keys, *_SUMS}]
    return (
        frame.group_by(keys, maintain_order=True)
        .agg(*(pl.col(name).sum() for name in _SUMS), *(pl.col(name).first() for name in rest))
        .with_columns(segment="_merged")
    )


def _joined_memory(frame: pl.DataFrame, cuts: npt.NDArray[np.int64]) -> pl.DataFrame:
    """One row per whole segment: the bytes of the part that has most, the place of the last part."""
    frame = frame.with_columns(_whole_segments(frame, cuts), _total=pl.sum_horizontal(USES))
    top = pl.col("_total").arg_max()
    rest = [column for column in frame.columns if column not in {"_merged", *USES}]
    return (
        frame.group_by("_merged", maintain_order=True)
        .agg(*(pl.col(use).get(top) for use in USES), *(pl.col(name).last() for name in rest))
        .with_columns(segment="_merged")
    )


def _whole_segments(frame: pl.DataFrame, cuts: npt.NDArray[np.int64]) -> pl.Series:
    segments = frame["segment"].to_numpy()
    return pl.Series("_merged", segments - np.searchsorted(np.sort(cuts), segments, side="right"))
