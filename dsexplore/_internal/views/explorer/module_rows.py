"""The explorer's module tree: its rows, the modules that each stands for, and the numbers of its columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from dsexplore._internal.placement_text import readable
from dsexplore._internal.trace.schema import NO_AXIS
from dsexplore._internal.views.explorer.filters import FilteredEvents
from dsexplore._internal.views.page import html
from dsexplore._internal.views.page.theme import axis_number
from dsexplore._internal.views.trace.byte_sizes import signed
from dsexplore._internal.views.trace.event_codes import EventCodes
from dsexplore._internal.views.trace.folding import Folds
from dsexplore._internal.views.trace.module_tree import OTHER_AXES, ModuleTree
from dsexplore._internal.views.trace.pivot import Sizes
from dsexplore._internal.views.trace.time_columns import TimeColumn, measured_columns
from dsexplore._internal.views.widgets.part_widgets import TreeWidget


class FoldedRows:
    """The rows of a module tree that stand for several identical modules.

    The first of the identical modules, with all rows inside it, stands for the others.
    """

    def __init__(self, tree: ModuleTree, folds: Folds) -> None:
        self._tree = tree
        parents = [-1, *(row for row in range(len(tree)) if tree.ends[row] > row + 1)]
        self.folds = [fold for row in parents for fold in folds.children(row) if len(fold.rows) > 1]
        """Rows that stand for several modules, parents before children."""

    def sums(self, columns: Sizes) -> Sizes:
        """Return (columns, modules) numbers with the sum of each fold in its first module, and likewise inside it."""
        folded = columns.copy()
        for fold in reversed(self.folds):
            length = int(self._tree.ends[fold.first]) - fold.first
            inside = slice(fold.first, fold.first + length)
            folded[:, inside] = sum(folded[:, row : row + length] for row in fold.rows)
        return folded

    def shown(self, row: int) -> int:
        """Return the row that stands for this one, which may be itself."""
        for fold in self.folds:
            for folded in fold.rows[1:]:
                if folded <= row < self._tree.ends[folded]:
                    row += fold.first - folded
        return row


_LONGEST_LABEL = 2000
"""Number of characters of a label that are sent."""


class ModuleRows:
    """One row per module in preorder; when folded, the first of several identical modules stands for all."""

    def __init__(self, codes: EventCodes, widget: TreeWidget, predicted: Sequence[TimeColumn] = ()) -> None:
        self._codes, self._predicted = codes, predicted
        self._folded = FoldedRows(codes.tree, codes.folds)
        self.widget = widget

    def members(self, row: int, folding: bool) -> list[int]:
        """Return the rows of all modules that a row stands for; none for the row −1."""
        if row < 0:
            return []
        return self._codes.folds.members(row) if folding else [row]

    def title(self, row: int, folding: bool) -> str:
        """Return the name of a row: ``Net.layers.[0–30].up ×31`` if it stands for several modules."""
        tree, labels, at = self._codes.tree, [], row
        while at >= 0:
            labels.append(self._codes.folds.label(at) if folding else tree.labels[at])
            at = int(tree.parents[at])
        count = len(self.members(row, folding))
        return ".".join(reversed(labels)) + (f" ×{count}" if count > 1 else "")

    def row(self, name: str) -> int | None:
        """Return the row of a module, given its fully qualified name."""
        return self._codes.tree.row_of.get(name)

    def shown(self, row: int, folding: bool) -> int:
        """Return the visible row that stands for this one."""
        return self._folded.shown(row) if folding else row

    def fill(self, filtered: FilteredEvents) -> None:
        """Show count, bytes and seconds of the filtered events by module; predicted seconds are not filtered."""
        tree, sent = self._codes.tree, self._codes.columns(filtered.sums)
        held = tree.global_bytes, tree.local_bytes
        took = None if self._codes.seconds is None else self._codes.took(filtered.mask)
        times = [*([] if took is None else [took]), *(column.seconds for column in self._predicted)]
        bars = np.zeros(len(tree))  # the browser draws them from the axes' columns
        columns = np.vstack([sent.count, *times, sent.bytes, bars, sent.axes, sent.phases, sent.alone, *held])
        folded = self._folded.sums if self.widget.folding else np.copy
        missing = None
        if filtered.unknown is not None:
            unknown = self._codes.columns(filtered.unknown)
            zeros = np.zeros((1 + len(times), len(tree)))
            of_sizes = [unknown.bytes, bars, unknown.axes, unknown.phases, unknown.alone, bars, bars]
            missing = folded(np.vstack([zeros, *of_sizes]))
        self.widget.set_values(signed(folded(columns), missing))


def rows_of(codes: EventCodes, predicted: Sequence[TimeColumn] = ()) -> dict[str, Any]:
    """Return the traits of a `TreeWidget` that show these modules, without the numbers."""
    tree, folds = codes.tree, FoldedRows(codes.tree, codes.folds).folds
    types = sorted(set(tree.types))
    hidden = np.zeros(len(tree), np.int32)
    for fold in folds:
        hidden[list(fold.rows[1:])] = 1
    index = {name: i for i, name in enumerate(types)}
    columns = [tree.parents, tree.ends, np.array([index[name] for name in tree.types]), hidden]
    return {
        "labels": [html.printable(label)[:_LONGEST_LABEL] for label in tree.labels],
        "types": [html.printable(name)[:200] for name in types],
        "folded": {str(fold.first): [fold.label, list(fold.rows)] for fold in folds},
        "notes": _placements(codes),
        "titles": _titles(codes, predicted),
        "axes": [axis_number(axis) for axis in tree.axes],
        "structure": np.ascontiguousarray(np.stack(columns, axis=1), np.int32).tobytes() if len(tree) else b"",
    }


def _titles(codes: EventCodes, predicted: Sequence[TimeColumn]) -> list[list[str]]:
    """Return [title, unit, explanation] of each column, in the order of `ModuleRows.fill`."""
    axes = [axis if axis in (NO_AXIS, OTHER_AXES) else f"on {axis}" for axis in codes.tree.axes]
    phases = [str(phase) for phase in codes.facets["phase"].labels]
    sizes = (*axes, *phases, "self", "all params", "per rank")
    times = [[column.title, "seconds", column.explanation] for column in (*measured_columns(codes), *predicted)]
    first = [["count", "count", ""], *times, ["bytes", "bytes", ""], ["share", "bar", ""]]
    return [*first, *([title, "bytes", ""] for title in sizes)]


def _placements(codes: EventCodes) -> dict[str, str]:
    """Return {row: placements of the module's own parameters}."""
    placed = codes.tables.parameters.filter(pl.col("placements") != "").group_by("module", maintain_order=True)
    by_module = placed.agg(pl.col("placements").unique(maintain_order=True))
    row_of = codes.tree.row_of
    return {
        str(row_of[module]): html.plain(readable(" | ".join(kinds)), longest=60)
        for module, kinds in by_module.iter_rows()
        if module in row_of
    }
