"""Filter the events of a trace, by the conditions of `Trace.where`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import replace
from fnmatch import fnmatchcase, translate
from typing import Any

import polars as pl
import torch

from dsexplore._internal.errors import UsageError
from dsexplore._internal.near_names import did_you_mean, listed, nearest
from dsexplore._internal.trace import schema
from dsexplore._internal.trace.collectives import OPS, PREFIXES_OF_OTHER_OPS
from dsexplore._internal.trace.tables import Tables

_OF_MODULES = ("owner", "trigger")
"""Columns that hold names of modules: a value that is not a known name may be a shell pattern."""
_VALUES: dict[str, tuple[str, ...]] = {"phase": schema.PHASES, "op": OPS}
"""{column with a fixed set of values: these}. A value that is neither in the set nor in the events is an error."""


def select(tables: Tables, conditions: Mapping[str, Any]) -> Tables:
    """Apply the conditions of `Trace.where` to plain tables.

    Raises:
        UsageError: an unknown column, a value that the column cannot be compared with, or an unknown phase or op.
    """
    events = tables.events
    masks = [_mask(tables, name, wanted) for name, wanted in conditions.items()]
    return replace(tables, events=events.filter(*masks) if masks else events)


def _mask(tables: Tables, name: str, wanted: Any) -> pl.Expr:
    """Return the mask of the events that meet one condition.

    Raises:
        UsageError: see `select`.
    """
    if name == "module":
        return _module_mask(tables.events, _several(wanted))
    if name == "row":
        return _row_mask(wanted)
    if name not in schema.EVENTS:
        near = did_you_mean(name, ["module", "row", *schema.EVENTS])
        raise UsageError(f"where({name}=…): no such column; columns are module, row, {', '.join(schema.EVENTS)}{near}")
    values = [wanted] if name == "shape" and _is_shape(wanted) else _several(wanted)
    if name in _OF_MODULES:
        names = _names(tables, name)
        values = [meant for value in values for meant in _names_meant(names, value)]
    return _is_in(tables, name, [_column_value(name, value) for value in values])


def _is_in(tables: Tables, name: str, values: list[Any]) -> pl.Expr:
    """Return the mask of the events whose column has one of `values`; None matches null."""
    present = [value for value in values if value is not None]
    if name in _VALUES:
        for value in present:
            check_value(tables, name, value)
    try:
        wanted = pl.Series(name, present, dtype=schema.EVENTS[name], strict=True)
    except (TypeError, OverflowError, pl.exceptions.PolarsError) as error:
        raise UsageError(
            f"where({name}={values[0]!r}): this column holds {schema.EVENTS[name]}: give such a value, or a list"
        ) from error
    mask = pl.col(name).is_in(wanted.implode()).fill_null(False)
    return mask | pl.col(name).is_null() if None in values else mask


def _row_mask(wanted: Any) -> pl.Expr:
    """Return the mask of the events at these positions in `Trace.events`.

    Raises:
        UsageError: a position is not a whole number.
    """
    try:
        positions = pl.Series("row", _several(wanted), dtype=pl.Int64, strict=True)
    except (TypeError, OverflowError, pl.exceptions.PolarsError) as error:
        raise UsageError(
            f"where(row={wanted!r}): give the position of an event in trace.events, or a list or range of positions"
        ) from error
    return pl.int_range(pl.len(), dtype=pl.Int64).is_in(positions.implode())


def _names_meant(names: Set[str], value: Any) -> list[Any]:
    """Return the names that match a shell pattern; `value` alone if it is one of the names or not a pattern."""
    is_pattern = isinstance(value, str) and value not in names and any(sign in value for sign in "*?[")
    return [name for name in names if fnmatchcase(name, value)] if is_pattern else [value]


def check_names(tables: Tables, conditions: Mapping[str, Any]) -> None:
    """Raise if a condition of `Trace.where` names an axis, group or module that the trace does not know.

    Raises:
        UsageError: a condition does; the message suggests the most similar name.
    """
    for name, wanted in conditions.items():
        for value in _several(wanted):
            if name == "module":
                check_module(tables, value)
            elif name not in _VALUES:
                check_value(tables, name, value)


def check_value(tables: Tables, name: str, value: Any, method: str = "where") -> None:
    """Raise if a trace does not know a phase, op, axis, group, owner or trigger.

    Args:
        tables: tables of the trace.
        name: column of the events; columns that do not hold names are not checked.
        value: value that the column is compared with.
        method: name of the method that was called, for the message.

    Raises:
        UsageError: no such value; the message lists the known names and suggests the most similar one.
    """
    fixed = _VALUES.get(name)
    if fixed is not None:
        is_other_op = name == "op" and isinstance(value, str) and value.startswith(PREFIXES_OF_OTHER_OPS)
        if value in fixed or is_other_op or (isinstance(value, str) and value in tables.events[name].unique()):
            return
        values: Iterable[str] = fixed
        text = ", ".join(values)
    else:
        names = _names(tables, name) if isinstance(value, str) and value else set()
        if not names or value in names or (name in _OF_MODULES and _names_meant(names, value) not in ([], [value])):
            return
        values = sorted(names)
        text = listed(values)
    raise UsageError(f"{method}({name}={value!r}): no such {name}; they are {text}{did_you_mean(value, values)}")


def check_module(tables: Tables, pattern: Any, method: str = "where") -> None:
    """Raise if no module of the trace matches `pattern`.

    Raises:
        UsageError: `pattern` is not a string, or no module matches it.
    """
    _check_pattern(pattern, method)
    modules = _names(tables, "module") if pattern else set()
    if not modules or modules_inside(modules, [pattern]):
        return
    raise UsageError(
        f"{method}(module={pattern!r}): no such module; names are those of trace.modules['module'], and * stands for "
        f"any text, as in '*.mlp'{_module_meant(pattern, modules)}"
    )


def _check_pattern(pattern: Any, method: str) -> None:
    if not isinstance(pattern, str):
        raise UsageError(f"{method}(module={pattern!r}): give a module's name or a shell pattern, 'layers.0*'")


def _module_meant(pattern: str, modules: set[str]) -> str:
    """Return a hint for a pattern that no module matches: a similar pattern that does, else the outermost modules."""
    parts = {part for name in modules for part in (name, name.partition(".")[2], f"*.{name.rpartition('.')[2]}")}
    words = {word for name in modules for word in name.split(".")}
    respelled = ".".join(word if word in words else nearest(word, words) or word for word in pattern.split("."))
    if modules_inside(modules, [respelled]):
        return f" (did you mean {respelled!r}?)"
    inside_root = {".".join(name.split(".")[1:2]) for name in modules} - {""}
    return did_you_mean(pattern, sorted(parts)) or f"; the outermost are {listed(sorted(inside_root or modules))}"


def _names(tables: Tables, name: str) -> set[str]:
    """Return the names a trace knows for a column, also those without events; empty for columns without names."""
    groups, events, parameters = tables.groups, tables.events, tables.parameters
    names: set[str] = set()
    if name == "group":
        names = {*groups["group"], *events["group"].unique()}
    elif name == "axis":
        names = {*groups["axis"].unique(), *events["axis"].unique()}
        for mesh in {tables.info.mesh, *groups["mesh"].unique(), *parameters["mesh"].unique()}:
            names |= {axis.partition("=")[0].strip() for axis in (mesh or "").split(",")}
    elif name in ("module", *_OF_MODULES):
        names = {*tables.modules["module"], *parameters["module"].unique()}
        names |= {*events["owner"].unique(), *events["trigger"].unique()}
    return {value for value in names if value}


def _several(wanted: Any) -> list[Any]:
    """Return the values of a condition: the members of a list, tuple, set, range or series, else the value itself."""
    return list(wanted) if isinstance(wanted, (list, tuple, Set, range, pl.Series)) else [wanted]


def _is_shape(wanted: Any) -> bool:
    return isinstance(wanted, (list, tuple)) and all(isinstance(size, int) for size in wanted)


def _column_value(name: str, value: Any) -> Any:
    """Return a value of a condition as the column holds it: a dtype as its name, a shape as a list."""
    if name == "dtype" and isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if name == "shape" and isinstance(value, tuple):
        return list(value)
    return value


def _module_mask(events: pl.DataFrame, patterns: Iterable[Any]) -> pl.Expr:
    """Return the mask of the events whose trigger or owner is inside a module that matches one of the patterns.

    Raises:
        UsageError: a pattern is not a string.
    """
    patterns = list(patterns)
    for pattern in patterns:
        _check_pattern(pattern, "where")
    names = set(events["trigger"].unique()) | set(events["owner"].unique())
    matching = pl.Series(list(modules_inside(names, patterns)), dtype=pl.String)
    return pl.col("trigger").is_in(matching.implode()) | pl.col("owner").is_in(matching.implode())


_END = r"\Z"
"""End of a pattern from ``fnmatch.translate``; it is removed, because the name of a submodule continues after a dot."""


def modules_inside(names: Iterable[str], patterns: Iterable[str]) -> set[str]:
    """Return the names that match one of some shell patterns; see `module_test`."""
    test = module_test(patterns)
    return {name for name in names if test(name)}


def module_test(patterns: Iterable[str]) -> Callable[[str], object]:
    """Return a function that is true for a module that matches a shell pattern or is inside one that does.

    A module may be named with or without the root's name.

    In a pattern, ``*`` stands for any text, including dots. Worked example: ``Llama.layers.0.attn`` is inside
    ``Llama.layers.0`` and ``Llama``, so ``layers.0``, ``Llama``, ``layers.*`` and ``*attn`` all match it; ``layers``
    matches it too, ``attn`` and ``layers.1`` do not.
    """
    bodies = [translate(pattern)[: -len(_END)] for pattern in patterns]
    return re.compile(rf"(?:[^.]*\.)?(?:{'|'.join(bodies)})(?=\.|\Z)").match if bodies else lambda _: None


def certain_text(pattern: str) -> str:
    """Return the longest text that the name of every module matching the shell pattern contains.

    Worked example: ``layers.`` for ``layers.?.mlp*``; text after a set, as in ``layers.[01].mlp``, is not considered.
    """
    return max(re.split(r"[*?]", pattern.partition("[")[0]), key=len)
