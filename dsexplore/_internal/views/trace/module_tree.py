"""The module tree of a trace as arrays.

Rows are in preorder, so the subtree of row i is the slice ``[i, ends[i])``, and a sum over it is the difference of two
prefix sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from dsexplore._internal.trace.numbered_modules import OUTSIDE
from dsexplore._internal.trace.schema import IN_STEPS, NO_AXIS
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.views.trace.facets import Facet

OTHER_AXES = "other axes"
MOST_AXES = 6
"""Number of axes with their own column; further ones share `OTHER_AXES`."""

Ints = npt.NDArray[np.int64]
Number = TypeVar("Number", np.int64, np.float64)


@dataclass(frozen=True)
class ModuleTree:
    """The n modules of a trace in preorder; lists and arrays have n entries."""

    names: list[str]
    """Fully qualified names; ``""`` stands for what ran outside any module."""
    labels: list[str]
    """Names without the parent's name."""
    types: list[str]
    parents: Ints
    """Row of the parent, −1 for a root."""
    ends: Ints
    """Index after the last row of the subtree."""
    calls: Ints
    """Number of recorded calls."""
    axes: list[str]
    """Axes of the events, most wire bytes in steps first; see `NO_AXIS` and `OTHER_AXES`."""
    own_local_bytes: Ints
    """Bytes of the module's own parameters on one rank, the maximum over recorded ranks; shared ones count once."""
    own_global_bytes: Ints
    """Bytes of the module's own parameters on all ranks together; shared ones count once."""

    def __len__(self) -> int:
        return len(self.names)

    def children(self, row: int) -> list[int]:
        """Return the rows of the direct children, in order."""
        rows, at = [], row + 1
        while at < self.ends[row]:
            rows.append(at)
            at = int(self.ends[at])
        return rows

    @cached_property
    def row_of(self) -> dict[str, int]:
        """{fully qualified name: row}."""
        return {name: row for row, name in enumerate(self.names)}

    def columns_of(self, labels: list[str]) -> Ints:
        """Return the index into `axes` of each label; axes without their own entry share the last."""
        index = {name: i for i, name in enumerate(self.axes)}
        return np.array([index.get(label or NO_AXIS, len(self.axes) - 1) for label in labels], np.int64)

    @property
    def roots(self) -> list[int]:
        """Rows without a parent."""
        return [int(i) for i in np.flatnonzero(self.parents < 0)]

    @cached_property
    def local_bytes(self) -> Ints:
        """(n,) `own_local_bytes` summed over each module and those inside it."""
        return self.with_children(self.own_local_bytes)

    @cached_property
    def global_bytes(self) -> Ints:
        """(n,) `own_global_bytes` summed over each module and those inside it."""
        return self.with_children(self.own_global_bytes)

    def with_children(self, values: npt.NDArray[Number]) -> npt.NDArray[Number]:
        """Return values per module, of shape (…, n), summed over each module and those inside it."""
        before = np.zeros((*values.shape[:-1], len(self) + 1), values.dtype)
        np.cumsum(values, axis=-1, out=before[..., 1:])
        total: npt.NDArray[Number] = before.take(self.ends, axis=-1) - before[..., :-1]
        return total


def module_tree(tables: Tables, facets: Mapping[str, Facet]) -> ModuleTree:
    """Build the tree of all modules that are recorded, that own an event, or that hold a parameter."""
    held = _held(tables.parameters)
    listed = tables.modules.unique("module", keep="first", maintain_order=True)
    names, parents, ends = _preorder(_parents(listed, facets["owner"].labels, held["module"].to_list()))
    types = dict(zip(listed["module"], listed["type"], strict=True))
    calls = dict(zip(listed["module"], listed["calls"], strict=True))
    row_of = {name: row for row, name in enumerate(names)}
    local_bytes, global_bytes = np.zeros((2, len(names)), np.int64)
    holders = [row_of[name] for name in held["module"]]
    local_bytes[holders], global_bytes[holders] = held["local_bytes"], held["global_bytes"]
    return ModuleTree(
        names=names,
        labels=[
            _label(name, names[parent] if parent >= 0 else "") for name, parent in zip(names, parents, strict=True)
        ],
        types=[types.get(name, "") for name in names],
        parents=parents,
        ends=ends,
        calls=np.array([calls.get(name) or 0 for name in names], np.int64),
        axes=_axes(facets["axis"], _in_steps(tables)),
        own_local_bytes=local_bytes,
        own_global_bytes=global_bytes,
    )


