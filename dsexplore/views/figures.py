"""Plotly figures of a trace. Everything is binned in Python: a figure has hundreds of marks, never one per event.

Names are data: plotly reads a little HTML in labels, so they are escaped before they become one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import plotly.graph_objects as go

from dsexplore.errors import UsageError
from dsexplore.trace.model import Tables
from dsexplore.units import format_bytes
from dsexplore.views import html, tally
from dsexplore.views.palette import OPS, OTHER_OP, PHASES, SKY, phase_mark

SEQUENCE_BINS, SEQUENCE_LANES = 160, 24

INK = "#767676"
"""Text that is legible on white and on black."""
BLUES = [
    [0.0, "rgba(86,180,233,0.06)"],
    [0.25, "rgba(86,180,233,0.45)"],
    [0.6, "rgba(0,114,178,0.8)"],
    [1.0, "#004a75"],
]


def trace_figure(tables: Tables, kind: str = "modules", window: tuple[float, float] | None = None) -> go.Figure:
    """One figure of a trace.

    Args:
        tables: what was recorded.
        kind: a key of `KINDS`.
        window: for ``sequence``, the part of the axis to bin anew.

    Raises:
        UsageError: no such kind.
    """
    draw = KINDS.get(kind)
    if draw is None:
        raise UsageError(f"figure(kind={kind!r}): no such figure; kinds are {', '.join(KINDS)}")
    figure = draw(tables, window) if kind == "sequence" else draw(tables)
    figure.update_layout(
        template="none",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": INK, "size": 12},
        margin={"l": 8, "r": 8, "t": 36, "b": 8},
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0},
        height=360,
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": INK},
    )
    figure.update_xaxes(automargin=True, gridcolor="rgba(128,128,128,0.25)", zerolinecolor="rgba(128,128,128,0.4)")
    figure.update_yaxes(automargin=True, gridcolor="rgba(128,128,128,0.25)", zerolinecolor="rgba(128,128,128,0.4)")
    if not figure.data:
        figure.add_annotation(text="nothing of this kind in the trace", showarrow=False, font={"color": INK})
        figure.update_xaxes(visible=False)
        figure.update_yaxes(visible=False)
    return figure


def label(name: object, longest: int = 34) -> str:
    """A name as plotly shows it literally."""
    return html.escape(name, longest)


def modules(tables: Tables) -> go.Figure:
    """Heatmap of message bytes: place in the model × mesh axis."""
    return _heatmap(tally.module_by_axis(tables.events), "module_axis")


def peers(tables: Tables) -> go.Figure:
    """Matrix of wire bytes from recorded ranks to their peers."""
    return _heatmap(tally.between_ranks(tables), "rank_peer", "to rank ")


def ops(tables: Tables) -> go.Figure:
    """Bars of message bytes per op, split by phase with its letter and hatch."""
    totals = tally.op_by_phase(tables.events)
    order = list(dict.fromkeys(totals["op"]))
    figure = go.Figure(layout={"barmode": "stack"})
    for phase in [p for p in PHASES if p in set(totals["phase"])]:
        rows = {op: (count, size) for op, p, count, size in totals.iter_rows() if p == phase}
        mark = phase_mark(phase)
        figure.add_bar(
            y=_unique(order),
            x=[rows.get(op, (0, 0))[1] for op in order],
            name=f"{mark.letter} {phase}",
            orientation="h",
            marker={"color": mark.colour, "pattern": {"shape": mark.pattern, "fgcolor": "rgba(0,0,0,.45)", "size": 6}},
            customdata=[
                [op, phase, rows.get(op, (0, 0))[0], format_bytes(rows.get(op, (0, 0))[1])] for op in map(label, order)
            ],
            meta={"kind": "op_phase"},
            hovertemplate="%{customdata[0]}, %{customdata[1]}<br>%{customdata[2]} × , %{customdata[3]}<extra></extra>",
        )
    figure.update_yaxes(autorange="reversed")
    _byte_axis(figure.update_xaxes, [float(x) for x in totals.group_by("op").agg(_bytes_sum())["message_bytes"]])
    return figure


def sequence(tables: Tables, window: tuple[float, float] | None = None) -> go.Figure:
    """Bytes in program order (or in time where measured): a lane per rank, group and op, binned."""
    found = tally.lanes(tables.events, SEQUENCE_BINS, SEQUENCE_LANES, window)
    if not found.labels:
        return go.Figure()
    scale = 1e6 if found.unit == "ns" else 1.0
    places = (found.first + (np.arange(found.bytes.shape[1]) + 0.5) * found.width) / scale
    names = _unique(f"{rank} · {lane} · {op}" if lane else f"{rank} · {op}" for rank, lane, op in found.labels)
    values = np.where(found.counts > 0, np.log10(found.bytes + 1.0), np.nan)
    hover = [
        [
            f"{phase} · {count} × · {format_bytes(size)}" if count else ""
            for phase, count, size in zip(p, c, b, strict=True)
        ]
        for p, c, b in zip(found.phases, found.counts.tolist(), found.bytes.tolist(), strict=True)
    ]
    figure = go.Figure(
        go.Heatmap(
            x=places,
            y=names,
            z=values,
            text=hover,
            colorscale=BLUES,
            showscale=False,
            ygap=2,
            meta={"kind": "sequence"},
            hovertemplate="%{y}<br>%{text}<extra></extra>",
            hoverongaps=False,
        )
    )
    figure.update_yaxes(autorange="reversed")
    figure.update_xaxes(title_text="ms since the first" if found.unit == "ns" else "program order (seq)")
    return figure


def sizes(tables: Tables) -> go.Figure:
    """Histogram of message sizes by powers of two."""
    found = tally.message_sizes(tables.events)
    every = sorted(set(found["size"]))
    figure = go.Figure(layout={"barmode": "stack"})
    for op in sorted(set(found["op"])):
        rows = dict(found.filter(op=op).select("size", "count").iter_rows())
        colour, _ = OPS.get(op, OTHER_OP)
        figure.add_bar(
            x=[format_bytes(s) if s else "empty" for s in every],
            y=[rows.get(s, 0) for s in every],
            name=label(op, 20),
            marker={
                "color": colour,
                "pattern": {"shape": _PATTERNS.get(op, "x"), "fgcolor": "rgba(0,0,0,.45)", "size": 6},
            },
            customdata=[[op, s] for s in every],
            meta={"kind": "size"},
            hovertemplate=f"%{{x}} – : %{{y}} ×<extra>{label(op)}</extra>",
        )
    figure.update_yaxes(title_text="collectives")
    return figure


def bandwidth(tables: Tables) -> go.Figure:
    """Median bus bandwidth over message size; empty for a simulation."""
    found = tally.bus_bandwidth(tables.events)
    figure = go.Figure()
    for op in sorted(set(found["op"])):
        part = found.filter(op=op)
        colour, symbol = OPS.get(op, OTHER_OP)
        figure.add_scatter(
            x=part["size"].to_list(),
            y=part["gb_per_s"].to_list(),
            mode="lines+markers",
            name=label(op, 20),
            marker={"color": colour, "symbol": symbol, "size": 9},
            line={"color": colour},
            meta={"kind": "size"},
            customdata=[[op, s] for s in part["size"]],
            hovertemplate=f"%{{x}} B: %{{y:.3g}} GB/s<extra>{label(op)}</extra>",
        )
    figure.update_xaxes(type="log", title_text="message bytes")
    figure.update_yaxes(title_text="bus bandwidth, GB/s")
    return figure


def sankey(tables: Tables) -> go.Figure:
    """Wire bytes flowing from recorded ranks to their peers, equal peers joined."""
    grid = tally.between_ranks(tables)
    if not grid.rows:
        return go.Figure()
    links = [(i, j, v) for i, row in enumerate(grid.values) for j, v in enumerate(row) if v]
    names = [label(r) for r in grid.rows] + [label(f"to {c}") for c in grid.columns]
    return go.Figure(
        go.Sankey(
            node={"label": names, "color": SKY, "pad": 12},
            link={
                "source": [i for i, _, _ in links],
                "target": [len(grid.rows) + j for _, j, _ in links],
                "value": [v for _, _, v in links],
                "label": [format_bytes(v) for _, _, v in links],
            },
        )
    )


KINDS: dict[str, Callable[..., go.Figure]] = {
    "modules": modules,
    "ops": ops,
    "sequence": sequence,
    "ranks": peers,
    "sankey": sankey,
    "sizes": sizes,
    "bandwidth": bandwidth,
}

_PATTERNS = {
    "all_reduce": "",
    "all_gather": "/",
    "reduce_scatter": "\\",
    "all_to_all": "x",
    "broadcast": ".",
    "reduce": "|",
}


def _heatmap(grid: tally.Grid, kind: str, prefix: str = "") -> go.Figure:
    if not grid.rows or not grid.columns:
        return go.Figure()
    text = [[format_bytes(v) if v else "" for v in row] for row in grid.values]
    figure = go.Figure(
        go.Heatmap(
            z=np.where(grid.values > 0, np.log10(grid.values + 1), np.nan),
            x=_unique(f"{prefix}{c}" for c in grid.columns),
            y=_unique(grid.rows),
            text=text if len(grid.columns) <= 8 else None,
            texttemplate="%{text}" if len(grid.columns) <= 8 else None,
            textfont={"color": "#000000"},
            customdata=[[[row, column] for column in grid.columns] for row in grid.rows],
            hovertext=text,
            hovertemplate="%{y}<br>%{x}: %{hovertext}<extra></extra>",
            colorscale=[[0.0, "#eaf4fb"], [1.0, SKY]],
            showscale=False,
            xgap=1,
            ygap=1,
            meta={"kind": kind},
        )
    )
    figure.update_yaxes(autorange="reversed")
    return figure


def _unique(names: Iterable[str]) -> list[str]:
    """Labels cut to fit, escaped, and told apart where cutting made two alike (plotly joins equal categories)."""
    seen: dict[str, int] = {}
    found = []
    for name in names:
        short = label(_tail(name))
        seen[short] = seen.get(short, 0) + 1
        found.append(short if seen[short] == 1 else f"{short} ({seen[short]})")
    return found


def _tail(name: str, longest: int = 34) -> str:
    """The end of a module's name says more than its beginning."""
    return name if len(name) <= longest else f"…{name[-(longest - 1) :]}"


def _bytes_sum() -> Any:
    import polars as pl

    return pl.col("message_bytes").sum()


def _byte_axis(update: Callable[..., Any], values: list[float], ticks: int = 4) -> None:
    """Ticks at round binary sizes, written as such."""
    top = max(values, default=0)
    if top <= 0:
        return
    step = 2.0 ** np.ceil(np.log2(top / ticks))
    at = np.arange(0, top + step, step)
    update(tickvals=at.tolist(), ticktext=[format_bytes(v) for v in at])
