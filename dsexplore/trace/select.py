"""Slices of a trace: the events that meet conditions, with all modules, parameters and groups."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import replace
from fnmatch import translate
from typing import Any

import polars as pl
import torch

from dsexplore.errors import UsageError
from dsexplore.trace import schema
from dsexplore.trace.collectives import OPS
from dsexplore.trace.tables import Tables

_KNOWN: dict[str, tuple[str, ...]] = {"phase": schema.PHASES, "op": OPS}
"""Columns with a fixed set of values: any other value that no event has is refused."""


def select(tables: Tables, conditions: Mapping[str, Any]) -> Tables:
    """`Trace.where` on plain tables.

    Raises:
        UsageError: no such column, a value that its type cannot be compared with, or a phase or op that is none.
    """
    events = tables.events
    tests = [_condition(events, name, wanted) for name, wanted in conditions.items()]
    return replace(tables, events=events.filter(*tests) if tests else events)


def _condition(events: pl.DataFrame, name: str, wanted: Any) -> pl.Expr:
    if name == "module":
        return _in_module(events, _several(wanted))
    if name not in schema.EVENTS:
        raise UsageError(f"where({name}=…): no such column; columns are module, {', '.join(schema.EVENTS)}")
    values = [wanted] if name == "shape" and _is_shape(wanted) else _several(wanted)
    return _is_one_of(events, name, [_as_column_value(name, value) for value in values])


def _is_one_of(events: pl.DataFrame, name: str, values: list[Any]) -> pl.Expr:
    """Whether a column has one of the values; null is one like others, as in ``where(batch=None)``."""
    present = [value for value in values if value is not None]
    for value in present:
        _check_known(events, name, value)
    try:
        wanted = pl.Series(name, present, dtype=schema.EVENTS[name], strict=True)
    except (TypeError, OverflowError, pl.exceptions.PolarsError) as error:
        kind = schema.EVENTS[name]
        raise UsageError(f"where({name}={values[0]!r}): this column holds {kind}: give such a value, or a list") from (
            error
        )
    test = pl.col(name).is_in(wanted.implode()).fill_null(False)
    return test | pl.col(name).is_null() if None in values else test


def _check_known(events: pl.DataFrame, name: str, value: Any) -> None:
    known = _KNOWN.get(name)
    if known is None or value in known or (isinstance(value, str) and ":" in value):
        return
    if not isinstance(value, str) or value not in events[name].unique():
        raise UsageError(f"where({name}={value!r}): no such {name}; they are {', '.join(known)}")


def _several(wanted: Any) -> list[Any]:
    return list(wanted) if isinstance(wanted, (list, tuple, Set, range, pl.Series)) else [wanted]


def _is_shape(wanted: Any) -> bool:
    return isinstance(wanted, (list, tuple)) and all(isinstance(size, int) for size in wanted)


def _as_column_value(name: str, value: Any) -> Any:
    if name == "dtype" and isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if name == "shape" and isinstance(value, tuple):
        return list(value)
    return value


def _in_module(events: pl.DataFrame, patterns: Iterable[Any]) -> pl.Expr:
    wanted = list(patterns)
    for pattern in wanted:
        if not isinstance(pattern, str):
            raise UsageError(f"where(module={pattern!r}): give a module's name or a shell pattern, 'layers.0*'")
    names = set(events["trigger"].unique()) | set(events["owner"].unique())
    matching = pl.Series(list(modules_inside(names, wanted)), dtype=pl.String)
    return pl.col("trigger").is_in(matching.implode()) | pl.col("owner").is_in(matching.implode())


_END = r"\Z"
"""The end of what ``fnmatch.translate`` returns; removed, as a name inside a module goes on behind a dot."""


def modules_inside(names: Iterable[str], patterns: Iterable[str]) -> set[str]:
    """The modules that match a shell pattern, or are inside of one that does, with or without the root's name.

    In a pattern, ``*`` stands for any text, dots too. Worked example: ``Llama.layers.0.attn`` is inside of
    ``Llama.layers.0`` and of ``Llama``, so ``layers.0``, ``Llama``, ``layers.*`` and ``*attn`` all match it;
    ``layers`` matches it too, ``attn`` and ``layers.1`` do not.
    """
    bodies = [translate(pattern)[: -len(_END)] for pattern in patterns]
    match = re.compile(rf"(?:[^.]*\.)?(?:{'|'.join(bodies)})(?=\.|\Z)").match
    return {name for name in names if match(name)} if bodies else set()
