"""The module tree of a trace as arrays: who owns how many collectives and bytes, alone and with its children.

Every event is booked on its owner (the module whose parameters move, else the one that was running). Rows are
in preorder, so a subtree is the slice ``[i, ends[i])`` and each total a difference of two prefix sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import polars as pl

from dsexplore.trace import schema
from dsexplore.trace.trace import Tables
from dsexplore.views.trace.facets import Facet, facet

OUTSIDE = "(outside any module)"
"""The label of what was sent while no module ran."""

NO_AXIS = "no axis"
"""The label of groups that are no axis of a mesh."""

OTHER_AXES = "other axes"
MOST_AXES = 6
"""Axes with a column of their own; the rest share `OTHER_AXES`."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ModuleTree:
    """n modules in preorder; arrays have n rows."""

    names: list[str]
    """Fully qualified; ``""`` is what ran outside any module."""
    labels: list[str]
    """The name less the parent's."""
    types: list[str]
    parents: Ints
    """Row of the parent, −1 for a root."""
    depths: Ints
    ends: Ints
    """One past the last row of the subtree."""
    calls: Ints
    axes: list[str]
    """Axes in the events, most bytes first; `NO_AXIS` stands for none, `OTHER_AXES` for the rest of many."""
    own_counts: Ints
    """(n, phases) collectives, summed over the recorded ranks."""
    own_phase_bytes: Ints
    """(n, phases) message bytes."""
    own_axis_bytes: Ints
    """(n, axes) message bytes."""
    own_wire_bytes: Ints
    own_local_bytes: Ints
    """Parameters that one rank holds: the largest of the recorded ranks; shared ones counted once."""
    own_global_bytes: Ints

    def __len__(self) -> int:
        return len(self.names)

    def children(self, row: int) -> list[int]:
        """Rows of the direct children, in order."""
        found, at = [], row + 1
        while at < self.ends[row]:
            found.append(at)
            at = int(self.ends[at])
        return found

    def rows_of(self, owners: Facet) -> Ints:
        """The row of each event's owner."""
        return _rows({name: row for row, name in enumerate(self.names)}, owners)

    def axis_columns(self, axis: Facet) -> Ints:
        """The index into `axes` of each event's axis."""
        return _recoded(axis, self.axes)

    def columns_of(self, labels: list[str]) -> Ints:
        """The index into `axes` of each of these axes."""
        return _places(labels, self.axes)

    @property
    def roots(self) -> list[int]:
        """Rows without a parent."""
        return [int(i) for i in np.flatnonzero(self.parents < 0)]

    @cached_property
    def counts(self) -> Ints:
        """(n, phases) with children."""
        return self.with_children(self.own_counts)

    @cached_property
    def phase_bytes(self) -> Ints:
        """(n, phases) with children."""
        return self.with_children(self.own_phase_bytes)

    @cached_property
    def axis_bytes(self) -> Ints:
        """(n, axes) with children."""
        return self.with_children(self.own_axis_bytes)

    @cached_property
    def wire_bytes(self) -> Ints:
        """(n,) with children."""
        return self.with_children(self.own_wire_bytes)

    @cached_property
    def local_bytes(self) -> Ints:
        """(n,) with children."""
        return self.with_children(self.own_local_bytes)

    @cached_property
    def global_bytes(self) -> Ints:
        """(n,) with children."""
        return self.with_children(self.own_global_bytes)

    def with_children(self, own: Ints) -> Ints:
        """Values per row, (n, …), summed over each row and those inside it."""
        before = np.concatenate([np.zeros((1, *own.shape[1:]), np.int64), np.cumsum(own, axis=0)])
        total: Ints = before[self.ends] - before[:-1]
        return total


