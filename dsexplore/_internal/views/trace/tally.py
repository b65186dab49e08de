"""Small tables of sums over events for static sections and figures: by place and axis, by op, by message size.

Each has at most a few hundred rows, whatever the number of events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from dsexplore._internal.units import format_bytes
from dsexplore._internal.views.trace import byte_sizes

MOST_ROWS, MOST_COLUMNS = 16, 10
OTHERS = "(all others)"
"""Name of the last row or column of a grid, if there are more than these."""


@dataclass(frozen=True)
class Grid:
    """Numbers with named rows and columns."""

    rows: list[str]
    columns: list[str]
    values: npt.NDArray[np.float64]
    """Array of shape (rows, columns)."""
    unknown: npt.NDArray[np.float64] | None = None
    """Number of unknown summands of each value; None if all are known."""

    @property
    def signed_values(self) -> npt.NDArray[np.float64]:
        """Values as in `byte_sizes.signed`."""
        return byte_sizes.signed(self.values, self.unknown)


def grid(
    totals: Mapping[tuple[str, str], float],
    most: int = MOST_ROWS,
    unknown: Mapping[tuple[str, str], float] | None = None,
) -> Grid:
    """Build a grid, with the largest rows and columns first.

    Args:
        totals: {(row, column): bytes}.
        most: maximal number of rows; further rows, and columns beyond `MOST_COLUMNS`, are merged into `OTHERS`.
        unknown: {(row, column): number of unknown sizes}; None if all are known.
    """
    known = {**dict.fromkeys(unknown or {}, 0.0), **totals}
    rows = _ranked([(row, size) for (row, _), size in known.items()], most)
    columns = _ranked([(column, size) for (_, column), size in known.items()], MOST_COLUMNS)
    values = np.zeros((len(rows), len(columns)))
    missing = np.zeros_like(values)
    row_of, column_of = ({name: i for i, name in enumerate(names)} for names in (rows, columns))
    for cells, into in ((totals, values), (unknown or {}, missing)):
        for (row, column), number in cells.items():
            # a name without a place of its own is in the last row or column, `OTHERS`
            into[row_of.get(row, len(rows) - 1), column_of.get(column, len(columns) - 1)] += number
    return Grid(rows, columns, values, missing if unknown else None)


def _ranked(sizes: Iterable[tuple[str, float]], most: int) -> list[str]:
    """Return the names by descending bytes; if there are more than ``most``, the last is `OTHERS`."""
    sums: dict[str, float] = {}
    for name, size in sizes:
        sums[name] = sums.get(name, 0) + size
    names = sorted(sums, key=lambda name: (-sums[name], name))
    return names if len(names) <= most else [*names[: most - 1], OTHERS]


def op_by_phase(events: pl.DataFrame, column: str = "wire_bytes") -> pl.DataFrame:
    """Count events and sum bytes per op and phase; ops in order of their bytes.

    Columns: op, phase, count, bytes, unknown (number of events of unknown size).
    """
    return (
        events.group_by("op", "phase")
        .agg(pl.len().alias("count"), pl.col(column).sum().alias("bytes"), pl.col(column).null_count().alias("unknown"))
        .with_columns(pl.col("bytes").sum().over("op").alias("all"))
        .sort("all", "op", "phase", descending=[True, False, False])
        .drop("all")
    )


def message_sizes(events: pl.DataFrame) -> pl.DataFrame:
    """Count messages per op and power of two.

    Columns: op, size (lower bound in bytes, 0 for empty messages, null for unknown ones), count, message_bytes.
    """
    return (
        events.group_by("op", _power_of_two().alias("size"))
        .agg(pl.len().alias("count"), pl.col("message_bytes").sum())
        .sort("size", "op", nulls_last=True)
    )


def bus_bandwidth(events: pl.DataFrame) -> pl.DataFrame:
    """Return the median bus bandwidth per op and power of two, for events with measured durations.

    Columns: op, size (bytes), count, gb_per_s (1e9 bytes; wire bytes over duration).
    """
    timed = events.filter(
        (pl.col("end") > pl.col("start")) & (pl.col("message_bytes") > 0) & pl.col("wire_bytes").is_not_null()
    )
    return (
        timed.group_by("op", _power_of_two().alias("size"))
        .agg(
            pl.len().alias("count"),
            (pl.col("wire_bytes") / (pl.col("end") - pl.col("start"))).median().alias("gb_per_s"),
        )
        .sort("size", "op")
    )


def size_range(low: int | None) -> str:
    """Return the text of the sizes from a power of two to its double; ``empty`` for 0, ``size unknown`` for None."""
    if low is None:
        return format_bytes(None)
    return f"{format_bytes(low)} – {format_bytes(2 * low)}" if low else "empty"


def _power_of_two() -> pl.Expr:
    size = pl.col("message_bytes")
    floor = pl.lit(2.0).pow(size.cast(pl.Float64).log(2.0).floor())
    return pl.when(size > 0).then(floor).when(size == 0).then(0).cast(pl.Int64)
