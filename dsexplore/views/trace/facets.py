"""Columns of events as small integers: what makes a million of them quick to filter and to sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from dsexplore.trace import schema

_MULTIPLIER = 0x9E3779B97F4A7C15  # odd, so that no bit of a hash is lost


@dataclass(frozen=True)
class Facet:
    """One column: ``labels[codes[i]]`` is the value of row i."""

    labels: list[Any]
    """Distinct values, sorted; phases in the order a step runs them."""
    codes: npt.NDArray[np.int32]

    def test(self, codes: npt.NDArray[Any], wanted: Any) -> npt.NDArray[np.bool_]:
        """Which of some codes stand for a label, or for one of a list of labels."""
        values = wanted if isinstance(wanted, (list, tuple, set)) else [wanted]
        found = [code for code, label in enumerate(self.labels) if label in values]
        return codes == found[0] if len(found) == 1 else np.isin(codes, found)


def facet(column: pl.Series) -> Facet:
    """Encode a column of strings or whole numbers."""
    if not len(column):
        return Facet([], np.zeros(0, np.int32))
    if column.dtype.is_integer():
        raw = column.to_numpy().astype(np.int64)
        raw -= raw.min()
        distinct = np.flatnonzero(np.bincount(raw)) if raw.max() < 10_000_000 else np.unique(raw)
        values: list[Any] = [int(number) + int(column.min() or 0) for number in distinct]  # type: ignore[arg-type]
    else:
        categories = column.cast(pl.Categorical)
        raw = categories.to_physical().to_numpy()
        once = categories.unique()
        distinct, values = once.to_physical().to_numpy(), once.cast(pl.String).to_list()
    order = sorted(range(len(values)), key=lambda i: _place(column.name, values[i]))
    lookup = np.zeros(int(distinct.max()) + 1, np.int32)
    lookup[distinct[order]] = np.arange(len(order), dtype=np.int32)
    return Facet([values[i] for i in order], lookup[raw])


def row_numbers(frame: pl.DataFrame, columns: Sequence[str]) -> pl.Series:
    """One number (uint64) per row: equal where all these columns are equal, and practically only there."""
    mixed = pl.lit(0, pl.UInt64)
    for column in columns:
        mixed = mixed * pl.lit(_MULTIPLIER, pl.UInt64) + pl.col(column).hash()
    return frame.select(mixed.hash().alias("number")).to_series()


def lines(frame: pl.DataFrame, columns: Sequence[str]) -> npt.NDArray[np.int64]:
    """The line that each row is on where equal rows share one, in the order in which lines first appear."""
    numbers = row_numbers(frame, columns).to_frame()
    distinct = numbers.unique(maintain_order=True).with_row_index("line")
    joined = numbers.join(distinct, on="number", how="left", maintain_order="left")
    return joined["line"].to_numpy().astype(np.int64)


def _place(name: str, value: Any) -> tuple[int, Any]:
    order = {phase: i for i, phase in enumerate(schema.PHASES)}
    return (order.get(value, len(order)) if name == "phase" else 0, value)
