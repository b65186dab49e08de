"""Plotly figures of a trace. Everything is binned in Python: a figure has hundreds of marks, never one per event.

A figure is made as plotly's JSON, a plain dict: the explorer sends it as it is, and plotly's own classes, which
check each of its values for longer than it takes to draw them, are only asked where a user wants a ``Figure``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl

from dsexplore.errors import UsageError
from dsexplore.trace.tables import Tables
from dsexplore.units import format_bytes
from dsexplore.views.page.theme import AXIS, BLUE, FIGURE, LEGEND_ABOVE, OPS, OTHER_OP, PHASES, SKY, phase_mark, tint
from dsexplore.views.trace import tally
from dsexplore.views.trace.event_codes import EventCodes
from dsexplore.views.trace.figure_labels import label, shared_prefix, unique
from dsexplore.views.trace.folding import ranges
from dsexplore.views.trace.grid import OTHERS, Grid
from dsexplore.views.trace.lanes import Lanes, lane_names, lanes, phase_runs
from dsexplore.views.trace.module_tree import OUTSIDE

Spec = dict[str, Any]
"""A figure as plotly's JSON: ``data``, a list of traces, and ``layout``."""

SEQUENCE_BINS, SEQUENCE_LANES = 160, 24

BLUES = [[0.0, tint(SKY, 0.4)], [1.0, BLUE]]
"""From few bytes to many: the least is visible, and the most stands out, on white and on black."""
_PATTERNS = {
    "all_reduce": "",
    "all_gather": "/",
    "reduce_scatter": "\\",
    "all_to_all": "x",
    "broadcast": ".",
    "reduce": "|",
}
_STRIP: Spec = {"type": "category", "anchor": "x", "automargin": True, "showgrid": False, "zeroline": False}
_MOST_SENDERS, _MOST_TARGETS = 8, 10
"""Of a Sankey: so many labels stand one below the other in its height."""
_MOST_LETTERS = 40


def trace_figure(tables: Tables, kind: str = "modules", window: tuple[float, float] | None = None) -> Any:
    """One figure of a trace, as a ``plotly.graph_objects.Figure``.

    Args:
        tables: what was recorded.
        kind: a key of `KINDS`.
        window: for ``sequence``, the part of the axis to bin anew.

    Raises:
        UsageError: no such kind.
    """
    import plotly.graph_objects as go

    if kind not in KINDS:
        raise UsageError(f"figure(kind={kind!r}): no such figure; kinds are {', '.join(KINDS)}")
    return go.Figure(finished(KINDS[kind](tables, window), why_empty(kind)))


def why_empty(kind: str, filtered: bool = False) -> str:
    """What stands in the place of a figure that has nothing to show."""
    if filtered:
        return "nothing of this kind is left by the filters"
    return "no durations were measured" if kind == "bandwidth" else "nothing of this kind in the trace"


def finished(spec: Spec, empty: str = "") -> Spec:
    """A figure with what all of them share: no background, legible ink, room for its labels.

    Args:
        spec: its data, and what of its layout is its own.
        empty: said in its place where it has no data.
    """
    margin = {"l": 8, "r": 8, "t": 36, "b": 8}
    layout = {"template": {}, **FIGURE, "margin": margin, "legend": LEGEND_ABOVE, "height": 360, **spec["layout"]}
    for axis in ("xaxis", "yaxis"):
        layout[axis] = {**AXIS, **layout.get(axis, {}), **({} if spec["data"] else {"visible": False})}
    if not spec["data"]:
        layout["annotations"] = [{"text": empty, "showarrow": False}]
    return {"data": spec["data"], "layout": layout}


def modules(tables: Tables, _window: tuple[float, float] | None = None) -> Spec:
    """Heatmap of message bytes: place in the model × mesh axis."""
    codes = EventCodes(tables)
    return module_heatmap(codes.places(codes.total))


def module_heatmap(grid: Grid) -> Spec:
    """Heatmap of places in the model; what all their names begin with is left out of the labels."""
    shared = shared_prefix([row for row in grid.rows if row not in (OUTSIDE, OTHERS)])
    return _heatmap(grid, "module_axis", [row.removeprefix(shared) for row in grid.rows], grid.columns)


