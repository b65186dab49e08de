"""The line of Python that finds the explorer's selected events: ``trace.where(phase="backward", module="layers.3")``.

Filters and a selected row are conditions of `Trace.where`. The events of a clicked mark, of a range of the timeline or
of a rank of the map are described by their positions if these are consecutive, else by values that only they have.
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

_DESCRIBING = ("rank", "step", "phase", "op", "axis", "group", "owner", "cause", "source", "message_bytes")
"""Columns whose values can describe events; if fewer suffice, the first are preferred."""
_MOST_RUNS = 2_000
"""Maximal number of runs of consecutive positions in a line."""
_SHORT = 120
"""Number of characters up to which a list of positions is preferred to other conditions."""


def variable_of(trace: Trace) -> str:
    """Return the name that a notebook's variable gives the trace; ``trace`` if there is none."""
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    names = [name for name, value in shell.user_ns.items() if value is trace] if shell is not None else []
    return min(names, key=lambda name: name.startswith("_"), default="trace")


def python_line(selected: SelectedEvents, variable: str) -> str:
    """Return the line that finds the selected events; empty if no short one does."""
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
    calls: list[Conditions] = [{}]
    for more in conditions:
        if calls[-1].keys() & more.keys():
            calls.append(more)  # a call takes each argument once
        else:
            calls[-1] |= more
    return _written(variable, *calls)


def _of_filters(filters: Filters) -> Conditions:
    """Return the filters of the controls as conditions."""
    conditions: Conditions = {**filters.facets}
    if filters.module:
        conditions["module"] = filters.module
    if filters.implicit:
        conditions["implicit"] = True
    return conditions


def _of_modules(codes: EventCodes, rows: list[int]) -> Conditions:
    """Return conditions for the events of the modules of these rows and of all inside them; none for all modules."""
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
    """Return a shell pattern for names that differ in some components, ``Net.layers.*.up``; empty if there is none."""
    parts = [name.split(".") for name in names]
    if len({len(path) for path in parts}) > 1:
        return ""
    return ".".join(escape(level[0]) if len(set(level)) == 1 else "*" for level in zip(*parts, strict=True))


def _described(codes: EventCodes, mask: Mask) -> Conditions | None:
    """Return conditions that only the events in the mask meet; None if no short ones do."""
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
    """Return values of few columns that only the events in the mask have, {column: values}; None if there are none."""
    tests: dict[str, Mask] = {}
    values: Conditions = {}
    for name in _DESCRIBING:
        if codes.tables.events[name].null_count():  # unknown sizes
            continue
        facet = codes.facets[name]
        is_present = np.bincount(facet.codes[mask], minlength=len(facet.labels)) > 0
        if not is_present.all():
            values[name] = [label for label, kept in zip(facet.labels, is_present.tolist(), strict=True) if kept]
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
    return {name: values[name] for name in needed}


def _written(variable: str, *conditions: Mapping[str, Any]) -> str:
    """Return the calls of `Trace.where` as Python."""
    calls = [
        ", ".join(f"{name}={_literal(value)}" for name, value in condition.items())
        for condition in conditions
        if condition
    ]
    return variable + "".join(f".where({arguments})" for arguments in calls)


def _literal(value: Any) -> str:
    """Return a condition's value as Python: a list of one value as that value, ranges of positions unpacked."""
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
