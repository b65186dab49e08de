"""The invariants of every trace's tables. Views rely on them, so a file that breaks one is refused when read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import polars as pl

from dsexplore._internal.mesh import parse_mesh
from dsexplore._internal.trace.limits import MOST_ELEMENTS, MOST_NUMBER, MOST_RANKS
from dsexplore._internal.trace.represented_ranks import bounds_in
from dsexplore._internal.trace.tables import Tables, TraceInfo

_MAYBE_UNKNOWN = {
    "events": (
        *("batch", "peer", "root", "send_splits", "recv_splits", "start", "end", "state", "waited", "group_seq"),
        *("same_input", "message_bytes", "wire_bytes"),
    ),
    "kernels": ("waits_for",),
    "io": ("bytes", "end"),
}
"""{table: columns in which a value may be missing}."""
_RANKS = ("rank", "ranks", "peer", "root")
_SPLITS = ("send_splits", "recv_splits")
_POSITIVE = ("group_size", "size")
_SIGNED = ("before", "segment", "seq", "batch", "waits_for", "start", "end")
"""Columns whose values may be negative: places in an order, and moments."""
_ANY_NUMBER = ("norm", "mean", "min", "max", "projection", "hash")
"""Columns of values that the program computed."""
_DEEPEST = 10_000
"""Largest depth of a module."""


def checked_tables(tables: Tables) -> Tables:
    """Return `tables` after checking that a recording can have all of their values.

    Raises:
        ValueError: no recording can have a value; the message names table, column and value.
    """
    for problem in _problems(tables):
        raise ValueError(problem)
    return tables


def _problems(tables: Tables) -> Iterator[str]:
    """Yield a sentence for each value that no recording can have."""
    yield from _info_errors(tables.info)
    for name in ("events", "parameters", "modules", "groups", "kernels", "memory", "numerics", "differing", "io"):
        table: pl.DataFrame = getattr(tables, name)
        if table.is_empty():
            continue
        for column, facts in _facts(table).items():
            yield from _missing(name, column, facts)
            if column not in _ANY_NUMBER:
                yield from _out_of_bounds(name, column, facts, tables.info.world_size)
    yield from _module_errors(tables.modules)


def _info_errors(info: TraceInfo) -> Iterator[str]:
    """Yield the errors of a trace's info."""
    if not 0 < info.world_size <= MOST_RANKS:
        yield f"its world_size is {info.world_size}, and a job has 1 to {MOST_RANKS:,} ranks"
    stood_for: Iterable[int] = (rank for text in info.stands_for for rank in bounds_in(text))
    for rank in (*info.ranks, *stood_for):
        if not 0 <= rank < info.world_size:
            yield f"it is of rank {rank}, and the world has {info.world_size:,} ranks"
    if parse_mesh(info.mesh).size > MOST_RANKS:
        yield f"its mesh is {info.mesh}, and a job has 1 to {MOST_RANKS:,} ranks"
    try:
        json.loads(info.schedule or "null")
    except ValueError as error:
        yield f"its schedule is not JSON: {error}"


def _facts(table: pl.DataFrame) -> dict[str, dict[str, Any]]:
    """Return, by column, the number of ``missing`` values, those ``inside`` lists, and the ``least`` and ``most``."""
    columns = {}
    for name, kind in table.schema.items():
        values = pl.col(name)
        facts = [values.null_count().alias("missing")]
        if isinstance(kind, pl.List):
            inner = values.filter(values.list.len() > 0).explode()
            facts.append(inner.null_count().alias("inside"))
            facts += [inner.min().alias("least"), inner.max().alias("most")]
        elif kind.is_numeric():
            facts += [values.min().alias("least"), values.max().alias("most")]
        # An expression, because it keeps a column that has one value in all rows as that one value.
        columns[name] = table.select(name).select(facts).row(0, named=True)
    return columns


def _missing(name: str, column: str, facts: dict[str, Any]) -> Iterator[str]:
    if facts["missing"] and column not in _MAYBE_UNKNOWN.get(name, ()):
        yield f"table {name}: {facts['missing']:,} values of {column} are missing"
    if facts.get("inside"):
        yield f"table {name}: {column} has lists with missing values"


def _out_of_bounds(name: str, column: str, facts: dict[str, Any], world_size: int) -> Iterator[str]:
    """Yield an error if the least or the largest value of a column is not possible."""
    least, most = facts.get("least"), facts.get("most")
    if least is None or most is None:
        return
    largest_allowed = {
        "depth": _DEEPEST,
        **dict.fromkeys(_SPLITS, MOST_ELEMENTS),
        **dict.fromkeys(_RANKS, world_size - 1),
        **dict.fromkeys(_POSITIVE, MOST_RANKS),
    }
    upper = largest_allowed.get(column, MOST_NUMBER)
    lower = -MOST_NUMBER if column in _SIGNED else int(column in _POSITIVE)
    for value in (least, most):
        if not lower <= value <= upper:
            yield f"table {name}: {column} is {value}, and may be {lower} to {upper}"


def _module_errors(modules: pl.DataFrame) -> Iterator[str]:
    """Yield an error if a module's parent is not above it, as a walk to the root would not end."""
    parents = modules.select(parent="module", parent_depth="depth")
    wrong = modules.join(parents, on="parent").filter(pl.col("parent_depth") >= pl.col("depth"))
    if len(wrong):
        module, parent = wrong["module"][0], wrong["parent"][0]
        yield f"table modules: the parent of {module!r} is {parent!r}, which is not above it"
