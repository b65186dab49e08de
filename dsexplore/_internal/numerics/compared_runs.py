"""Compare the records of the reference with those of the ranks, tensor by tensor, in program order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from dsexplore._internal.mesh import Mesh
from dsexplore._internal.numerics.compared_values import Compared, HeldValues, compare
from dsexplore._internal.numerics.initial_weights import dtensor_indices
from dsexplore._internal.numerics.numeric_records import PHASES, DTensorPlace, NumericRecord, Phase, RunRecord, load_run
from dsexplore._internal.numerics.numerics_runs import RunKind, file_of
from dsexplore._internal.numerics.part_layouts import Holder, rms

RELATIVE = 1e-9
"""Relative difference that rounding in float64 stays below: 10^7 times its own precision."""
ABSOLUTE = 1e-12
"""Difference that rounding in float64 stays below, relative to the largest values of a phase; for values near zero."""
SPREAD = 1000.0
"""Multiple of the reference's spread under random rounding that still counts as rounding."""
PLAIN_EPS, PLAIN_SPREAD = 8.0, 10.0
"""Bounds on rounding without float64, much less certain: units in the last place of the coarsest dtype, and multiple of
the difference between the reference's own dtypes and float64."""


class Key(NamedTuple):
    """What the records of one tensor have in common: in all calls of its module in a step, and on all ranks."""

    step: int
    phase: Phase
    module: str
    name: str

    @classmethod
    def of(cls, record: NumericRecord) -> Key:
        """Return the key of a record."""
        return cls(record.step, record.phase, record.module, record.name)


