"""The module tree of a comparison, with the largest error of each module in each phase."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from dsexplore._internal.numerics.numerics_report import NumericsReport


@dataclass
class ErrorCell:
    """The largest error of a module in a phase, relative to the root mean square of its tensor."""

    error: float
    allowed: float
    """Error that rounding may cause."""
    is_wrong: bool
    """Whether the error makes the plan wrong."""
    measured: float | None
    """Error in the program's own dtypes; None if unknown."""
    rounding: float | None
    """Error of the reference in the program's own dtypes; None if unknown."""

    @property
    def is_part(self) -> bool:
        """True if ranks hold other values, but what is computed from them is right, as with partial sums."""
        return not self.is_wrong and self.error > self.allowed


@dataclass
class Node:
    """One module with its errors, and the modules inside it."""

    path: str
    """Fully qualified name; empty for the model."""
    label: str
    """Name without the parent's."""
    cells: dict[str, ErrorCell] = field(default_factory=dict)
    """{phase: error}."""
    children: list[Node] = field(default_factory=list)

    def worst(self, phase: str) -> ErrorCell | None:
        """Return the cell of a phase, or the worst one inside the module if it has none itself; None for none."""
        cells = [self.cells[phase]] if phase in self.cells else [child.worst(phase) for child in self.children]
        return max((cell for cell in cells if cell), key=lambda cell: (cell.is_wrong, cell.error), default=None)


def error_tree(report: NumericsReport, step: int) -> Node:
    """Return the module tree of a step, in the order in which calls ended.

    Errors before the first wrong tensor are not marked as wrong, because what is computed from these tensors is right:
    they are partial sums, for example.
    """
    root = Node("", report.model)
    nodes = {"": root}
    rows = report.tensors.filter((pl.col("step") == step) & pl.col("compared"))
    is_before = report.same or step == report.step
    for row in rows.iter_rows(named=True):
        node = _node(nodes, row["module"])
        is_before = is_before and not _may_be_wrong(row, report)
        cell = _cell(row, is_right=is_before)
        worst = node.cells.get(row["phase"])
        if worst is None or (cell.is_wrong, cell.error) > (worst.is_wrong, worst.error):
            node.cells[row["phase"]] = cell
    return root


def _node(nodes: dict[str, Node], path: str) -> Node:
    """Return the node of a module, which is added to ``nodes`` with its ancestors if it is new."""
    if path not in nodes:
        parent, _, label = path.rpartition(".")
        above = _node(nodes, parent)
        nodes[path] = Node(path, label)
        above.children.append(nodes[path])
    return nodes[path]


def _may_be_wrong(row: dict[str, Any], report: NumericsReport) -> bool:
    """Return True for the first tensor that the report may name, and for later ones.

    In backward that is a tensor of the named module, or of a module inside it.
    """
    if row["phase"] != report.phase or report.module is None:
        return row["phase"] in ("gradient", "optimizer") and report.phase in ("forward", "backward")
    within = f"{report.module}." if report.module else ""
    is_inside = row["phase"] == "backward" and row["module"].startswith(within)
    return row["phase"] in ("gradient", "optimizer") or row["module"] == report.module or is_inside


def _cell(row: dict[str, Any], is_right: bool) -> ErrorCell:
    """Return the cell of a tensor; ``is_right``: whether its difference does not count as wrong."""
    error = row["error"]
    return ErrorCell(
        error=math.inf if error is None else error,
        allowed=row["allowed"] or 0.0,
        is_wrong=not row["same"] and not is_right,
        measured=row["measured"],
        rounding=row["rounding"],
    )