def peers(tables: Tables, _window: tuple[float, float] | None = None) -> Spec:
    """Matrix of wire bytes from recorded ranks to their peers."""
    grid = tally.between_ranks(tables).grid()
    return _heatmap(grid, "rank_peer", grid.rows, [f"to rank {column}" for column in grid.columns])


def ops(tables: Tables, _window: tuple[float, float] | None = None) -> Spec:
    """Bars of message bytes per op, split by phase with its letter and hatch."""
    totals = tally.op_by_phase(tables.events)
    order = list(dict.fromkeys(totals["op"]))
    names = unique(order)
    data = []
    for phase in [p for p in PHASES if p in set(totals["phase"])]:
        rows = {op: (count, size) for op, p, count, size in totals.iter_rows() if p == phase}
        found = [rows.get(op, (0, 0)) for op in order]
        mark = phase_mark(phase)
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "y": names,
                "x": [size for _, size in found],
                "name": f"{mark.letter} {phase}",
                "marker": _hatched(mark.colour, mark.pattern),
                "customdata": [[op, phase] for op in order],
                "hovertext": [
                    f"{name}, {phase}<br>{count:,} ×, {format_bytes(size)}"
                    for name, (count, size) in zip(names, found, strict=True)
                ],
                "meta": {"kind": "op_phase"},
                "hovertemplate": "%{hovertext}<extra></extra>",
            }
        )
    sums = totals.group_by("op").agg(pl.col("message_bytes").sum())["message_bytes"]
    axes = {"xaxis": _byte_axis([float(x) for x in sums]), "yaxis": {"autorange": "reversed"}}
    return {"data": data, "layout": {"barmode": "stack", **axes}}


def sequence(tables: Tables, window: tuple[float, float] | None = None) -> Spec:
    """Bytes in program order (or in time where measured): a lane per rank, group and op, binned, phases on top."""
    found = lanes(tables.events, SEQUENCE_BINS, SEQUENCE_LANES, window)
    if not found.labels:
        return {"data": [], "layout": {}}
    scale = 1e6 if found.unit == "ns" else 1.0
    places = ((found.first + (np.arange(found.bytes.shape[1]) + 0.5) * found.width) / scale).tolist()
    names = unique(lane_names(found))
    hover = [
        [
            f"{phase} · {count:,} × · {format_bytes(size)}" if count else ""
            for phase, count, size in zip(p, c, b, strict=True)
        ]
        for p, c, b in zip(found.phases, found.counts.tolist(), found.bytes.tolist(), strict=True)
    ]
    values = np.where(found.counts > 0, np.log10(found.bytes + 1.0), np.nan)
    marks = {
        "type": "heatmap",
        "x": places,
        "y": names,
        "z": _numbers(values),
        "text": hover,
        "colorscale": BLUES,
        "showscale": False,
        "ygap": 2,
        "meta": {"kind": "sequence"},
        "hovertemplate": "%{y}<br>%{text}<extra></extra>",
        "hoverongaps": False,
    }
    room = 1 / (len(names) + 3)
    strip, letters = _phase_strip(found, places)
    title = "ms since the first" if found.unit == "ns" else "program order (seq)"
    more = f", {found.hidden:,} more lanes not drawn" if found.hidden else ""
    layout = {
        "annotations": letters,
        "xaxis": {"title": {"text": f"{title}{more}"}},
        "yaxis": {"autorange": "reversed", "type": "category", "domain": [0, 1 - 1.4 * room]},
        "yaxis2": {**_STRIP, "domain": [1 - room, 1]},
    }
    return {"data": [strip, marks], "layout": layout}