def module_tree(tables: Tables, facets: Mapping[str, Facet] | None = None) -> ModuleTree:
    """The tree of all modules that are listed, that own an event, or that hold a parameter.

    Args:
        tables: what was recorded.
        facets: the events' owner, phase and axis, where they are encoded already.
    """
    events = tables.events
    facets = facets or {name: facet(events[name]) for name in ("owner", "phase", "axis")}
    held = _held(tables.parameters)
    listed = tables.modules.unique("module", keep="first", maintain_order=True)
    names, parents, depths, ends = _preorder(_parents(listed, facets["owner"].labels, held["module"].to_list()))
    types = dict(zip(listed["module"], listed["type"], strict=True))
    calls = dict(zip(listed["module"], listed["calls"], strict=True))
    size = events["message_bytes"].to_numpy().astype(np.float64)
    axes = _axes(facets["axis"], size)
    n, phases = len(names), len(schema.PHASES)
    row_of = {name: row for row, name in enumerate(names)}
    holder = np.array([row_of[name] for name in held["module"]], np.int64)
    owner = _rows(row_of, facets["owner"])
    phase = _recoded(facets["phase"], list(schema.PHASES))
    axis = _recoded(facets["axis"], axes)
    return ModuleTree(
        names=names,
        labels=[
            _label(name, names[parent] if parent >= 0 else "") for name, parent in zip(names, parents, strict=True)
        ],
        types=[types.get(name, "") for name in names],
        parents=parents,
        depths=depths,
        ends=ends,
        calls=np.array([calls.get(name) or 0 for name in names], np.int64),
        axes=axes,
        own_counts=_sums((n, phases), owner * phases + phase),
        own_phase_bytes=_sums((n, phases), owner * phases + phase, size),
        own_axis_bytes=_sums((n, len(axes)), owner * len(axes) + axis, size),
        own_wire_bytes=_sums((n,), owner, events["wire_bytes"].to_numpy().astype(np.float64)),
        own_local_bytes=_sums((n,), holder, held["local_bytes"].to_numpy().astype(np.float64)),
        own_global_bytes=_sums((n,), holder, held["global_bytes"].to_numpy().astype(np.float64)),
    )


def _rows(row_of: Mapping[str, int], owners: Facet) -> Ints:
    return np.array([row_of[name] for name in owners.labels], np.int64)[owners.codes]


def _recoded(facet_: Facet, columns: list[str]) -> Ints:
    """The column of each event's label."""
    return _places(facet_.labels, columns)[facet_.codes]


def _places(labels: list[str], columns: list[str]) -> Ints:
    """The column of each label; labels without one share the last."""
    place = {name: i for i, name in enumerate(columns)}
    return np.array([place.get(label or NO_AXIS, len(columns) - 1) for label in labels], np.int64)


def _held(parameters: pl.DataFrame) -> pl.DataFrame:
    return (
        parameters.filter(pl.col("shared_with") == "")
        .group_by("module", "rank", maintain_order=True)
        .agg(pl.col("local_bytes").sum(), pl.col("global_bytes").sum())
        .group_by("module", maintain_order=True)
        .agg(pl.col("local_bytes").max(), pl.col("global_bytes").max())
    )


def _axes(axis: Facet, size: npt.NDArray[np.float64]) -> list[str]:
    totals = np.bincount(axis.codes, size, minlength=len(axis.labels))
    ranked = sorted(range(len(axis.labels)), key=lambda i: (-totals[i], axis.labels[i]))
    names = [axis.labels[i] or NO_AXIS for i in ranked]
    return names if len(names) <= MOST_AXES else [*names[: MOST_AXES - 1], OTHER_AXES]


def _parents(listed: pl.DataFrame, *more: list[str]) -> dict[str, str | None]:
    """Name → parent's name, None for a root; names that no table lists go below their nearest listed prefix."""
    known = set(listed["module"])
    parents: dict[str, str | None] = {
        name: (parent if parent in known and parent != name else None)
        for name, parent in zip(listed["module"], listed["parent"], strict=True)
    }
    for name in sorted({name for names in more for name in names} - known):
        prefix = name.rpartition(".")[0]
        while prefix and prefix not in parents:
            prefix = prefix.rpartition(".")[0]
        parents[name] = prefix or None
    return parents


def _preorder(parents: dict[str, str | None]) -> tuple[list[str], Ints, Ints, Ints]:
    children: dict[str | None, list[str]] = {}
    for name, parent in parents.items():
        children.setdefault(parent, []).append(name)
    names: list[str] = []
    rows: list[int] = []
    depths: list[int] = []
    roots = children.get(None, [])
    pending = [(name, -1, 0) for name in reversed([*(r for r in roots if r), *(r for r in roots if not r)])]
    while pending:
        name, parent_row, depth = pending.pop()
        row = len(names)
        names.append(name)
        rows.append(parent_row)
        depths.append(depth)
        pending.extend((child, row, depth + 1) for child in reversed(children.get(name, ())))
    ends = np.arange(1, len(names) + 1, dtype=np.int64)
    for row in range(len(names) - 1, -1, -1):
        if rows[row] >= 0:
            ends[rows[row]] = max(ends[rows[row]], ends[row])
    return names, np.array(rows, np.int64), np.array(depths, np.int64), ends


def _label(name: str, parent: str) -> str:
    if not name:
        return OUTSIDE
    return name.removeprefix(f"{parent}.") if parent else name


def _sums(shape: tuple[int, ...], at: Ints, values: npt.NDArray[np.float64] | None = None) -> Ints:
    """Values (or ones) summed by place; sums of bytes are exact below 2**53."""
    length = int(np.prod(shape))
    total: Ints = np.bincount(at, values, minlength=length)[:length].astype(np.int64).reshape(shape)
    return total
