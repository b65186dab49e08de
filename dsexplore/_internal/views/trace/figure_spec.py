"""Parts that a trace's plotly figures share: labels, layout, heatmap, an axis of bytes.

A figure is built as plotly's JSON, a plain dict, which the explorer sends as it is. Plotly's own classes validate every
value, which takes longer than drawing, so they are used only when a user asks for a ``Figure``. Plotly interprets HTML
in labels, so names are escaped.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Any

import numpy as np

from dsexplore._internal.units import format_bytes
from dsexplore._internal.views.page import html
from dsexplore._internal.views.page.charts import AXIS, FIGURE, LEGEND_ABOVE
from dsexplore._internal.views.trace.byte_sizes import is_partial, size_text
from dsexplore._internal.views.trace.tally import Grid

_LONGEST_LABEL = 34


def label(name: object, longest: int = _LONGEST_LABEL) -> str:
    """Return a name escaped for plotly, shortened if it is long."""
    return html.escape(name, longest=longest)


def unique(names: Iterable[str]) -> list[str]:
    """Return shortened, escaped labels, numbered where shortening made two equal (plotly joins equal categories)."""
    seen: dict[str, int] = {}
    labels = []
    for name in names:
        short = label(_tail(name), 0)
        seen[short] = seen.get(short, 0) + 1
        labels.append(short if seen[short] == 1 else f"{short} ({seen[short]})")
    return labels


def shared_prefix(names: list[str]) -> str:
    """Return the prefix that all dotted names share, with its last dot; no name without it begins with ``*``."""
    if len(names) < 2:
        return ""
    first, last = min(names).split("."), max(names).split(".")
    shared = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    shared = min(shared, *(name.count(".") for name in names))
    while shared and any(name.split(".")[shared] == "*" for name in names):
        shared -= 1
    return "".join(f"{part}." for part in first[:shared])


def _tail(name: str) -> str:
    """Return the end of a name, which tells modules apart better than its beginning; wide characters count as two.

    The end of a dotted name begins with a whole component if one fits.
    """
    room = _LONGEST_LABEL
    for at in range(len(name) - 1, -1, -1):
        room -= 2 if unicodedata.east_asian_width(name[at]) in "WF" else 1
        if room < (1 if at else 0):
            return f"…{name[name.find('.', at) + 1 or at + 1 :]}"
    return name


Spec = dict[str, Any]
"""A figure as plotly's JSON: ``data``, a list of plotly traces, and ``layout``."""
EMPTY: Spec = {"data": [], "layout": {}}


def finished(spec: Spec, empty: str = "") -> Spec:
    """Return the figure with the shared layout; a figure without data shows the text ``empty``."""
    margin = {"l": 8, "r": 8, "t": 36, "b": 8}
    layout = {"template": {}, **FIGURE, "margin": margin, "legend": LEGEND_ABOVE, "height": 360, **spec["layout"]}
    for axis in ("xaxis", "yaxis"):
        layout[axis] = {**AXIS, **layout.get(axis, {}), **({} if spec["data"] else {"visible": False})}
    if not spec["data"]:
        layout["annotations"] = [{"text": empty, "showarrow": False}]
    return {"data": spec["data"], "layout": layout}


def byte_colors(top: float) -> Spec:
    """Return the color scale, with its bar, of a heatmap whose values are 0 to ``top`` bytes."""
    steps = [0.0, top / 2, top]
    bar = {
        "tickvals": steps,
        "ticktext": [format_bytes(round(step)) for step in steps],
        "thickness": 10,
        "outlinewidth": 0,
        "len": 0.9,
    }
    return {"zmin": 0.0, "zmax": top, "showscale": top > 0, "colorbar": bar}


_PALE_SCALE = [[0.0, "#e6f3f2"], [1.0, "#58a7b5"]]
"""Shades of the hue of bytes on which black text is legible."""


def heatmap_spec(grid: Grid, kind: str, rows: list[str], columns: list[str]) -> Spec:
    """Return a heatmap of bytes.

    Args:
        grid: the bytes; clicks and hover texts have the names of its rows and columns.
        kind: kind of its marks, by which the explorer finds their events.
        rows: labels of the rows, such as shortened names.
        columns: labels of the columns.
    """
    if not grid.rows or not grid.columns:
        return EMPTY
    text = [
        [size_text(size) if size or is_partial(size) else "" for size in row] for row in grid.signed_values.tolist()
    ]
    shown = {"text": text, "texttemplate": "%{text}", "textfont": {"color": "#000000"}} if len(columns) <= 8 else {}
    trace = {
        "type": "heatmap",
        "z": json_numbers(np.where(grid.values > 0, grid.values, np.nan)),
        "x": unique(columns),
        "y": unique(rows),
        **shown,
        "customdata": [[[row, column] for column in grid.columns] for row in grid.rows],
        "hovertext": [
            [f"{label(row, 90)}<br>{label(column)}: {cell}" for column, cell in zip(columns, cells, strict=True)]
            for row, cells in zip(grid.rows, text, strict=True)
        ],
        "hovertemplate": "%{hovertext}<extra></extra>",
        "hoverongaps": False,
        "colorscale": _PALE_SCALE,
        **byte_colors(float(grid.values.max())),
        "xgap": 1,
        "ygap": 1,
        "meta": {"kind": kind},
    }
    category = {"type": "category", "showgrid": False}
    return {"data": [trace], "layout": {"xaxis": category, "yaxis": {**category, "autorange": "reversed"}}}


def top_of(spec: Spec) -> float:
    """Return the bytes of a heatmap's darkest color; 0 for other figures."""
    return float(spec["data"][0].get("zmax", 0.0)) if spec["data"] else 0.0


def with_top(spec: Spec, top: float) -> Spec:
    """Return a heatmap whose darkest color is ``top`` bytes, unless it has more; other figures are unchanged."""
    if not 0 < top_of(spec) < top:
        return spec
    return {**spec, "data": [{**spec["data"][0], **byte_colors(top)}]}


def json_numbers(values: Any) -> list[list[float | None]]:
    """Return a matrix for JSON, with None for NaN."""
    return [[None if value != value else round(value, 4) for value in row] for row in values.tolist()]


def byte_axis(values: list[float], ticks: int = 4) -> Spec:
    """Return an axis of bytes with about ``ticks`` ticks at powers of two and their multiples."""
    top = max(values, default=0)
    if top <= 0:
        return {}
    step = 2.0 ** np.ceil(np.log2(top / ticks))
    at = np.arange(0, top + step, step)
    return {"tickvals": at.tolist(), "ticktext": [format_bytes(size) for size in at]}
