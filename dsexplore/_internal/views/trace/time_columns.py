"""Columns of a module tree with measured and predicted seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from dsexplore._internal.cost.step.prediction import Prediction
from dsexplore._internal.units import format_seconds
from dsexplore._internal.views.trace import outline
from dsexplore._internal.views.trace.byte_sizes import summed_over
from dsexplore._internal.views.trace.event_codes import EventCodes
from dsexplore._internal.views.trace.module_tree import ModuleTree
from dsexplore._internal.views.trace.pivot import Sizes

SHOWN = {
    "compute": "seconds of its kernels",
    "communication": "seconds of its collectives, hidden or exposed",
    "exposed": "seconds of its collectives that no compute hides",
    "idle": "seconds in which the compute stream waits for the CPU, which launches kernels, or for other ranks",
}
"""{column of `Prediction.by_module` that a tree shows: its explanation}."""


@dataclass(frozen=True)
class TimeColumn:
    """Seconds by row of a module tree, including the modules inside."""

    title: str
    explanation: str
    seconds: Sizes
    """(modules,) seconds."""

    @property
    def head(self) -> tuple[str, str, str]:
        """Title, explanation and class of the column; see `outline.outline`."""
        return self.title, self.explanation, ""

    def cell(self, rows: Sequence[int]) -> str:
        """Return the cell of a line that stands for the modules of ``rows``, with the sum of their seconds."""
        return seconds_cell(float(self.seconds[list(rows)].sum()))


def measured_columns(codes: EventCodes) -> list[TimeColumn]:
    """Return the column of the seconds of each module's collectives; an empty list if no times were measured."""
    seconds = codes.took(codes.every)
    if seconds is None:
        return []
    over = f"with the modules inside, {summed_over(codes.tables)}"
    explanation = f"measured: seconds of its collectives, each in full even if several run at the same time, {over}"
    return [TimeColumn("time", explanation, seconds)]


def time_columns(tree: ModuleTree, prediction: Prediction) -> list[TimeColumn]:
    """Return columns of predicted seconds; modules without a row in the tree count for their nearest ancestor."""
    per = "per rank and step, with the modules inside"
    frame = prediction.by_module()
    return [
        TimeColumn(
            f"{_SHORT.get(name, name)} (pred.)", f"predicted: {explanation}, {per}", with_inside(tree, frame, name)
        )
        for name, explanation in SHOWN.items()
    ]


def step_seconds(tree: ModuleTree, prediction: Prediction) -> Sizes:
    """Return (modules,) predicted seconds of the step, including the modules inside."""
    frame = prediction.by_module().with_columns(step=pl.col("compute") + pl.col("idle") + pl.col("exposed"))
    return with_inside(tree, frame, "step")


def with_inside(tree: ModuleTree, frame: pl.DataFrame, name: str) -> Sizes:
    """Return (modules,) a column of `Prediction.by_module`, summed over each module and those inside it."""
    rows = np.array([_row(tree, module) for module in frame["module"]], np.int64)
    seconds, has_row = np.zeros(len(tree)), rows >= 0
    np.add.at(seconds, rows[has_row], frame[name].to_numpy()[has_row])
    return tree.with_children(seconds)


_SHORT = {"communication": "comm."}


def seconds_cell(seconds: float) -> str:
    """Return a cell with the seconds, or with a dash for 0."""
    return outline.number_cell(max(seconds, 0.0), format_seconds)


def _row(tree: ModuleTree, module: str) -> int:
    """Return the row of a module or of its nearest ancestor in the tree; −1 if there is none."""
    while module and module not in tree.row_of:
        module = module.rpartition(".")[0]
    return tree.row_of.get(module, -1)