@dataclass
class Comparison:
    """The tensors of a reference, each compared with those of the ranks."""

    mesh: Mesh
    entries: list[Compared]
    """Entries in program order: by step; in a step forward and backward, then gradients, then parameters."""
    ranks: list[RunRecord]
    is_exact: bool
    """True if the compared runs computed in float64."""
    draws: list[RunRecord] = field(default_factory=list)
    """Records of a run with dropout, if the program draws random numbers."""
    reference: RunRecord | None = None

    @cached_property
    def steps(self) -> list[int]:
        """Steps that were compared."""
        return sorted({entry.record.step for entry in self.entries})

    def of(self, phase: str, step: int) -> list[Compared]:
        """Return the compared entries of a phase of a step, in program order."""
        return [e for e in self.entries if e.phase == phase and e.record.step == step and e.is_compared]

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return {axis: coordinate} of a rank."""
        return coordinates_of(self.mesh, rank)


def coordinates_of(mesh: Mesh, rank: int) -> dict[str, int]:
    """Return {axis: coordinate} of a rank of the mesh."""
    return dict(zip(mesh.axes, mesh.coordinates(rank), strict=True))


def compare_runs(folder: Path, mesh: Mesh, tolerance: float | None, is_exact: bool) -> Comparison:
    """Compare the runs whose records are in a folder.

    Args:
        folder: folder of the records of all runs.
        mesh: mesh of the ranks.
        tolerance: allowed relative difference; None allows rounding.
        is_exact: whether there are runs in float64.
    """
    compared_run = RunKind.EXACT if is_exact else RunKind.PLAIN
    ranks = [load_run(file_of(folder, compared_run, rank)) for rank in range(mesh.size)]
    reference = _Run([load_run(file_of(folder, compared_run))], mesh)
    rounded = (
        _Run([load_run(file_of(folder, RunKind.ROUNDED))], mesh) if file_of(folder, RunKind.ROUNDED).exists() else None
    )
    reader = _Reader(reference, rounded, _Run(ranks, mesh), tolerance=tolerance, is_exact=is_exact)
    entries = [entry for key in reference.keys for entry in reader.compared(key)]
    if is_exact and file_of(folder, RunKind.PLAIN, 0).exists():
        plain = _Run([load_run(file_of(folder, RunKind.PLAIN, rank)) for rank in range(mesh.size)], mesh)
        _add_rounding(entries, _Run([load_run(file_of(folder, RunKind.PLAIN))], mesh), plain)
    has_draws = file_of(folder, RunKind.DRAWS, 0).exists()
    draws = [load_run(file_of(folder, RunKind.DRAWS, rank)) for rank in range(mesh.size)] if has_draws else []
    return Comparison(
        mesh=mesh, entries=entries, ranks=ranks, is_exact=is_exact, draws=draws, reference=reference.processes[0]
    )


class _Run:
    """Records of one run by key; the run of the reference has one process, that of the plan one per rank."""

    def __init__(self, processes: Sequence[RunRecord], mesh: Mesh) -> None:
        self.processes = processes
        self._mesh = mesh
        self._by_key: dict[Key, list[list[NumericRecord]]] = {}
        for number, process in enumerate(processes):
            for record in process.records:
                self._by_key.setdefault(Key.of(record), [[] for _ in processes])[number].append(record)
        for lists in self._by_key.values():
            for records in lists:
                records.sort(key=lambda record: record.call)

    @cached_property
    def keys(self) -> list[Key]:
        """Keys by step, then by phase, then in the order in which they were first recorded."""
        return sorted(self._by_key, key=lambda key: (key.step, PHASES.index(key.phase)))

    def calls(self, key: Key) -> list[list[NumericRecord]]:
        """Return the records of a key, one list per process."""
        return self._by_key.get(key, [[] for _ in self.processes])

    def value(self, number: int, record: NumericRecord) -> Tensor:
        """Return a record's value in float64; for a parameter, the change that the step made."""
        if record.phase != "optimizer":
            return record.value.double()
        before = self.processes[number].start.get(record.name)
        if record.step:
            before = self.calls(Key.of(record)._replace(step=record.step - 1))[number][0].value
        return record.value.double() - (before.double() if before is not None else 0)

    def wholes(self, key: Key, count: int) -> list[tuple[NumericRecord, Tensor]]:
        """Return the reference's calls of a key; if there are more than `count`, concatenated to `count` calls."""
        records = self.calls(key)[0]
        values = [self.value(0, record) for record in records]
        if not count or len(records) <= count or len(records) % count or not values[0].dim():
            return list(zip(records, values, strict=True))
        return [(records[at], torch.cat(values[at::count])) for at in range(count)]

    def held(
        self, key: Key, *, call: int, of: int, whole: Sequence[int], names: Sequence[str] = ()
    ) -> list[HeldValues]:
        """Return the ranks' values for one call of the reference.

        Args:
            key: key of the tensor.
            call: number of the reference's call.
            of: number of the reference's calls.
            whole: shape of the reference's tensor.
            names: other names of a tied parameter, which ranks of other stages may use.
        """
        values = []
        for number, records in enumerate(self._calls_of_any_name(key, names)):
            for turn, record in enumerate(records[call::of]):
                coordinates = {**coordinates_of(self._mesh, number), "call": turn}
                holder = Holder(number, turn, coordinates)
                values.append(self._held(holder, record, self.value(number, record), whole))
        return _summed(values)

    def _calls_of_any_name(self, key: Key, names: Sequence[str]) -> list[list[NumericRecord]]:
        """Return the records of a key per process, or of the first other name that the process has."""
        calls = list(self.calls(key))
        for name in names:
            others = self.calls(key._replace(module=name.rpartition(".")[0], name=name))
            calls = [records or other for records, other in zip(calls, others, strict=True)]
        return calls

    def _held(
        self, holder: Holder, record: NumericRecord, value: Tensor, whole: Sequence[int]
    ) -> tuple[HeldValues, DTensorPlace | None]:
        """Return the value of a holder with what is known of its place: by placements, by the rows of a plain shard,
        or, for the output of a layer that is sharded by rows, by the rows of its weight."""
        if record.place is not None:
            place = record.place
            inside = [coordinates_of(self._mesh, int(rank)) for rank in place.ranks.flatten()]
            covered = frozenset(axis for axis in self._mesh.axes if len({where[axis] for where in inside}) > 1)
            within = dtensor_indices(place, holder.rank)
            return HeldValues(holder, value, shape=place.shape, within=within, covered=covered), place
        shape = tuple(value.shape)
        within = tuple(torch.arange(size) for size in shape)
        rows = self.processes[holder.rank].rows.get(record.name)
        if rows is not None and record.phase in ("gradient", "optimizer"):
            dim, indices = rows
            fixed = tuple(indices if at == dim else position for at, position in enumerate(within))
            return HeldValues(holder, value, shape=shape, within=within, covered=frozenset(), fixed=fixed), None
        weight = f"{record.module}.weight" if record.module else "weight"
        cut, columns = self.processes[holder.rank].rows.get(weight, (1, torch.arange(0)))
        is_cut = bool(shape and len(whole)) and shape[-1] < whole[-1]
        if cut == 0 and is_cut and len(columns) == shape[-1] and record.phase in ("forward", "backward"):
            by_rank = {process.rank: process.rows[weight][1] for process in self.processes if weight in process.rows}
            size = 1 + max(int(index.max()) for index in by_rank.values())
            shape, within = (*shape[:-1], size), (*within[:-1], columns)
            covered = self._sharding_axes(by_rank)
            return HeldValues(holder, value, shape=shape, within=within, covered=covered), None
        return HeldValues(holder, value, shape=shape, within=within, covered=frozenset()), None

    def _sharding_axes(self, rows: Mapping[int, Tensor]) -> frozenset[str]:
        """Return the axes along which ranks hold different rows of a parameter."""
        places = {rank: coordinates_of(self._mesh, rank) for rank in rows}
        cut = set()
        for first, second in combinations(rows, 2):
            differing = [axis for axis in self._mesh.axes if places[first][axis] != places[second][axis]]
            if len(differing) == 1 and not torch.equal(rows[first], rows[second]):
                cut.add(differing[0])
        return frozenset(cut)