def sizes(tables: Tables, _window: tuple[float, float] | None = None) -> Spec:
    """Histogram of message sizes by powers of two."""
    found = tally.message_sizes(tables.events)
    every = sorted(set(found["size"]))
    data = []
    for op in sorted(set(found["op"])):
        rows = dict(found.filter(op=op).select("size", "count").iter_rows())
        data.append(
            {
                "type": "bar",
                "x": [format_bytes(s) if s else "empty" for s in every],
                "y": [rows.get(s, 0) for s in every],
                "name": label(op, 20),
                "marker": _hatched(OPS.get(op, OTHER_OP)[0], _PATTERNS.get(op, "x")),
                "customdata": [[op, s] for s in every],
                "meta": {"kind": "size"},
                "hovertext": [tally.size_range(s) for s in every],
                "hovertemplate": f"%{{hovertext}}: %{{y}} ×<extra>{label(op)}</extra>",
            }
        )
    axes = {
        "xaxis": {"type": "category", "title": {"text": "message size, at least"}},
        "yaxis": {"title": {"text": "collectives"}},
    }
    return {"data": data, "layout": {"barmode": "stack", **axes}}


def bandwidth(tables: Tables, _window: tuple[float, float] | None = None) -> Spec:
    """Median bus bandwidth over message size; empty for a simulation."""
    found = tally.bus_bandwidth(tables.events)
    data = []
    for op in sorted(set(found["op"])):
        part = found.filter(op=op)
        colour, symbol = OPS.get(op, OTHER_OP)
        data.append(
            {
                "type": "scatter",
                "x": part["size"].to_list(),
                "y": part["gb_per_s"].to_list(),
                "mode": "lines+markers",
                "name": label(op, 20),
                "marker": {"color": colour, "symbol": symbol, "size": 9},
                "line": {"color": colour},
                "meta": {"kind": "size"},
                "customdata": [[op, s] for s in part["size"]],
                "hovertext": [f"from {format_bytes(s)}" for s in part["size"]],
                "hovertemplate": f"%{{hovertext}}: %{{y:.3g}} GB/s<extra>{label(op)}</extra>",
            }
        )
    every = sorted(set(found["size"]))
    shown = every[:: -(-len(every) // 6) or 1]
    x = {"type": "log", "tickvals": shown, "ticktext": [format_bytes(s) for s in shown]}
    axes = {
        "xaxis": {**x, "title": {"text": "message bytes"}},
        "yaxis": {"title": {"text": "bus bandwidth, GB/s"}, "rangemode": "tozero"},
    }
    return {"data": data, "layout": axes}


def sankey(tables: Tables, _window: tuple[float, float] | None = None) -> Spec:
    """All wire bytes flowing from recorded ranks to their peers: ranks that get the same are one target."""
    found = tally.between_ranks(tables, _MOST_SENDERS, None)
    if not found.receivers:
        return {"data": [], "layout": {}}
    totals = found.bytes * [len(ranks) for ranks in found.receivers]
    target_of = _targets(found.receivers, totals.sum(axis=0).tolist())
    targets = list(dict.fromkeys(target_of))
    joined = np.stack([totals[:, [t == target for t in target_of]].sum(axis=1) for target in targets], axis=1)
    links = [(i, j, int(v)) for i, row in enumerate(joined.tolist()) for j, v in enumerate(row) if v]
    names = [*(f"rank {rank}" for rank in found.senders), *targets]
    link = {
        "source": [i for i, _, _ in links],
        "target": [len(found.senders) + j for _, j, _ in links],
        "value": [v for _, _, v in links],
        "label": [format_bytes(v) for _, _, v in links],
        "color": tint(SKY, 0.4),
        "hovertemplate": "%{source.label} %{target.label}: %{label}<extra></extra>",
    }
    more = f"{found.hidden:,} more recorded ranks are not drawn" if found.hidden else ""
    note = {"text": more, "showarrow": False, "xref": "paper", "yref": "paper", "x": 0, "y": 1.09}
    return {
        "data": [{"type": "sankey", "node": {"label": names, "color": BLUE, "pad": 24}, "link": link}],
        "layout": {
            "xaxis": {"visible": False},
            "yaxis": {"visible": False},
            **({"annotations": [note]} if more else {}),
        },
    }


def _targets(receivers: list[list[int]], totals: list[float]) -> list[str]:
    """What each target is called; those that get least share a name where there are too many to be told apart."""
    large = sorted(range(len(totals)), key=lambda j: (-totals[j], j))
    large = large if len(large) <= _MOST_TARGETS else large[: _MOST_TARGETS - 1]
    called = (f"to rank{'s' if len(ranks) > 1 else ''} {ranges(ranks, 4)}" for ranks in receivers)
    return [name if j in large else "to all others" for j, name in enumerate(called)]


KINDS: dict[str, Callable[[Tables, tuple[float, float] | None], Spec]] = {
    "modules": modules,
    "ops": ops,
    "sequence": sequence,
    "ranks": peers,
    "sankey": sankey,
    "sizes": sizes,
    "bandwidth": bandwidth,
}


def _heatmap(grid: Grid, kind: str, rows: list[str], columns: list[str]) -> Spec:
    """A grid with other labels; the names themselves are what a click tells and what hovering shows."""
    if not grid.rows or not grid.columns:
        return {"data": [], "layout": {}}
    text = [[format_bytes(v) if v else "" for v in row] for row in grid.values.tolist()]
    shown = {"text": text, "texttemplate": "%{text}", "textfont": {"color": "#000000"}} if len(columns) <= 8 else {}
    trace = {
        "type": "heatmap",
        "z": _numbers(np.where(grid.values > 0, np.log10(grid.values + 1), np.nan)),
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
        "colorscale": [[0.0, "#eaf4fb"], [1.0, SKY]],
        "showscale": False,
        "xgap": 1,
        "ygap": 1,
        "meta": {"kind": kind},
    }
    category = {"type": "category", "showgrid": False}
    return {"data": [trace], "layout": {"xaxis": category, "yaxis": {**category, "autorange": "reversed"}}}


def _phase_strip(found: Lanes, places: list[float]) -> tuple[Spec, list[Spec]]:
    """The lane above the others: which phase each bin belongs to, in its colour, its letter on every long run."""
    order = list(PHASES)
    runs = phase_runs(found)
    codes = [order.index(phase) if phase in order else len(order) - 1 if phase else None for phase, _, _ in runs]
    z = [code for code, (_, first, end) in zip(codes, runs, strict=True) for _ in range(first, end)]
    strip = {
        "type": "heatmap",
        "x": places,
        "y": ["phase"],
        "yaxis": "y2",
        "z": [z],
        "text": [[phase for phase, first, end in runs for _ in range(first, end)]],
        "zmin": 0,
        "zmax": len(order) - 1,
        "colorscale": [[i / (len(order) - 1), phase_mark(phase).colour] for i, phase in enumerate(order)],
        "showscale": False,
        "ygap": 2,
        "meta": {"kind": "phases"},
        "hovertemplate": "%{text}<extra></extra>",
        "hoverongaps": False,
    }
    wide = sorted((run for run in runs if run[0] and run[2] - run[1] >= 3), key=lambda run: run[1] - run[2])
    letters = [
        {
            "x": (places[first] + places[end - 1]) / 2,
            "y": "phase",
            "yref": "y2",
            "text": f"<b>{phase_mark(phase).letter}</b>",
            "showarrow": False,
            "font": {"color": phase_mark(phase).ink, "size": 11},
        }
        for phase, first, end in sorted(wide[:_MOST_LETTERS], key=lambda run: run[1])
    ]
    return strip, letters


def _hatched(colour: str, pattern: str) -> Spec:
    hatch = {"shape": pattern, "fillmode": "overlay", "fgcolor": "#000000", "fgopacity": 0.45, "size": 6}
    return {"color": colour, "pattern": hatch}


def _numbers(values: Any) -> list[list[float | None]]:
    """A matrix as JSON has it: nothing where there is no number."""
    return [[None if value != value else round(value, 4) for value in row] for row in values.tolist()]


def _byte_axis(values: list[float], ticks: int = 4) -> Spec:
    """Ticks at round binary sizes, written as such."""
    top = max(values, default=0)
    if top <= 0:
        return {}
    step = 2.0 ** np.ceil(np.log2(top / ticks))
    at = np.arange(0, top + step, step)
    return {"tickvals": at.tolist(), "ticktext": [format_bytes(v) for v in at]}
