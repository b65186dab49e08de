"""Folding: siblings whose whole subtrees communicate and hold the same are one row, ``[1–30] ×30``.

Two modules are the same when they have the same type, the same collectives (op, axis, group size, phase, size,
dtype, implicit or not), the same parameters (name, shapes, placements) and children that are the same in turn.
Only numbered siblings fold, as the layers of a ``ModuleList`` are; what caused a collective is not compared,
because causes name the layer itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from dsexplore.trace.model import Tables
from dsexplore.views.module_tree import ModuleTree

_SAME_EVENT = ("op", "axis", "group_size", "phase", "message_bytes", "dtype", "implicit")
_SAME_PARAMETER = ("rank", "global_shape", "local_shape", "dtype", "placements")


@dataclass(frozen=True)
class Fold:
    """One shown row: a module, or several that are the same."""

    rows: tuple[int, ...]
    """Rows of the tree that this one stands for; the first is the one that is opened."""
    label: str

    @property
    def first(self) -> int:
        """The row that stands for all."""
        return self.rows[0]


class Folding:
    """The shown children of each module."""

    def __init__(self, tree: ModuleTree, tables: Tables) -> None:
        self._tree = tree
        self._signatures = _signatures(tree, tables)

    def roots(self) -> list[Fold]:
        """The topmost rows."""
        return self._fold(self._tree.roots)

    def children(self, row: int) -> list[Fold]:
        """What is shown when a row is opened."""
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


def ranges(numbers: list[int], most: int = 6) -> str:
    """``[0, 1, 2, 5, 7, 8]`` → ``"0–2, 5, 7–8"``; after ``most`` pieces the rest is ``…``."""
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


def _signatures(tree: ModuleTree, tables: Tables) -> list[int]:
    """One number per row; equal numbers mean equal subtrees."""
    of_events = _sums_of_hashes(tables.events.select("owner", *_SAME_EVENT), "owner")
    own_name = pl.col("name").str.split(".").list.last()
    of_parameters = _sums_of_hashes(tables.parameters.select("module", own_name, *_SAME_PARAMETER), "module")
    numbers: dict[object, int] = {}
    signatures = [0] * len(tree)
    below: list[list[object]] = [[] for _ in range(len(tree))]
    for row in range(len(tree) - 1, -1, -1):
        name = tree.names[row]
        own = (of_events.get(name), of_parameters.get(name))
        key = (tree.types[row], int(tree.calls[row]), own, tuple(below[row]))
        signatures[row] = numbers.setdefault(key, len(numbers))
        if tree.parents[row] >= 0:
            below[tree.parents[row]].append((tree.labels[row], signatures[row]))
    return signatures


def _sums_of_hashes(frame: pl.DataFrame, key: str) -> dict[str, tuple[int, int]]:
    """One number for all rows of a module, whatever their order."""
    if frame.is_empty():
        return {}
    number = pl.struct(pl.exclude(key)).hash()
    halves = (number % 2**32).sum().alias("low"), (number // 2**32).sum().alias("high")
    sums = frame.group_by(key).agg(*halves)
    return {str(module): (low, high) for module, low, high in sums.iter_rows()}
