"""The explorer's module tree: rows, folded or not, what each stands for, and the numbers beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from dsexplore.views.page import html
from dsexplore.views.trace.event_codes import EventCodes
from dsexplore.views.trace.folding import ranges
from dsexplore.views.trace.pivot import Sums
from dsexplore.views.widgets.tree_widget import TreeWidget

_LONGEST_LABEL = 2000


class ModuleRows:
    """One row per module in preorder; in the folded tree, the first of several that are the same stands for all."""

    def __init__(self, codes: EventCodes, widget: TreeWidget) -> None:
        self._codes = codes
        self._row_of = {name: row for row, name in enumerate(codes.tree.names)}
        self.widget = widget

    @property
    def selected(self) -> int:
        """The selected row, −1 for none."""
        return int(self.widget.selected)

    @property
    def chosen(self) -> list[int]:
        """The rows of all modules that the selected row stands for."""
        if self.selected < 0:
            return []
        return self._codes.members(self.selected) if self.widget.folding else [self.selected]

    @property
    def names(self) -> list[str]:
        """Their fully qualified names."""
        return [self._codes.tree.names[row] for row in self.chosen]

    @property
    def title(self) -> str:
        """What the selected row is called: ``Net.layers.[0–30].up ×31`` where it stands for several modules."""
        if self.selected < 0:
            return ""
        tree, parts, at = self._codes.tree, [], self.selected
        while at >= 0:
            fold = self._codes.fold_of.get(at) if self.widget.folding else None
            parts.append(_numbers(self._codes, fold) if fold else tree.labels[at])
            at = int(tree.parents[at])
        many = len(self.chosen)
        return ".".join(reversed(parts)) + (f" ×{many}" if many > 1 else "")

    def row(self, name: str) -> int | None:
        """The row of a module, by its fully qualified name."""
        return self._row_of.get(name)

    def shown(self, row: int) -> int:
        """The row that stands for this one."""
        if not self.widget.folding:
            return row
        for rows in self._codes.folds:
            for other in rows[1:]:
                if other <= row < self._codes.tree.ends[other]:
                    row = row - other + rows[0]
        return row

    def fill(self, sums: Sums) -> None:
        """Show what the modules sent under a filter."""
        tree = self._codes.tree
        held = np.stack([tree.global_bytes, tree.local_bytes]).astype(np.float64)
        columns = np.concatenate([self._codes.columns(sums), held])
        self.widget.set_values(self._codes.fold(columns) if self.widget.folding else columns)


def rows_of(codes: EventCodes) -> dict[str, Any]:
    """The traits of a `TreeWidget` that shows these modules."""
    tree = codes.tree
    types = sorted(set(tree.types))
    hidden = np.zeros(len(tree), np.int32)
    for rows in codes.folds:
        hidden[list(rows[1:])] = 1
    index = {name: i for i, name in enumerate(types)}
    columns = [tree.parents, tree.ends, np.array([index[name] for name in tree.types]), hidden]
    return {
        "labels": [html.printable(label)[:_LONGEST_LABEL] for label in tree.labels],
        "types": [html.printable(name)[:200] for name in types],
        "folded": {str(rows[0]): [_numbers(codes, rows), list(rows)] for rows in codes.folds},
        "notes": _placements(codes),
        "titles": [*(list(title) for title in codes.titles), ["params", "bytes"], ["local", "bytes"]],
        "structure": np.ascontiguousarray(np.stack(columns, axis=1), np.int32).tobytes() if len(tree) else b"",
    }


def _numbers(codes: EventCodes, rows: tuple[int, ...]) -> str:
    return f"[{ranges([int(codes.tree.labels[row]) for row in rows])}]"


def _placements(codes: EventCodes) -> dict[str, str]:
    """Row → how its own parameters are placed."""
    row_of = {name: row for row, name in enumerate(codes.tree.names)}
    placed = codes.tables.parameters.filter(pl.col("placements") != "").group_by("module", maintain_order=True)
    found = placed.agg(pl.col("placements").unique(maintain_order=True))
    return {
        str(row_of[module]): html.plain(" | ".join(kinds), 60)
        for module, kinds in found.iter_rows()
        if module in row_of
    }
