"""Compare the traffic of two traces per module, op, axis and phase."""

from __future__ import annotations

import polars as pl

from dsexplore._internal.trace.merge import merge_modules
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.trace.unknown_sizes import known_sum

KEYS = ("module", "op", "axis", "phase")
_SIZES = ("count", "message_bytes", "wire_bytes")

COLUMNS: dict[str, pl.DataType] = {
    "module": pl.String(),  # owner
    "op": pl.String(),
    "axis": pl.String(),
    "phase": pl.String(),
    "change": pl.String(),  # "+" only after, "-" only before, "±" other count or bytes, "=" the same
    **{f"{size}_{when}": pl.Int64() for size in _SIZES for when in ("before", "after", "change")},  # null: unknown
}


def compare(before: Tables, after: Tables) -> pl.DataFrame:
    """Return count and bytes of both traces per module × op × axis × phase; columns: `COLUMNS`.

    Rows are in the order of the joined module tree; unchanged rows are included.
    """
    joined = _totals(before).join(_totals(after), on=KEYS, how="full", coalesce=True, suffix="_after")
    absent = {when: pl.col(f"count{when}").is_null() for when in ("", "_after")}
    zero_where_absent = [
        pl.when(is_absent).then(pl.lit(0, pl.Int64)).otherwise(pl.col(f"{size}{when}")).alias(f"{size}{when}")
        for size in _SIZES
        for when, is_absent in absent.items()
    ]
    rows = joined.with_columns(*zero_where_absent).select(*KEYS, _change(), *_columns_of_sizes())
    modules = merge_modules([before.modules, after.modules])["module"]
    order = {name: index for index, name in enumerate(modules)}
    place = pl.col("module").replace_strict(order, default=-1, return_dtype=pl.Int64)
    return rows.sort(place, *KEYS)


def _totals(tables: Tables) -> pl.DataFrame:
    return (
        tables.events.rename({"owner": "module"})
        .group_by(*KEYS)
        .agg(pl.len().cast(pl.Int64).alias("count"), *(known_sum(pl.col(size)).alias(size) for size in _SIZES[1:]))
    )


def _change() -> pl.Expr:
    """Return the column ``change``: ``+``, ``-``, ``±`` or ``=``, see `COLUMNS`."""
    same = pl.all_horizontal(pl.col(size).eq_missing(pl.col(f"{size}_after")) for size in _SIZES)
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


def _columns_of_sizes() -> list[pl.Expr]:
    columns = []
    for size in _SIZES:
        before, after = pl.col(size), pl.col(f"{size}_after")
        columns += [
            before.alias(f"{size}_before"),
            after.alias(f"{size}_after"),
            (after - before).alias(f"{size}_change"),
        ]
    return columns
