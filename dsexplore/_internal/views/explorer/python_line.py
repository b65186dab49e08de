"""The line of Python that finds what is selected in the explorer: ``trace.where(phase="backward", module="layers.3")``.

A filter and a selected row are conditions already. The events of a clicked mark, of a range of the timeline or of a
rank of the map are described by their positions where these are consecutive, else by the values that they alone have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from glob import escape
from typing import Any

import numpy as np

from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.views.explorer.selected_events import SelectedEvents
from dsexplore._internal.views.explorer.selection import Filters
from dsexplore._internal.views.trace.event_codes import EventCodes
from dsexplore._internal.views.trace.pivot import Mask

Conditions = dict[str, Any]
"""Arguments of `Trace.where`."""

_COLUMNS = ("rank", "step", "phase", "op", "axis", "group", "owner", "cause", "source", "message_bytes")
"""Columns whose values can describe events; the first are kept where fewer do."""
_MOST_RUNS = 2_000
"""Runs of consecutive positions that a line lists at most."""
_SHORT = 120
"""Characters of positions that need no other description."""


def variable_of(trace: Trace) -> str:
    """Return the name that a notebook's variable gives the trace; ``trace`` if there is none."""
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    names = [name for name, value in shell.user_ns.items() if value is trace] if shell is not None else []
    return min(names, key=lambda name: name.startswith("_"), default="trace")


def python_line(selected: SelectedEvents, variable: str) -> str:
    """Return the line that finds the selected events; empty if they have no description that is short enough."""
    codes, selection = selected.codes, selected.selection
    if selection.mark is not None:
        described = _described(codes, selection.mark.mask)
        return "" if described is None else _written(variable, described)
    filters = selection.filters
    conditions = [_of_filters(filters), _of_modules(codes, selected.rows)]
    if filters.picks:
        picked = _described(codes, np.logical_and.reduce([pick.mask for pick in filters.picks.values()]))
        if picked is None:
            return ""
        conditions.insert(0, picked)
    joined = [conditions[0]]
    for more in conditions[1:]:
        if joined[-1].keys() & more.keys():
            joined.append(more)
        else:
            joined[-1] = {**joined[-1], **more}
    return _written(variable, *joined)


def _of_filters(filters: Filters) -> Conditions:
    module = {"module": filters.module} if filters.module else {}
    return {**filters.facets, **module, **({"implicit": True} if filters.implicit else {})}


def _of_modules(codes: EventCodes, rows: list[int]) -> Conditions:
    """Return the conditions that the owner is inside the modules of these rows; none for all modules."""
    tree, chosen = codes.tree, np.zeros(len(codes.tree), bool)
    for row, end in codes.spans(rows):
        chosen[row:end] = True
    if not rows or chosen.all():
        return {}
    names = [tree.names[row] for row in rows]
    pattern = _joint(names)
    if pattern and all(names):
        matched = codes.matched(pattern)
        if np.array_equal(matched.owners, chosen) and np.array_equal(codes.in_modules(matched), codes.inside(rows)):
            return {"module": pattern}
    inside = [f"{escape(tree.names[row])}.*" for row, end in codes.spans(rows) if end > row + 1]
    return {"owner": [*names, *inside]}


def _joint(names: list[str]) -> str:
    """Return one shell pattern for names that differ in some of their parts: ``Net.layers.*.up``."""
    parts = [name.split(".") for name in names]
    if len({len(path) for path in parts}) > 1:
        return ""
    return ".".join(escape(level[0]) if len(set(level)) == 1 else "*" for level in zip(*parts, strict=True))


def _described(codes: EventCodes, mask: Mask) -> Conditions | None:
    """Return conditions that just the events in the mask meet, or None if no short ones do."""
    if mask.all():
        return {}
    edges = np.flatnonzero(np.diff(mask, prepend=False, append=False)).tolist()
    runs = [range(*edge) for edge in zip(edges[::2], edges[1::2], strict=True)]
    rows: Conditions | None = {"row": runs} if len(runs) <= _MOST_RUNS else None
    if rows is not None and len(_literal(runs)) <= _SHORT:
        return rows
    values = _of_values(codes, mask)
    if values is None or (rows is not None and len(_literal(runs)) < len(_written("", values))):
        return rows
    return values


def _of_values(codes: EventCodes, mask: Mask) -> Conditions | None:
    """Return the fewest columns whose values only the events in the mask have together, or None."""
    tests: dict[str, Mask] = {}
    held: Conditions = {}
    for name in _COLUMNS:
        if codes.tables.events[name].null_count():  # sizes that a file does not tell
            continue
        facet = codes.facets[name]
        is_present = np.bincount(facet.codes[mask], minlength=len(facet.labels)) > 0
        if not is_present.all():
            held[name] = [label for label, kept in zip(facet.labels, is_present.tolist(), strict=True) if kept]
            tests[name] = is_present[facet.codes]
    count = int(mask.sum())

    def enough(names: list[str]) -> bool:
        return bool(names) and int(np.logical_and.reduce([tests[name] for name in names]).sum()) == count

    needed = list(tests)
    if not enough(needed):
        return None
    for name in reversed(list(tests)):
        fewer = [other for other in needed if other != name]
        needed = fewer if enough(fewer) else needed
    return {name: held[name] for name in needed}


def _written(variable: str, *conditions: Mapping[str, Any]) -> str:
    """Return the calls of `Trace.where` as Python."""
    calls = [
        ", ".join(f"{name}={_literal(value)}" for name, value in condition.items())
        for condition in conditions
        if condition
    ]
    return variable + "".join(f".where({arguments})" for arguments in calls)


def _literal(value: Any) -> str:
    """Return a condition's value as Python: one value for a list of one, and ranges of positions joined."""
    if isinstance(value, str):
        return f'"{value}"' if re.fullmatch(r"[^\"\\\x00-\x1f\x7f\u202a-\u202e\u2066-\u2069]*", value) else ascii(value)
    if not isinstance(value, (list, tuple, set)):
        return repr(value)
    values = list(value)
    if values and all(isinstance(item, range) for item in values):
        if len(values) == 1:
            return repr(values[0])
        parts = [f"*{item!r}" if len(item) > 1 else str(item.start) for item in values]
        return f"[{', '.join(parts)}]"
    return _literal(values[0]) if len(values) == 1 else f"[{', '.join(_literal(item) for item in values)}]"
