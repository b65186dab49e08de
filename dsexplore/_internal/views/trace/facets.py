"""Columns of events as small integers, so that a million of them are filtered and summed in milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from dsexplore._internal.trace import schema

_PHASES = {phase: i for i, phase in enumerate(schema.PHASES)}
_MULTIPLIER = 0x9E3779B97F4A7C15  # odd, so that no bit of a hash is lost


@dataclass(frozen=True)
class Facet:
    """One encoded column: ``labels[codes[i]]`` is the value of row i."""

    labels: list[Any]
    """Distinct values, sorted; phases in the order in which a step runs them."""
    codes: npt.NDArray[np.integer[Any]]

    def test(self, wanted: Any) -> npt.NDArray[np.bool_]:
        """Return the mask of rows whose value is ``wanted``, or is in ``wanted`` if that is a list, tuple or set."""
        values = wanted if isinstance(wanted, (list, tuple, set)) else [wanted]
        codes = [code for code, label in enumerate(self.labels) if label in values]
        return self.codes == codes[0] if len(codes) == 1 else np.isin(self.codes, codes)


class Facets(dict[str, Facet]):
    """The facets of a table by column name; each column is encoded on first access."""

    def __init__(self, frame: pl.DataFrame) -> None:
        super().__init__()
        self._frame = frame

    def __missing__(self, name: str) -> Facet:
        self[name] = value = facet(self._frame[name])
        return value


def facet(column: pl.Series) -> Facet:
    """Encode a column of strings or whole numbers, with its distinct values sorted."""
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
    order = sorted(range(len(values)), key=lambda i: _order(column.name, values[i]))
    lookup = np.zeros(int(distinct.max()) + 1, np.int32)
    lookup[distinct[order]] = np.arange(len(order), dtype=np.int32)
    return Facet([values[i] for i in order], lookup[raw])


def row_numbers(frame: pl.DataFrame, columns: Sequence[str]) -> pl.Series:
    """Return one uint64 hash per row: equal if all these columns are equal, and practically only then."""
    mixed = pl.lit(0, pl.UInt64)
    for column in columns:
        mixed = mixed * pl.lit(_MULTIPLIER, pl.UInt64) + pl.col(column).hash()
    return frame.select(mixed.hash().alias("number")).to_series()


def _order(name: str, value: Any) -> tuple[int, Any]:
    """Return the key by which values of a column are sorted."""
    return (_PHASES.get(value, len(_PHASES)) if name == "phase" else 0, value)
