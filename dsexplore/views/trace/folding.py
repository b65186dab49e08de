"""Folding: siblings with identical subtrees are shown as one row, ``[1–30] ×30``.

Modules are identical if they have the same type, the same collectives (op, axis, group size, phase, size, dtype,
implicit or not), the same parameters (name, shapes, placements) and, recursively, identical children. Only numbered
siblings fold, such as the layers of a ``ModuleList``. Causes of collectives are not compared, because they name the
layer itself.

Modules are the same when they have the same type, the same collectives (op, axis, group size, phase, size,
dtype, implicit or not), the same parameters (name, shapes, placements) and children that are the same in turn.
Only numbered siblings fold, as the layers of a ``ModuleList`` are; what caused a collective is not compared,
because causes name the layer itself.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import polars as pl

from dsexplore.trace.tables import Tables
from dsexplore.views.trace.facets import row_numbers
from dsexplore.views.trace.module_tree import ModuleTree

_SAME_EVENT = ("op", "axis", "group_size", "phase", "message_bytes", "dtype", "implicit")
_SAME_PARAMETER = ("rank", "global_shape", "local_shape", "dtype", "placements")


@dataclass(frozen=True)
class Fold:
    """One shown row: a module, or several identical ones."""

    rows: tuple[int, ...]
    """Rows of the tree that this row stands for; the first is the one that is opened."""
    label: str

    @property
    def first(self) -> int:
        """The row that stands for all."""
        return self.rows[0]


class Folds:
    """The shown children of each module, with modules of equal signature folded into one row.

    Args:
        tree: the modules.
        signatures: one number per row of the tree; equal ones mean equal subtrees.
    """

    def __init__(self, tree: ModuleTree, signatures: list[int]) -> None:
        self._tree = tree
        self._signatures = signatures

    def roots(self) -> list[Fold]:
        """Return the topmost rows."""
        return self._fold(self._tree.roots)

    def children(self, row: int) -> list[Fold]:
        """Return the rows inside ``row``."""
        return self._fold(self._tree.children(row))

    def _fold(self, rows: list[int]) -> list[Fold]:
        same: dict[object, list[int]] = {}
        for row in rows:
            numbered = self._tree.labels[row].isdecimal()
            same.setdefault((self._signatures[row],) if numbered else row, []).append(row)
        return [Fold(tuple(group), self._label(group)) for group in same.values()]

    def _label(self, rows: list[int]) -> str:
        labels = [self._tree.labels[row] for row in rows]
        return labels[0] if len(labels) == 1 else f"[{ranges([int(label) for label in labels])}]"


class Folding(Folds):
    """Rows of a trace's tree, with identical modules folded into one row."""

    def __init__(self, tree: ModuleTree, tables: Tables) -> None:
        of_events = _sums_of_hashes(tables.events.select("owner", *_SAME_EVENT), "owner")
        own_name = pl.col("name").str.split(".").list.last()
        of_parameters = _sums_of_hashes(tables.parameters.select("module", own_name, *_SAME_PARAMETER), "module")
        own = [
            (kind, int(calls), of_events.get(name), of_parameters.get(name))
            for name, kind, calls in zip(tree.names, tree.types, tree.calls, strict=True)
        ]
        super().__init__(tree, signatures(tree, own))


def ranges(numbers: list[int], most: int = 6) -> str:
    """Return numbers as ranges: ``[0, 1, 2, 5, 7, 8]`` → ``"0–2, 5, 7–8"``; beyond ``most``, some become ``…``."""
    pieces: list[list[int]] = []
    for number in sorted(numbers):
        if pieces and number == pieces[-1][1] + 1:
            pieces[-1][1] = number
        else:
            pieces.append([number, number])
    written = [str(a) if a == b else f"{a}–{b}" for a, b in pieces]
    if len(written) <= most:
        return ", ".join(written)
    return ", ".join([*written[: most - 1], "…", written[-1]])


def signatures(tree: ModuleTree, own: Sequence[Hashable]) -> list[int]:
    """Return one number per row, equal for subtrees that are equal in labels and in ``own`` of each row."""
    numbers: dict[Hashable, int] = {}
    found = [0] * len(tree)
    below: list[list[Hashable]] = [[] for _ in range(len(tree))]
    for row in range(len(tree) - 1, -1, -1):
        found[row] = numbers.setdefault((own[row], tuple(below[row])), len(numbers))
        if tree.parents[row] >= 0:
            below[tree.parents[row]].append((tree.labels[row], found[row]))
    return found


def _sums_of_hashes(frame: pl.DataFrame, key: str) -> dict[str, tuple[int, int]]:
    """Return {module: two sums of its rows' hashes}, which do not depend on the order of rows."""
    if frame.is_empty():
        return {}
    number = pl.col("number")
    halves = (number % 2**32).sum().alias("low"), (number // 2**32).sum().alias("high")
    numbered = frame.select(key, row_numbers(frame, [name for name in frame.columns if name != key]))
    sums = numbered.group_by(key).agg(*halves)
    return {str(module): (low, high) for module, low, high in sums.iter_rows()}
