"""Rows of the explorer's tree when identical modules are folded into one row."""

from __future__ import annotations

from functools import cached_property

from dsexplore.views.trace.folding import Folding, ranges
from dsexplore.views.trace.module_tree import ModuleTree
from dsexplore.views.trace.pivot import Sizes


class FoldedRows:
    """The rows of a module tree that stand for several identical modules.

    The first of the identical modules, with all rows inside it, stands for the others.

    Of several modules that are the same, the first one's row, with all rows inside it, stands for the others'.
    """

    def __init__(self, tree: ModuleTree, folding: Folding) -> None:
        self._tree = tree
        self._folding = folding

    @cached_property
    def folds(self) -> list[tuple[int, ...]]:
        """Rows of identical modules that are shown as one, parents before children."""
        folding, tree = self._folding, self._tree
        groups = [folding.roots(), *(folding.children(row) for row in range(len(tree)) if tree.ends[row] > row + 1)]
        return [fold.rows for group in groups for fold in group if len(fold.rows) > 1]

    @cached_property
    def _fold_of(self) -> dict[int, tuple[int, ...]]:
        """{first row of a fold: all its rows}."""
        return {rows[0]: rows for rows in self.folds}

    def sums(self, columns: Sizes) -> Sizes:
        """Return the (columns, modules) numbers with each fold's sum in its first row and in the rows inside that."""
        folded = columns.copy()
        for rows in reversed(self.folds):
            length = int(self._tree.ends[rows[0]]) - rows[0]
            folded[:, rows[0] : rows[0] + length] = sum(folded[:, row : row + length] for row in rows)
        return folded

    def members(self, row: int) -> list[int]:
        """Return all rows that a row stands for, including itself."""
        found, ancestor = [row], row
        while ancestor >= 0:
            rows = self._fold_of.get(ancestor, (ancestor,))
            found = [member - ancestor + other for member in found for other in rows]
            ancestor = int(self._tree.parents[ancestor])
        return sorted(found)

    def shown(self, row: int) -> int:
        """Return the row that stands for this one."""
        for rows in self.folds:
            for other in rows[1:]:
                if other <= row < self._tree.ends[other]:
                    row = row - other + rows[0]
        return row

    def label(self, row: int) -> str:
        """Return a row's name without its parent's; ``[0–2, 4]`` if it is the first of several."""
        rows = self._fold_of.get(row)
        return f"[{ranges([int(self._tree.labels[other]) for other in rows])}]" if rows else self._tree.labels[row]
