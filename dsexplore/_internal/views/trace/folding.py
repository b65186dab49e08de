"""Folding: siblings with identical subtrees are shown as one row, ``[1–30] ×30``.

Modules are identical if they have the same type, the same collectives (op, axis, group size, phase, size, dtype,
implicit or not), the same parameters (name, shapes, placements) and, recursively, identical children. Only numbered
siblings fold, such as the layers of a ``ModuleList``. Causes of collectives are not compared, because they name the
layer itself.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import polars as pl

from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.units import format_ranges
from dsexplore._internal.views.trace.facets import row_numbers
from dsexplore._internal.views.trace.module_tree import ModuleTree

_SAME_EVENT = ("op", "axis", "group_size", "phase", "message_bytes", "dtype", "implicit")
_SAME_PARAMETER = ("rank", "global_shape", "local_shape", "dtype", "placements")


@dataclass(frozen=True)
class Fold:
    """One shown row: a module, or several identical ones."""

    rows: tuple[int, ...]
    """Rows of the tree that this row stands for; opening it shows the content of the first."""
    label: str
    """Name without the parent's: ``3``, or ``[0–2, 4]`` for several modules."""

    @property
    def first(self) -> int:
        """Row of the module whose content is shown for all."""
        return self.rows[0]


class Folds:
    """The shown children of each module, with identical modules folded into one row.

    Args:
        tree: tree of the modules.
        row_keys: (modules,) keys of the modules. Modules are identical if their keys, and the labels and keys of all
            modules inside them, are equal.
    """

    def __init__(self, tree: ModuleTree, row_keys: Sequence[Hashable]) -> None:
        self._tree = tree
        self._signatures = _signatures(tree, row_keys)
        self._children: dict[int, dict[int, Fold]] = {}
        """{parent: {first row of a fold: the fold}}, −1 for the parent of the roots."""

    def roots(self) -> list[Fold]:
        """Return the topmost rows."""
        return self.children(-1)

    def children(self, row: int) -> list[Fold]:
        """Return the rows inside ``row``."""
        return list(self._folds_in(row).values())

    def members(self, row: int) -> list[int]:
        """Return the rows of all modules that a shown row stands for, because it or an ancestor is folded.

        Identical modules contain the same modules in the same order, so a module inside them has the same offset from
        each.
        """
        members, ancestor = [row], row
        while ancestor >= 0:
            parent = int(self._tree.parents[ancestor])
            fold = self._folds_in(parent).get(ancestor)
            rows = fold.rows if fold is not None else (ancestor,)
            members = [member - ancestor + other for member in members for other in rows]
            ancestor = parent
        return sorted(members)

    def label(self, row: int) -> str:
        """Return the label of the fold that begins with a row, else the row's own label."""
        fold = self._folds_in(int(self._tree.parents[row])).get(row)
        return fold.label if fold is not None else self._tree.labels[row]

    def _folds_in(self, parent: int) -> dict[int, Fold]:
        """Return {first row of a fold: the fold} of a parent's children; −1 is the parent of the roots."""
        if parent not in self._children:
            rows = self._tree.children(parent) if parent >= 0 else self._tree.roots
            self._children[parent] = {fold.first: fold for fold in self._fold(rows)}
        return self._children[parent]

    def _fold(self, rows: list[int]) -> list[Fold]:
        """Return the folds of sibling rows; only siblings whose labels are numbers share one."""
        groups: dict[Hashable, list[int]] = {}
        for row in rows:
            is_numbered = self._tree.labels[row].isdecimal()
            groups.setdefault(("signature", self._signatures[row]) if is_numbered else row, []).append(row)
        return [Fold(tuple(group), self._label(group)) for group in groups.values()]

    def _label(self, rows: list[int]) -> str:
        labels = [self._tree.labels[row] for row in rows]
        return labels[0] if len(labels) == 1 else f"[{format_ranges(map(int, labels))}]"


def folds_of(tree: ModuleTree, tables: Tables) -> Folds:
    """Return the folds of a trace's tree."""
    of_events = _sums_of_hashes(tables.events.select("owner", *_SAME_EVENT), "owner")
    short_name = pl.col("name").str.split(".").list.last()
    of_parameters = _sums_of_hashes(tables.parameters.select("module", short_name, *_SAME_PARAMETER), "module")
    row_keys = [
        (kind, int(calls), of_events.get(name), of_parameters.get(name))
        for name, kind, calls in zip(tree.names, tree.types, tree.calls, strict=True)
    ]
    return Folds(tree, row_keys)


def _signatures(tree: ModuleTree, row_keys: Sequence[Hashable]) -> list[int]:
    """Return one number per row, equal for subtrees that are equal in labels and in the key of each row."""
    numbers: dict[Hashable, int] = {}
    signature_of = [0] * len(tree)
    below: list[list[Hashable]] = [[] for _ in range(len(tree))]
    for row in range(len(tree) - 1, -1, -1):
        signature_of[row] = numbers.setdefault((row_keys[row], tuple(below[row])), len(numbers))
        if tree.parents[row] >= 0:
            below[tree.parents[row]].append((tree.labels[row], signature_of[row]))
    return signature_of


def _sums_of_hashes(frame: pl.DataFrame, key: str) -> dict[str, tuple[int, int]]:
    """Return {module: two sums of its rows' hashes}, which do not depend on the order of rows.

    The halves of the hashes are summed separately, so that no sum overflows.
    """
    if frame.is_empty():
        return {}
    number = pl.col("number")
    halves = (number % 2**32).sum().alias("low"), (number // 2**32).sum().alias("high")
    numbered = frame.select(key, row_numbers(frame, [name for name in frame.columns if name != key]))
    sums = numbered.group_by(key).agg(*halves)
    return {str(module): (low, high) for module, low, high in sums.iter_rows()}
