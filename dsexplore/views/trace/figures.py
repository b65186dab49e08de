"""Plotly figures of a trace. Everything is binned in Python: a figure has hundreds of marks, never one per event."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl

from dsexplore.errors import UsageError
from dsexplore.trace.places import OUTSIDE
from dsexplore.trace.tables import Tables
from dsexplore.units import format_bytes
from dsexplore.views.page.theme import PHASES, op_mark, phase_mark
from dsexplore.views.trace import tally
from dsexplore.views.trace.event_codes import EventCodes
from dsexplore.views.trace.figure_labels import label, shared_prefix, unique
from dsexplore.views.trace.figure_spec import Spec, byte_axis, finished, hatched, heatmap_spec
from dsexplore.views.trace.grid import OTHERS, Grid
from dsexplore.views.trace.peer_figures import peers, sankey
from dsexplore.views.trace.sequence_figure import sequence


def trace_figure(tables: Tables, kind: str = "modules", window: tuple[float, float] | None = None) -> Any:
    """One figure of a trace, as a ``plotly.graph_objects.Figure``.

    Args:
        tables: what was recorded.
        kind: a key of `KINDS`.
        window: for ``sequence``, the part of the axis to bin anew.

    Raises:
        UsageError: no such kind.
    """
    if kind not in KINDS:
        raise UsageError(f"figure(kind={kind!r}): no such figure; kinds are {', '.join(KINDS)}")
    import plotly.graph_objects as go  # takes long to import

    return go.Figure(finished(figure_of(tables, kind, window), why_empty(kind)))


def figure_of(tables: Tables, kind: str, window: tuple[float, float] | None = None) -> Spec:
    """The data of one figure, and what of its layout is its own; see `trace_figure`."""
    return sequence(tables, window) if kind == "sequence" else KINDS[kind](tables)


def why_empty(kind: str, filtered: bool = False) -> str:
    """The text in place of a figure without data."""
    if filtered:
        return "nothing of this kind is left by the filters"
    return "no durations were measured" if kind == "bandwidth" else "nothing of this kind in the trace"


def modules(tables: Tables) -> Spec:
    """Heatmap of message bytes: place in the model × mesh axis."""
    codes = EventCodes(tables)
    return module_heatmap(codes.places(codes.total))


def module_heatmap(grid: Grid) -> Spec:
    """Heatmap of places in the model; the beginning that all names share is left out of the labels."""
    shared = shared_prefix([row for row in grid.rows if row not in (OUTSIDE, OTHERS)])
    return heatmap_spec(grid, "module_axis", [row.removeprefix(shared) for row in grid.rows], grid.columns)


def ops(tables: Tables) -> Spec:
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
                "marker": hatched(mark.colour, mark.pattern),
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
    axes = {"xaxis": byte_axis([float(x) for x in sums]), "yaxis": {"autorange": "reversed"}}
    return {"data": data, "layout": {"barmode": "stack", **axes}}


def sizes(tables: Tables) -> Spec:
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
                "marker": hatched(op_mark(op).colour, op_mark(op).pattern),
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


def bandwidth(tables: Tables) -> Spec:
    """Median bus bandwidth over message size; empty for a simulation."""
    found = tally.bus_bandwidth(tables.events)
    data = []
    for op in sorted(set(found["op"])):
        part = found.filter(op=op)
        mark = op_mark(op)
        data.append(
            {
                "type": "scatter",
                "x": part["size"].to_list(),
                "y": part["gb_per_s"].to_list(),
                "mode": "lines+markers",
                "name": label(op, 20),
                "marker": {"color": mark.colour, "symbol": mark.symbol, "size": 9},
                "line": {"color": mark.colour},
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


KINDS: dict[str, Callable[[Tables], Spec]] = {
    "modules": modules,
    "ops": ops,
    "sequence": sequence,
    "ranks": peers,
    "sankey": sankey,
    "sizes": sizes,
    "bandwidth": bandwidth,
}