def _summed(parts: Sequence[tuple[HeldValues, DTensorPlace | None]]) -> list[HeldValues]:
    """Return the values, with Partial DTensors reduced over their ranks."""
    groups: dict[tuple[object, ...], list[HeldValues]] = {}
    partial = {}
    for held, place in parts:
        if place is None or not any(placement.kind == "partial" for placement in place.placements):
            continue
        where = (place.ranks == held.holder.rank).nonzero()[0].tolist()
        fixed = tuple(at for at, placement in zip(where, place.placements, strict=True) if placement.kind != "partial")
        key = (tuple(place.ranks.flatten().tolist()), fixed, held.holder.call)
        groups.setdefault(key, []).append(held)
        is_mean = all(p.reduce_op == "avg" for p in place.placements if p.kind == "partial")
        partial[held.holder] = key, is_mean
    result = []
    for held, _ in parts:
        if held.holder in partial:
            key, is_mean = partial[held.holder]
            total = torch.stack([part.value for part in groups[key]]).sum(0)
            value = total / len(groups[key]) if is_mean else total
            held = replace(held, value=value)
        result.append(held)
    return result


class _Reader:
    """Comparison of the tensors of each key.

    Args:
        reference: run of the reference.
        rounded: run of the reference with random rounding; None if there is none.
        ranks: run of the plan.
        tolerance: allowed relative difference; None allows rounding.
        is_exact: whether the runs are in float64.
    """

    def __init__(
        self, reference: _Run, rounded: _Run | None, ranks: _Run, *, tolerance: float | None, is_exact: bool
    ) -> None:
        self._reference, self._rounded, self._ranks = reference, rounded, ranks
        self._tolerance = tolerance
        self._is_exact = is_exact
        self._eps = max(_largest_eps(run) for run in (*reference.processes, *ranks.processes))
        self._largest: dict[tuple[int, str], float] = {}
        for key in reference.keys:
            scale = max(rms(reference.value(0, record)) for record in reference.calls(key)[0])
            self._largest[key.step, key.phase] = max(self._largest.get((key.step, key.phase), 0.0), scale)

    def compared(self, key: Key) -> list[Compared]:
        """Return the entries of a key, one per call of the reference."""
        counts = {len(records) for records in self._ranks.calls(key) if records}
        count = counts.pop() if len(counts) == 1 else 0
        wholes = self._reference.wholes(key, count)
        rounded = self._rounded.wholes(key, count) if self._rounded is not None else []
        entries = []
        for call, (record, whole) in enumerate(wholes):
            other = rounded[call][1] if call < len(rounded) else None
            allowed = self._allowed(key, whole, other)
            is_whole = bool(count) and count % len(wholes) == 0
            held = []
            if is_whole:
                names = self._tied_names(key)
                held = self._ranks.held(key, call=call, of=len(wholes), whole=whole.shape, names=names)
            if held:
                entries.append(compare(record, whole, held, allowed, scales=record.phase == "backward"))
            else:
                entries.append(Compared(record=record, whole=whole, parts=[], allowed=allowed, scale=rms(whole)))
        return entries

    def _tied_names(self, key: Key) -> tuple[str, ...]:
        """Return all names of a tied parameter; empty for another tensor."""
        tied = self._reference.processes[0].tied if key.phase in ("gradient", "optimizer") else ()
        return next((names for names in tied if key.name in names), ())

    def _allowed(self, key: Key, whole: Tensor, rounded: Tensor | None) -> float:
        """Return the largest root mean square of a difference that counts as rounding.

        Args:
            key: key of the tensor.
            whole: values of the reference.
            rounded: values of the reference with random rounding; None if there are none.
        """
        scale = rms(whole)
        if self._tolerance is not None:
            return self._tolerance * scale
        spread = rms(whole - rounded) if rounded is not None else 0.0
        largest = self._largest[key.step, key.phase]
        if self._is_exact:
            return RELATIVE * scale + SPREAD * spread + ABSOLUTE * largest
        return PLAIN_EPS * self._eps * scale + PLAIN_SPREAD * spread + self._eps**2 * largest


def _largest_eps(run: RunRecord) -> float:
    """Return the largest machine epsilon of the dtypes that a process recorded."""
    return max((torch.finfo(record.value.dtype).eps for record in run.records), default=0.0)


def _add_rounding(entries: Sequence[Compared], reference: _Run, ranks: _Run) -> None:
    """Set the differences between the program's own dtypes and float64, `Compared.rounding` and `Compared.measured`."""
    for entry in entries:
        record = entry.record
        key = Key.of(record)
        counts = {len(records) for records in ranks.calls(key) if records}
        count = counts.pop() if len(counts) == 1 else 0
        wholes = {record.call: value for record, value in reference.wholes(key, count)}
        whole = wholes.get(record.call)
        if whole is not None and whole.shape == entry.whole.shape and entry.scale:
            entry.rounding = rms(whole - entry.whole) / entry.scale
        held = []
        if wholes:
            held = ranks.held(key, call=record.call, of=len(wholes), whole=entry.whole.shape)
        values = {part.holder: part.value for part in held}
        errors = [
            rms(values[part.holder] - part.expected * part.factor)
            for part in entry.parts
            if part.holder in values and values[part.holder].shape == part.expected.shape
        ]
        if errors and len(errors) == len(entry.parts) and entry.scale:
            entry.measured = max(errors) / entry.scale / max(abs(entry.parts[0].factor), 1e-300)