def _held(parameters: pl.DataFrame) -> pl.DataFrame:
    """Return bytes of each module's own parameters on the rank that holds most.

    Columns: module, local_bytes, global_bytes.
    """
    return (
        parameters.filter(pl.col("shared_with") == "")
        .group_by("module", "rank", maintain_order=True)
        .agg(pl.col("local_bytes").sum(), pl.col("global_bytes").sum())
        .group_by("module", maintain_order=True)
        .agg(pl.col("local_bytes").max(), pl.col("global_bytes").max())
    )


def _axes(axis: Facet, size: npt.NDArray[np.float64]) -> list[str]:
    """Return the axes, most bytes first, with `NO_AXIS` and `OTHER_AXES`; see `ModuleTree.axes`."""
    totals = np.bincount(axis.codes, size, minlength=len(axis.labels))
    ranked = sorted(range(len(axis.labels)), key=lambda i: (-totals[i], axis.labels[i]))
    names = [axis.labels[i] or NO_AXIS for i in ranked]
    return drawn_axes(names)


def drawn_axes(names: Sequence[str]) -> list[str]:
    """Return the axes that are drawn separately, given all in order of importance; the last may be `OTHER_AXES`."""
    return list(names) if len(names) <= MOST_AXES else [*names[: MOST_AXES - 1], OTHER_AXES]


def _in_steps(tables: Tables) -> npt.NDArray[np.float64]:
    """Return (events,) wire bytes, with 0 for events outside steps."""
    sizes = pl.when(IN_STEPS).then(pl.col("wire_bytes")).otherwise(0)
    return tables.events.select(sizes).to_series().to_numpy().astype(np.float64)


def _parents(listed: pl.DataFrame, *more: list[str]) -> dict[str, str | None]:
    """Return {name: parent's name, None for a root}; unlisted names go below their nearest listed prefix."""
    modules = set(listed["module"])
    parents: dict[str, str | None] = {
        name: (parent if parent in modules and parent != name else None)
        for name, parent in zip(listed["module"], listed["parent"], strict=True)
    }
    for name in sorted({name for names in more for name in names} - modules):
        prefix = name.rpartition(".")[0]
        while prefix and prefix not in parents:
            prefix = prefix.rpartition(".")[0]
        parents[name] = prefix or None
    return parents


def _preorder(parents: dict[str, str | None]) -> tuple[list[str], Ints, Ints]:
    """Return the names in preorder, the row of each parent, and the end of each subtree.

    The row for everything outside modules is last.
    """
    children: dict[str | None, list[str]] = {}
    for name, parent in parents.items():
        children.setdefault(parent, []).append(name)
    names: list[str] = []
    rows: list[int] = []
    roots = sorted(children.get(None, []), key=lambda root: not root)
    pending = [(name, -1) for name in reversed(roots)]
    while pending:
        name, parent_row = pending.pop()
        row = len(names)
        names.append(name)
        rows.append(parent_row)
        pending.extend((child, row) for child in reversed(children.get(name, ())))
    ends = np.arange(1, len(names) + 1, dtype=np.int64)
    for row in range(len(names) - 1, -1, -1):
        if rows[row] >= 0:
            ends[rows[row]] = max(ends[rows[row]], ends[row])
    return names, np.array(rows, np.int64), ends


def _label(name: str, parent: str) -> str:
    """Return a name without its parent's name."""
    if not name:
        return OUTSIDE
    return name.removeprefix(f"{parent}.") if parent else name
