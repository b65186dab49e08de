"""What holds in the tables of every trace: views rely on it, so a file that says otherwise is refused when read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import polars as pl

from dsexplore.mesh import parse_mesh
from dsexplore.trace.limits import MOST_RANKS, MOST_TIME
from dsexplore.trace.represented_ranks import bounds_in
from dsexplore.trace.tables import Tables, TraceInfo

_MAYBE_UNKNOWN = {
    "events": ("batch", "peer", "root", "send_splits", "recv_splits", "start", "end", "state", "waited", "group_seq"),
    "kernels": ("waits_for",),
}
"""{table: columns in which a value may be missing}."""
_RANKS = ("rank", "ranks", "peer", "root")
_FROM_ONE = ("group_size", "size")
_SIGNED = ("before", "segment", "seq", "batch", "waits_for", "start", "end")
"""Columns whose values may be negative: places in an order, and moments."""
_ANY_NUMBER = ("norm", "mean", "min", "max", "projection", "hash")
"""Columns of values that the program computed."""
_DEEPEST = 10_000


def check_tables(tables: Tables) -> None:
    """Raise unless all values are ones that a recording can have.

    Raises:
        ValueError: one is not; the message names table, column and value.
    """
    for problem in _problems(tables):
        raise ValueError(problem)


def _problems(tables: Tables) -> Iterator[str]:
    yield from _of_info(tables.info)
    for name in ("events", "parameters", "modules", "groups", "kernels", "memory", "numerics", "differing"):
        table: pl.DataFrame = getattr(tables, name)
        yield from _missing(name, table)
        for column, kind in table.schema.items():
            if column in _ANY_NUMBER:
                continue
            if kind.is_numeric() or isinstance(kind, pl.List):
                yield from _out_of_bounds(name, table[column], tables.info.world_size)
    yield from _of_modules(tables.modules)


def _of_info(info: TraceInfo) -> Iterator[str]:
    if not 0 < info.world_size <= MOST_RANKS:
        yield f"its world_size is {info.world_size}, and a job has 1 to {MOST_RANKS:,} ranks"
    stood_for: Iterable[int] = (rank for text in info.stands_for for rank in bounds_in(text))
    for rank in (*info.ranks, *stood_for):
        if not 0 <= rank < info.world_size:
            yield f"it is of rank {rank}, and the world has {info.world_size:,} ranks"
    if parse_mesh(info.mesh).size > MOST_RANKS:
        yield f"its mesh is {info.mesh}, and a job has 1 to {MOST_RANKS:,} ranks"
    if info.schedule:
        json.loads(info.schedule)


def _missing(name: str, table: pl.DataFrame) -> Iterator[str]:
    for column in table.columns:
        values = table[column]
        may_be_missing = column in _MAYBE_UNKNOWN.get(name, ())
        if values.null_count() and not may_be_missing:
            yield f"in its table {name}, {values.null_count():,} values of {column} are missing"
        if isinstance(values.dtype, pl.List) and values.list.drop_nulls().list.len().sum() != values.list.len().sum():
            yield f"in its table {name}, {column} has lists with missing values"


def _out_of_bounds(name: str, values: pl.Series, world_size: int) -> Iterator[str]:
    column = values.name
    is_list = isinstance(values.dtype, pl.List)
    least: Any
    most: Any
    least, most = (values.list.min().min(), values.list.max().max()) if is_list else (values.min(), values.max())
    if least is None or most is None:
        return
    above = {"depth": _DEEPEST, **dict.fromkeys(_RANKS, world_size - 1), **dict.fromkeys(_FROM_ONE, MOST_RANKS)}
    below = -MOST_TIME if column in _SIGNED else int(column in _FROM_ONE)
    for value in (least, most):
        if not below <= value <= above.get(column, MOST_TIME):
            yield f"in its table {name}, {column} is {value}, and may be {below} to {above.get(column, MOST_TIME)}"


def _of_modules(modules: pl.DataFrame) -> Iterator[str]:
    """Yield an error if a module's parent is not above it: one would walk up without end."""
    parents = modules.select(parent="module", above="depth")
    below = modules.join(parents, on="parent").filter(pl.col("above") >= pl.col("depth"))
    if len(below):
        module, parent = below["module"][0], below["parent"][0]
        yield f"in its table modules, the parent of {module!r} is {parent!r}, which is not above it"
