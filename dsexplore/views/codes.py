"""A trace's events as small integers, so that a filter over a million of them takes milliseconds.

Every facet is a column of codes and the labels they stand for; a filter is a conjunction of comparisons, and
the tree's columns are `numpy.bincount` over what is left.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from dsexplore.trace.model import Tables
from dsexplore.views.facets import facet
from dsexplore.views.fold import Folding
from dsexplore.views.module_tree import NO_AXIS, OTHER_AXES, ModuleTree, module_tree

FACETS = ("phase", "op", "axis", "group", "step", "rank")
"""What the explorer can filter by, beside module and implicit."""

Mask = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.int64]
Sizes = npt.NDArray[np.float64]


class EventCodes:
    """The events of a trace, ready to be filtered and totalled by module."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.facets = {name: facet(tables.events[name]) for name in (*FACETS, "owner")}
        self.tree: ModuleTree = module_tree(tables, self.facets)
        self.implicit = tables.events["implicit"].fill_null(False).to_numpy()
        self.sizes = tables.events["message_bytes"].to_numpy().astype(np.float64)
        self.owner = self.tree.rows_of(self.facets["owner"])

    @cached_property
    def _axis_codes(self) -> Codes:
        """Column of the tree's axes per event."""
        return self.tree.axis_columns(self.facets["axis"])

    @cached_property
    def folding(self) -> Folding:
        """Which modules are the same."""
        return Folding(self.tree, self.tables)

    @cached_property
    def folds(self) -> list[tuple[int, ...]]:
        """Rows that are shown as one, parents before children."""
        folding = self.folding
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

    def by_module_and_axis(self, mask: Mask) -> pl.DataFrame:
        """Message bytes per owner and axis; columns owner, axis, message_bytes."""
        n, k = len(self.tree), max(len(self.facets["axis"].labels), 1)
        pairs = self.owner[mask] * k + self.facets["axis"].codes[mask]
        count, total = np.bincount(pairs, minlength=n * k), np.bincount(pairs, self.sizes[mask], minlength=n * k)
        held = np.flatnonzero(count)
        names, axes = (
            pl.Series(self.tree.names, dtype=pl.String),
            pl.Series(self.facets["axis"].labels, dtype=pl.String),
        )
        return pl.DataFrame(
            {"owner": names[held // k], "axis": axes[held % k], "message_bytes": total[held].astype(np.int64)}
        )

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


def _by(owner: Codes, codes: npt.NDArray[Any], size: Sizes, n: int, k: int) -> Sizes:
    if not k:
        return np.zeros((n, 0))
    return np.bincount(owner * k + codes, size, minlength=n * k).astype(np.float64).reshape(n, k)
