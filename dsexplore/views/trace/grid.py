"""`Grid`: numbers with named rows and columns; a heatmap shows the largest ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MOST_ROWS, MOST_COLUMNS = 16, 10
OTHERS = "(all others)"


@dataclass(frozen=True)
class Grid:
    """Numbers with named rows and columns."""

    rows: list[str]
    columns: list[str]
    values: npt.NDArray[np.float64]
    """Array of shape (rows, columns)."""


def grid(totals: Mapping[tuple[str, str], float], most: int = MOST_ROWS) -> Grid:
    """Build a grid from {(row, column): bytes}, largest rows and columns first; those beyond the limit are merged."""
    rows = _ranked([(row, size) for (row, _), size in totals.items()], most)
    columns = _ranked([(column, size) for (_, column), size in totals.items()], MOST_COLUMNS)
    values = np.zeros((len(rows), len(columns)))
    row_of, column_of = ({name: i for i, name in enumerate(names)} for names in (rows, columns))
    for (row, column), size in totals.items():
        values[row_of.get(row, -1), column_of.get(column, -1)] += size
    return Grid(rows, columns, values)


def _ranked(sizes: Iterable[tuple[str, float]], most: int) -> list[str]:
    """Return names by their bytes, the largest first; if there are too many, the last stands for all others."""
    sums: dict[str, float] = {}
    for name, size in sizes:
        sums[name] = sums.get(name, 0) + size
    names = sorted(sums, key=lambda name: (-sums[name], name))
    return names if len(names) <= most else [*names[: most - 1], OTHERS]
