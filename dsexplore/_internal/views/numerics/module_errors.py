"""The modules of a comparison as a tree, each with its largest error per phase."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from dsexplore._internal.numerics.numerics_report import NumericsReport


@dataclass
class ErrorCell:
    """The error of one module in one phase, of its worst tensor."""

    error: float
    allowed: float
    is_wrong: bool
    measured: float | None
    rounding: float | None

    @property
    def is_part(self) -> bool:
        """True where ranks hold something else beyond rounding, and what is computed of it is right."""
        return not self.is_wrong and self.error > self.allowed


@dataclass
class Node:
    """One module with its errors by phase, and the modules in it."""

    path: str
    label: str
    cells: dict[str, ErrorCell] = field(default_factory=dict)
    children: list[Node] = field(default_factory=list)

    def worst(self, phase: str) -> ErrorCell | None:
        """Return the cell of a phase, or, where the module has none, the worst one in it; None for none."""
        cells = [self.cells[phase]] if phase in self.cells else [child.worst(phase) for child in self.children]
        return max((cell for cell in cells if cell), key=lambda cell: (cell.is_wrong, cell.error), default=None)


def error_tree(report: NumericsReport, step: int) -> Node:
    """Return the tree of a step's modules, in the order in which their calls ended.

    What comes before the place where numbers part first is not wrong, however its ranks hold it: what is computed of it
    is right.
    """
    root = Node("", report.model)
    nodes = {"": root}
    rows = report.tensors.filter((pl.col("step") == step) & pl.col("compared"))
    is_before = report.same or step == report.step
    for row in rows.iter_rows(named=True):
        node = _node(nodes, row["module"])
        is_before = is_before and not _is_place(row, report)
        cell = _cell(row, is_before)
        before = node.cells.get(row["phase"])
        if before is None or (cell.is_wrong, cell.error) > (before.is_wrong, before.error):
            node.cells[row["phase"]] = cell
    return root


def _node(nodes: dict[str, Node], path: str) -> Node:
    if path not in nodes:
        parent, _, label = path.rpartition(".")
        above = _node(nodes, parent)
        nodes[path] = Node(path, label)
        above.children.append(nodes[path])
    return nodes[path]


def _is_place(row: dict[str, Any], report: NumericsReport) -> bool:
    """Return True from the first tensor on that the report may speak of: in backward, of a module or of one in it."""
    if row["phase"] != report.phase or report.module is None:
        return row["phase"] in ("gradient", "optimizer") and report.phase in ("forward", "backward")
    within = f"{report.module}." if report.module else ""
    is_inside = row["phase"] == "backward" and row["module"].startswith(within)
    return row["phase"] in ("gradient", "optimizer") or row["module"] == report.module or is_inside


def _cell(row: dict[str, Any], is_right: bool) -> ErrorCell:
    """Return the cell of a tensor."""
    error = row["error"]
    return ErrorCell(
        error=math.inf if error is None else error,
        allowed=row["allowed"] or 0.0,
        is_wrong=not row["same"] and not is_right,
        measured=row["measured"],
        rounding=row["rounding"],
    )
