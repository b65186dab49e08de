"""A trace's events as small integers, so that a filter over a million of them takes milliseconds.

Every facet is a column of codes and the labels they stand for; a filter is a conjunction of comparisons, and
the tree's columns are `numpy.bincount` over what is left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from dsexplore.trace import schema
from dsexplore.trace.model import Tables
from dsexplore.views.fold import Folding
from dsexplore.views.module_tree import NO_AXIS, OTHER_AXES, ModuleTree, module_tree

FACETS = ("phase", "op", "axis", "group", "step", "rank")
"""What the explorer can filter by, beside module and implicit."""

Mask = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.int64]
Sizes = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Facet:
    """One column of events as codes."""

    labels: list[Any]
    codes: npt.NDArray[np.int32]


class EventCodes:
    """The events of a trace, ready to be filtered and totalled by module."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.tree: ModuleTree = module_tree(tables)
        self.facets = {name: _facet(tables.events[name]) for name in FACETS}
        self.implicit = tables.events["implicit"].fill_null(False).to_numpy()
        self.sizes = tables.events["message_bytes"].to_numpy().astype(np.float64)
        row_of = {name: row for row, name in enumerate(self.tree.names)}
        owner = _facet(tables.events["owner"])
        rows = np.array([row_of[name] for name in owner.labels], np.int64)
        self.owner = rows[owner.codes] if len(rows) else np.zeros(0, np.int64)

    @cached_property
    def _axis_codes(self) -> npt.NDArray[np.int32]:
        """Column of the tree's axes per event."""
        facet, columns = self.facets["axis"], {name: i for i, name in enumerate(self.tree.axes)}
        places = [columns.get(label or NO_AXIS, len(columns) - 1) for label in facet.labels]
        return np.array(places, np.int32)[facet.codes] if places else facet.codes

    @cached_property
    def folds(self) -> list[tuple[int, ...]]:
        """Rows that are shown as one, parents before children."""
        folding = Folding(self.tree, self.tables)
        groups = [
            folding.roots(),
            *(folding.children(row) for row in range(len(self.tree)) if self.tree.ends[row] > row + 1),
        ]
        return [fold.rows for group in groups for fold in group if len(fold.rows) > 1]

    def mask(self, filters: Mapping[str, Any], implicit_only: bool = False) -> Mask:
        """Which events meet the filters: facet → a label or a list of labels."""
        mask = self.implicit.copy() if implicit_only else np.ones(len(self.owner), bool)
        for name, wanted in filters.items():
            facet = self.facets[name]
            values = wanted if isinstance(wanted, (list, tuple, set)) else [wanted]
            codes = [code for code, label in enumerate(facet.labels) if label in values]
            mask &= facet.codes == codes[0] if len(codes) == 1 else np.isin(facet.codes, codes)
        return mask

    def inside(self, rows: list[int]) -> Mask:
        """Events owned by these rows or by rows below them."""
        chosen = np.zeros(len(self.tree) + 1, bool)
        for row in rows:
            chosen[row : int(self.tree.ends[row])] = True
        mask: Mask = chosen[self.owner]
        return mask

    def columns(self, mask: Mask) -> Sizes:
        """(columns, modules): count, bytes, bytes per axis, bytes per phase, own bytes; see `titles`."""
        n, owner, size = len(self.tree), self.owner[mask], self.sizes[mask]
        count = np.bincount(owner, minlength=n).astype(np.float64)[:, None]
        own = [_by(owner, self._axis_codes[mask], size, n, len(self.tree.axes))]
        phases = self.facets["phase"]
        own.append(_by(owner, phases.codes[mask], size, n, len(phases.labels)))
        total = own[0].sum(axis=1, keepdims=True)
        table = np.concatenate([count, total, *own, total], axis=1)
        below = np.concatenate([np.zeros((1, table.shape[1])), np.cumsum(table, axis=0)])
        summed = below[self.tree.ends] - below[:-1]
        summed[:, -1] = table[:, -1]
        return np.ascontiguousarray(summed.T)

    @property
    def titles(self) -> list[tuple[str, str]]:
        """(title, unit) of each column of `columns`."""
        phases = [(str(phase), "bytes") for phase in self.facets["phase"].labels]
        axes = [(axis if axis in (NO_AXIS, OTHER_AXES) else f"on {axis}", "bytes") for axis in self.tree.axes]
        return [("count", "count"), ("bytes", "bytes"), *axes, *phases, ("own", "bytes")]

    def fold(self, columns: Sizes) -> Sizes:
        """The same columns with each fold's sum on its first row and on the rows below that."""
        folded = columns.copy()
        for rows in reversed(self.folds):
            length = int(self.tree.ends[rows[0]]) - rows[0]
            folded[:, rows[0] : rows[0] + length] = sum(folded[:, row : row + length] for row in rows)
        return folded

    def members(self, row: int) -> list[int]:
        """All rows that a row of the folded tree stands for."""
        first = {rows[0]: rows for rows in self.folds}
        found, ancestor = [row], row
        while ancestor >= 0:
            found = [member - ancestor + other for member in found for other in first.get(ancestor, (ancestor,))]
            ancestor = int(self.tree.parents[ancestor])
        return sorted(found)


def _facet(column: pl.Series) -> Facet:
    if column.dtype.is_numeric():
        return _ordered(column.name, column, column.cast(pl.Int64))
    return _ordered(column.name, column, column.cast(pl.Categorical).to_physical().cast(pl.Int64))


def _ordered(name: str, values: pl.Series, raw: pl.Series) -> Facet:
    """Codes renumbered so that labels stand in a useful order."""
    pairs = pl.DataFrame({"value": values, "raw": raw}).unique("raw", maintain_order=True)
    order = {phase: i for i, phase in enumerate(schema.PHASES)}
    key = (lambda v: (order.get(v, 99), v)) if name == "phase" else (lambda v: v)
    ranked = sorted(pairs.iter_rows(), key=lambda pair: key(pair[0]))
    if not ranked:
        return Facet([], np.zeros(0, np.int32))
    lookup = pl.DataFrame(
        {"raw": [r for _, r in ranked], "code": range(len(ranked))}, schema={"raw": raw.dtype, "code": pl.Int32}
    )
    codes = raw.to_frame("raw").join(lookup, on="raw", how="left", maintain_order="left")["code"].to_numpy()
    return Facet([value for value, _ in ranked], codes)


def _by(owner: Codes, codes: npt.NDArray[np.int32], size: Sizes, n: int, k: int) -> Sizes:
    if not k:
        return np.zeros((n, 0))
    return np.bincount(owner * k + codes, size, minlength=n * k).astype(np.float64).reshape(n, k)
