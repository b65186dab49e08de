"""Columns of a module tree with measured and with predicted seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from dsexplore.cost.prediction import Prediction
from dsexplore.units import format_seconds
from dsexplore.views.trace import outline
from dsexplore.views.trace.byte_sizes import summed_over
from dsexplore.views.trace.event_codes import EventCodes
from dsexplore.views.trace.module_tree import Fold, ModuleTree
from dsexplore.views.trace.pivot import Sizes

SHOWN = {
    "compute": "what its kernels take",
    "communication": "what its collectives take, hidden or not",
    "exposed": "of that, what no compute hides",
    "idle": "in which the compute stream waits for the CPU, which launches kernels, or for other ranks",
}
"""The columns of `Prediction.by_module` that a tree shows, and what they are."""


@dataclass(frozen=True)
class TimeColumn:
    """Seconds by row of a module tree, with the modules inside."""

    title: str
    explanation: str
    seconds: Sizes
    """(modules,)"""

    @property
    def head(self) -> tuple[str, str, str]:
        """Title, explanation and class of the column; see `outline.outline`."""
        return self.title, self.explanation, ""

    def cell(self, rows: Sequence[int]) -> str:
        """The cell of a line that stands for the modules of these rows, which may take different times."""
        return seconds_cell(float(self.seconds[list(rows)].sum()))


class StoodFor:
    """The rows of a tree for which each drawn line stands: folded modules, inside folded ones too."""

    def __init__(self) -> None:
        self._rows: dict[int, list[int]] = {}

    def roots(self, folds: list[Fold]) -> list[Fold]:
        """Remember the topmost lines, which are returned."""
        self._rows.update((fold.first, list(fold.rows)) for fold in folds)
        return folds

    def children(self, row: int, folds: list[Fold]) -> list[Fold]:
        """Remember the lines inside the line whose first module has that row; they are returned.

        Modules that are folded hold the same modules in the same order, so these are as far from each.
        """
        around = self._rows.get(row, [row])
        for fold in folds:
            self._rows[fold.first] = [inner + other - row for other in around for inner in fold.rows]
        return folds

    def rows(self, fold: Fold) -> list[int]:
        """All rows for which a line stands."""
        return self._rows.get(fold.first, list(fold.rows))


def measured_columns(codes: EventCodes) -> list[TimeColumn]:
    """The columns of seconds that the collectives of each module took; none where nothing was measured."""
    took = codes.took(codes.every)
    over = f"with the modules inside, {summed_over(codes.tables)}"
    said = f"measured: what its collectives take, those that run at the same time each in full, {over}"
    return [] if took is None else [TimeColumn("time", said, took)]


def time_columns(tree: ModuleTree, prediction: Prediction) -> list[TimeColumn]:
    """The predicted seconds of the modules of a tree; what it has no row for counts to the module around it."""
    per = "per rank and step, with the modules inside"
    frame = prediction.by_module()
    return [
        TimeColumn(
            f"{_SHORT.get(name, name)} (pred.)", f"predicted: {explanation}, {per}", with_inside(tree, frame, name)
        )
        for name, explanation in SHOWN.items()
    ]


def step_seconds(tree: ModuleTree, prediction: Prediction) -> Sizes:
    """(modules,) predicted seconds of the step, with the modules inside."""
    frame = prediction.by_module().with_columns(step=pl.col("compute") + pl.col("idle") + pl.col("exposed"))
    return with_inside(tree, frame, "step")


def with_inside(tree: ModuleTree, frame: pl.DataFrame, name: str) -> Sizes:
    """(modules,) a column of `Prediction.by_module`, with the modules inside."""
    rows = np.array([_row(tree, module) for module in frame["module"]], np.int64)
    own, known = np.zeros(len(tree)), rows >= 0
    np.add.at(own, rows[known], frame[name].to_numpy()[known])
    return tree.with_children(own)


_SHORT = {"communication": "comm."}


def seconds_cell(seconds: float) -> str:
    """A column with seconds, or with a dash."""
    return outline.cell(format_seconds(seconds)) if seconds > 0 else outline.cell("–", "z")


def _row(tree: ModuleTree, module: str) -> int:
    """The row of a module, or of the nearest one around it; −1 where there is none."""
    while module and module not in tree.row_of:
        module = module.rpartition(".")[0]
    return tree.row_of.get(module, -1)
