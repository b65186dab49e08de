"""The predicted seconds of a step by module, with identical modules folded, as in a trace's tree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dsexplore._internal.cost.step.prediction import Prediction
from dsexplore._internal.views.trace.event_codes import EventCodes
from dsexplore._internal.views.trace.folding import Fold
from dsexplore._internal.views.trace.time_columns import with_inside

PARTS = ("compute", "exposed", "idle", "communication")
"""Kinds of seconds in a row."""


@dataclass(frozen=True)
class ModuleRow:
    """One module, or several identical ones."""

    place: int
    """Index among all rows."""
    fold: Fold
    depth: int
    times: int
    """Number of modules that it stands for, including folds above it."""
    parts: dict[str, float]
    """{kind of `PARTS`: seconds}, summed over all modules of the row and those inside them."""


def module_seconds(prediction: Prediction) -> list[ModuleRow]:
    """Return the rows with any time, parents before children; what runs outside all modules is last."""
    codes, frame = EventCodes(prediction.tables), prediction.by_module()
    seconds = {name: with_inside(codes.tree, frame, name) for name in PARTS}

    def inside(folds: list[Fold], depth: int, times: int) -> Iterator[tuple[Fold, int, int, dict[str, float]]]:
        for fold in folds:
            held = codes.folds.members(fold.first)
            parts = {name: float(of_modules[held].sum()) for name, of_modules in seconds.items()}
            if any(parts.values()):
                count = times * len(fold.rows)
                yield fold, depth, count, parts
                yield from inside(codes.folds.children(fold.first), depth + 1, count)

    rows = list(inside(codes.folds.roots(), 0, 1))
    roots = codes.tree.roots
    outside = {name: float(frame[name].sum() - seconds[name][roots].sum()) for name in PARTS}
    if max(outside.values()) > 1e-9 * max(1e-9, float(frame["compute"].sum())):
        rows.append((Fold((-1,), ""), 0, 1, {name: max(0.0, value) for name, value in outside.items()}))
    return [ModuleRow(place, *row) for place, row in enumerate(rows)]
