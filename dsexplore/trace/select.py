"""Slices of a trace: which events, and nothing lost beside them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from fnmatch import translate
from typing import Any

import polars as pl

from dsexplore.errors import UsageError
from dsexplore.trace import schema
from dsexplore.trace.model import Tables


def select(tables: Tables, conditions: Mapping[str, Any]) -> Tables:
    """`Trace.where` on plain tables."""
    events = tables.events
    for name, wanted in conditions.items():
        events = events.filter(_condition(name, wanted))
    return replace(tables, events=events)


def _condition(name: str, wanted: Any) -> pl.Expr:
    if name == "module":
        pattern = _module_pattern(wanted)
        return pl.col("trigger").str.contains(pattern) | pl.col("owner").str.contains(pattern)
    if name not in schema.EVENTS:
        raise UsageError(f"where({name}=…): no such column; columns are module, {', '.join(schema.EVENTS)}")
    if wanted is None:
        return pl.col(name).is_null()
    values = list(wanted) if isinstance(wanted, (list, tuple, set, frozenset, range)) else [wanted]
    return pl.col(name).is_in(values)


def _module_pattern(wanted: str) -> str:
    """``a.*.b`` → a regular expression for those modules and all inside them, with or without the root's name."""
    body = translate(wanted).removeprefix("(?s:").removesuffix(r")\Z")
    return rf"^(?:[^.]+\.)?(?:{body})(?:\.|$)" if not re.match(r"\*", wanted) else rf"^(?:{body})(?:\.|$)"
