"""The modules of a comparison as a tree, each with its largest error per phase."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from dsexplore.numerics.numerics_report import NumericsReport


@dataclass
class ErrorCell:
    """The error of one module in one phase, of its worst tensor."""

    error: float
    allowed: float
    is_wrong: bool
    measured: float | None
    rounding: float | None


@dataclass
class Node:
    """One module with its errors by phase, and the modules in it."""

    path: str
    label: str
    cells: dict[str, ErrorCell] = field(default_factory=dict)
    children: list[Node] = field(default_factory=list)


def error_tree(report: NumericsReport, step: int) -> Node:
    """Return the tree of a step's modules, in the order in which their calls ended."""
    root = Node("", report.model)
    nodes = {"": root}
    rows = report.tensors.filter((pl.col("step") == step) & pl.col("compared"))
    for row in rows.iter_rows(named=True):
        node = _node(nodes, row["module"])
        cell = _cell(row, report.same)
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


def _cell(row: dict[str, Any], is_right: bool) -> ErrorCell:
    """Return the cell of a tensor; of a right plan none is wrong, as ranks may hold parts of a sum for a while."""
    error = row["error"]
    return ErrorCell(
        error=math.inf if error is None else error,
        allowed=row["allowed"] or 0.0,
        is_wrong=not row["same"] and not is_right,
        measured=row["measured"],
        rounding=row["rounding"],
    )
