"""Plotly figures of a trace's collectives by op: bytes, message sizes, and bus bandwidth."""

from __future__ import annotations

import math

import polars as pl

from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.trace.unknown_sizes import format_sum
from dsexplore._internal.units import format_bytes
from dsexplore._internal.views.page.theme import PHASES, op_mark, phase_mark
from dsexplore._internal.views.trace import tally
from dsexplore._internal.views.trace.byte_sizes import bytes_summed, column_of, summed_over
from dsexplore._internal.views.trace.figure_spec import Spec, byte_axis, label, unique

_MOST_TICKS = 6


def bytes_by_op(tables: Tables, sizes: str) -> Spec:
    """Return a horizontal bar of bytes per op, split by phase."""
    totals = tally.op_by_phase(tables.events, column_of(sizes))
    ops = list(dict.fromkeys(totals["op"]))
    names = unique(ops)
    data = []
    for phase in (phase for phase in PHASES if phase in set(totals["phase"])):
        rows = {op: numbers for op, *numbers in totals.filter(phase=phase).drop("phase").iter_rows()}
        values = [rows.get(op, (0, 0, 0)) for op in ops]
        mark = phase_mark(phase)
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "y": names,
                "x": [total for _, total, _ in values],
                "name": f"{mark.letter} {phase}",
                "marker": {"color": mark.color},
                "customdata": [[op, phase] for op in ops],
                "hovertext": [
                    f"{name}, {phase}<br>{count:,} ×, {format_sum(total, unknown)}"
                    for name, (count, total, unknown) in zip(names, values, strict=True)
                ],
                "meta": {"kind": "op_phase"},
                "hovertemplate": "%{hovertext}<extra></extra>",
            }
        )
    sums = totals.group_by("op").agg(pl.col("bytes").sum())["bytes"]
    along = {**byte_axis(sums.cast(pl.Float64).to_list()), "title": {"text": bytes_summed(tables, sizes)}}
    return {"data": data, "layout": {"barmode": "stack", "xaxis": along, "yaxis": {"autorange": "reversed"}}}


def message_sizes(tables: Tables, _sizes: str) -> Spec:
    """Return a histogram of message bytes by powers of two; the argument ``sizes`` of other figures has no effect."""
    messages = tally.message_sizes(tables.events)
    lows = messages["size"].unique().sort(nulls_last=True).to_list()
    data = []
    for op in sorted(set(messages["op"])):
        counts = dict(messages.filter(op=op).select("size", "count").iter_rows())
        data.append(
            {
                "type": "bar",
                "x": [format_bytes(low) if low else tally.size_range(low) for low in lows],
                "y": [counts.get(low, 0) for low in lows],
                "name": label(op, 20),
                "marker": {"color": op_mark(op).color},
                "customdata": [[op, low] for low in lows],
                "meta": {"kind": "size"},
                "hovertext": [tally.size_range(low) for low in lows],
                "hovertemplate": f"%{{hovertext}}: %{{y}} ×<extra>{label(op)}</extra>",
            }
        )
    along = {"type": "category", "title": {"text": "message size, at least"}}
    up = {"title": {"text": f"collectives {summed_over(tables)}"}}
    return {"data": data, "layout": {"barmode": "stack", "xaxis": along, "yaxis": up}}


def bandwidth(tables: Tables, _sizes: str) -> Spec:
    """Return median bus bandwidth by message size; empty if no times were measured."""
    bandwidths = tally.bus_bandwidth(tables.events)
    data = []
    for op in sorted(set(bandwidths["op"])):
        of_op, mark = bandwidths.filter(op=op), op_mark(op)
        lows = of_op["size"].to_list()
        data.append(
            {
                "type": "scatter",
                "x": lows,
                "y": of_op["gb_per_s"].to_list(),
                "mode": "lines+markers",
                "name": label(op, 20),
                "marker": {"color": mark.color, "symbol": mark.symbol, "size": 9},
                "line": {"color": mark.color},
                "meta": {"kind": "size"},
                "customdata": [[op, low] for low in lows],
                "hovertext": [f"from {format_bytes(low)}" for low in lows],
                "hovertemplate": f"%{{hovertext}}: %{{y:.3g}} GB/s<extra>{label(op)}</extra>",
            }
        )
    lows = sorted(set(bandwidths["size"]))
    ticks = lows[:: max(1, math.ceil(len(lows) / _MOST_TICKS))]
    along = {
        "type": "log",
        "tickvals": ticks,
        "ticktext": [format_bytes(low) for low in ticks],
        "title": {"text": "message bytes"},
    }
    up = {"title": {"text": "bus bandwidth, GB/s"}, "rangemode": "tozero"}
    return {"data": data, "layout": {"xaxis": along, "yaxis": up}}
