"""What two traces communicate differently."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from dsexplore.display import Displayable
from dsexplore.errors import UsageError
from dsexplore.trace.merge import merge_modules
from dsexplore.trace.trace import Trace

KEYS = ("module", "op", "axis", "phase")
_SIZES = ("count", "message_bytes", "wire_bytes")

COLUMNS: dict[str, pl.DataType] = {
    "module": pl.String(),  # owner
    "op": pl.String(),
    "axis": pl.String(),
    "phase": pl.String(),
    "change": pl.String(),  # "+" only after, "-" only before, "±" other count or bytes, "=" the same
    **{f"{size}_{when}": pl.Int64() for size in _SIZES for when in ("before", "after", "change")},
}


@dataclass(frozen=True)
class TraceDiff(Displayable):
    """Two traces side by side: ``before`` and ``after``. Counts and bytes are sums over all ranks of each."""

    before: Trace
    after: Trace

    def to_frame(self, *, unchanged: bool = False) -> pl.DataFrame:
        """One row per module × op × axis × phase that differs; columns: `COLUMNS`.

        Modules stand in the order of the joined tree, the order of `modules`.

        Args:
            unchanged: also the rows that are the same in both.
        """
        joined = _totals(self.before).join(_totals(self.after), on=KEYS, how="full", coalesce=True, suffix="_after")
        zero = [pl.col(size, f"{size}_after").fill_null(0) for size in _SIZES]
        rows = joined.with_columns(*zero).select(*KEYS, _change(), *_sizes())
        order = {name: index for index, name in enumerate(self.modules["module"])}
        place = pl.col("module").replace_strict(order, default=-1, return_dtype=pl.Int64)
        rows = rows.sort(place, *KEYS)
        return rows if unchanged else rows.filter(pl.col("change") != "=")

    @property
    def modules(self) -> pl.DataFrame:
        """The modules of both traces as one tree; columns: `schema.MODULES`."""
        return merge_modules([self.before.modules, self.after.modules])

    def __len__(self) -> int:
        """The number of rows that differ; 0 where both communicate the same."""
        return self.to_frame().height


def diff(before: Trace, after: Trace) -> TraceDiff:
    """What ``after`` communicates more and less than ``before``; both as they are now.

    Raises:
        UsageError: one of them is no trace.
    """
    for given in (before, after):
        if not isinstance(given, Trace):
            raise UsageError(f"a trace is compared with a trace, not with {given!r}: of a saved one, give load(path)")
    return TraceDiff(Trace(before.tables), Trace(after.tables))


def _totals(trace: Trace) -> pl.DataFrame:
    return (
        trace.events.rename({"owner": "module"})
        .group_by(*KEYS)
        .agg(pl.len().cast(pl.Int64).alias("count"), pl.col("message_bytes", "wire_bytes").sum())
    )


def _change() -> pl.Expr:
    same = pl.all_horizontal(pl.col(size) == pl.col(f"{size}_after") for size in _SIZES)
    return (
        pl.when(same)
        .then(pl.lit("="))
        .when(pl.col("count") == 0)
        .then(pl.lit("+"))
        .when(pl.col("count_after") == 0)
        .then(pl.lit("-"))
        .otherwise(pl.lit("±"))
        .alias("change")
    )


def _sizes() -> list[pl.Expr]:
    columns = []
    for size in _SIZES:
        before, after = pl.col(size), pl.col(f"{size}_after")
        columns += [
            before.alias(f"{size}_before"),
            after.alias(f"{size}_after"),
            (after - before).alias(f"{size}_change"),
        ]
    return columns
