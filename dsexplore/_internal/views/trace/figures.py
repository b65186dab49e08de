"""Plotly figures of a trace. Events are binned in Python: a figure has hundreds of marks, never one per event."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import polars as pl

from dsexplore._internal.analysis.step_timeline import timeline_of
from dsexplore._internal.errors import UsageError
from dsexplore._internal.trace.numbered_modules import OUTSIDE
from dsexplore._internal.trace.steps import in_steps
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.trace.unknown_sizes import format_sum
from dsexplore._internal.units import format_bytes
from dsexplore._internal.views.page.theme import PHASES, SHADE, op_mark, phase_mark, tint
from dsexplore._internal.views.timeline.timeline_figure import FIGURE_LANES, columns_of, timeline_spec
from dsexplore._internal.views.timeline.timeline_state import TimelineState
from dsexplore._internal.views.trace import tally
from dsexplore._internal.views.trace.byte_sizes import KIND_OF, WIRE, column_of, summed_over
from dsexplore._internal.views.trace.event_codes import EventCodes
from dsexplore._internal.views.trace.figure_spec import (
    EMPTY,
    Spec,
    byte_axis,
    finished,
    heatmap_spec,
    label,
    shared_prefix,
    unique,
)
from dsexplore._internal.views.trace.module_tree import ranges
from dsexplore._internal.views.trace.tally import OTHERS, Grid

_MOST_SENDERS, _MOST_TARGETS = 8, 10
"""Maximal numbers of labels that fit one above the other in a Sankey's height."""


@dataclass(frozen=True)
class Ends:
    """The ranks between which the bytes of a mark are sent."""

    senders: list[int]
    receivers: list[int]

    @property
    def title(self) -> str:
        """Senders and receivers in words: ``rank 0 to ranks 4–7``."""
        senders, receivers = (
            f"rank{'s' if len(held) > 1 else ''} {ranges(held, 4)}" for held in (self.senders, self.receivers)
        )
        return f"{senders} to {receivers}"


@dataclass(frozen=True)
class _Joined:
    """Flows, with receivers grouped into the targets that a Sankey draws."""

    found: tally.Flows

    @cached_property
    def totals(self) -> tally.Bytes:
        """(senders, receivers) bytes, summed over the ranks of each entry of receivers."""
        return self.found.bytes * [len(ranks) for ranks in self.found.receivers]

    @cached_property
    def target_of(self) -> list[str]:
        """(receivers,) name of the target of each entry."""
        return _targets(self.found.receivers, self.totals.sum(axis=0).tolist())

    @cached_property
    def targets(self) -> list[str]:
        """Names of the targets, in order."""
        return list(dict.fromkeys(self.target_of))

    @cached_property
    def links(self) -> list[tuple[int, int, int]]:
        """(sender, target, bytes) of each link."""
        columns = [[j for j, name in enumerate(self.target_of) if name == target] for target in self.targets]
        joined = [[int(row[held].sum()) for held in columns] for row in self.totals]
        return [(i, j, value) for i, row in enumerate(joined) for j, value in enumerate(row) if value]

    def receivers_of(self, target: int) -> list[int]:
        """Return the ranks that a target stands for."""
        name = self.targets[target]
        held = (ranks for ranks, axis in zip(self.found.receivers, self.target_of, strict=True) if axis == name)
        return sorted(rank for ranks in held for rank in ranks)


def peers(tables: Tables, size: str = "wire_bytes", top: float = 0.0) -> Spec:
    """Return a matrix of bytes from recorded ranks to their peers."""
    grid = tally.between_ranks(tables, size=size).grid()
    return heatmap_spec(grid, "rank_peer", grid.rows, [f"to rank {column}" for column in grid.columns], top)


def sankey(tables: Tables, size: str = "wire_bytes") -> Spec:
    """Return a Sankey diagram of all bytes from recorded ranks to their peers; peers that get the same are joined."""
    flows = tally.between_ranks(tables, _MOST_SENDERS, None, size)
    if not flows.receivers:
        return EMPTY
    drawn = _Joined(flows)
    links, targets, target_of = drawn.links, drawn.targets, drawn.target_of
    names = [*(f"rank {rank}" for rank in flows.senders), *targets]
    link = {
        "source": [i for i, _, _ in links],
        "target": [len(flows.senders) + j for _, j, _ in links],
        "value": [v for _, _, v in links],
        "label": [_amount(v, flows, i, targets[j], target_of) for i, j, v in links],
        "color": tint(SHADE, 0.3),
        "hovertemplate": "%{source.label} %{target.label}: %{label}<extra></extra>",
    }
    more = f"{flows.hidden:,} more recorded ranks are not drawn" if flows.hidden else ""
    note = {"text": more, "showarrow": False, "xref": "paper", "yref": "paper", "x": 0, "y": 1.09}
    return {
        "data": [
            {
                "type": "sankey",
                "arrangement": "fixed",  # nodes that can be dragged take no click
                "node": {"label": names, "color": SHADE, "pad": 24},
                "link": link,
                "meta": {"kind": "flow"},
            }
        ],
        "layout": {
            "xaxis": {"visible": False},
            "yaxis": {"visible": False},
            **({"annotations": [note]} if more else {}),
        },
    }


def cell_ends(tables: Tables, row: int, column: int, size: str = "wire_bytes") -> Ends | None:
    """Return the ranks of a cell of `peers`, or None if there is no such cell."""
    flows = tally.between_ranks(tables, size=size)
    if not (0 <= row < len(flows.senders) and 0 <= column < len(flows.receivers)):
        return None
    return Ends([flows.senders[row]], flows.receivers[column])


def flow_ends(tables: Tables, number: int, size: str = "wire_bytes") -> Ends | None:
    """Return the ranks of a link or node of `sankey`, nodes numbered after links; None if there is no such mark."""
    drawn = _Joined(tally.between_ranks(tables, _MOST_SENDERS, None, size))
    links, senders = drawn.links, drawn.found.senders
    if 0 <= number < len(links):
        return Ends([senders[links[number][0]]], drawn.receivers_of(links[number][1]))
    node = number - len(links)
    if 0 <= node < len(senders):
        sent = [j for i, j, _ in links if i == node]
        return Ends([senders[node]], sorted({rank for j in sent for rank in drawn.receivers_of(j)}))
    target = node - len(senders)
    if 0 <= target < len(drawn.targets):
        return Ends([senders[i] for i, j, _ in links if j == target], drawn.receivers_of(target))
    return None


def _amount(total: int, flows: tally.Flows, sender: int, target: str, target_of: list[str]) -> str:
    """Return the sum of a link, and what each rank of its target gets if that is the same for all."""
    columns = [j for j, name in enumerate(target_of) if name == target]
    many = sum(len(flows.receivers[j]) for j in columns)
    amounts = {float(flows.bytes[sender, j]) for j in columns}
    if many == 1 or len(amounts) > 1:
        return format_bytes(total)
    return f"{format_bytes(amounts.pop())} to each of {many:,}, {format_bytes(total)} in sum"


def _targets(receivers: list[list[int]], totals: list[float]) -> list[str]:
    """Return the target name of each entry of receivers; above the limit, those that get least share one."""
    large = sorted(range(len(totals)), key=lambda j: (-totals[j], j))
    large = large if len(large) <= _MOST_TARGETS else large[: _MOST_TARGETS - 1]
    called = (f"to rank{'s' if len(ranks) > 1 else ''} {ranges(ranks, 4)}" for ranks in receivers)
    return [name if j in large else "to all others" for j, name in enumerate(called)]


def trace_figure(
    tables: Tables, kind: str = "modules", window: tuple[float, float] | None = None, sizes: str = WIRE
) -> Any:
    """Return one figure of a trace as a ``plotly.graph_objects.Figure``.

    Args:
        tables: tables of the trace.
        kind: a key of `KINDS`.
        window: for ``sequence``, the part of its axis: seconds where measured, else rounds or places in the order.
        sizes: which bytes are drawn, ``"wire"`` or ``"message"``.

    Raises:
        UsageError: no such kind or sizes.
    """
    if kind not in KINDS:
        raise UsageError(f"figure(kind={kind!r}): no such figure; kinds are {', '.join(KINDS)}")
    import plotly.graph_objects as go  # takes long to import

    spec = figure_of(tables, kind, window, sizes)
    figure = go.Figure(finished(spec, why_empty(kind)))
    if spec["data"] and kind in _SAID_ABOVE:
        title = {
            "text": _bytes_label(tables, kind, sizes),
            "font": {"size": 12},
            "x": 1,
            "xref": "paper",
            "xanchor": "right",
        }
        figure.update_layout(title={**title, "y": 1, "yanchor": "top", "pad": {"t": 8}})
    return figure


_SAID_ABOVE = ("modules", "sequence", "ranks", "sankey")
"""Kinds without an axis of bytes, so that a title must say what the bytes are summed over.

The explorer says it in its own status line.
"""


def _bytes_label(tables: Tables, kind: str, sizes: str) -> str:
    """Return the label of a figure's bytes: which bytes, and what they are summed over."""
    if kind not in ("ranks", "sankey"):
        return f"{sizes} bytes, {summed_over(tables)}"
    steps = in_steps(tables.events)["step"].n_unique()
    over = f"summed over its {steps:,} steps" if steps > 1 else "in one step"
    return f"{sizes} bytes from each recorded rank {over}, start-up left out"


def figure_of(
    tables: Tables, kind: str, window: tuple[float, float] | None = None, sizes: str = WIRE, top: float = 0.0
) -> Spec:
    """Return the data of one figure and its own part of the layout; see `trace_figure`.

    ``top``: value of the darkest color, if the figure shows only a part of the trace that sets the scale.
    """
    size = column_of(sizes)
    if kind == "sequence":
        return sequence(tables, window, sizes)
    if kind == "ranks":
        return peers(tables, size, top)
    return KINDS[kind](tables, size)


def top_of(tables: Tables, kind: str, sizes: str) -> float:
    """Return the bytes of the darkest color of a figure of the whole trace; 0 if the figure has no such scale."""
    size = column_of(sizes)
    if kind == "ranks":
        return float(tally.between_ranks(tables, size=size).bytes.max(initial=0.0))
    return 0.0


def why_empty(kind: str, filtered: bool = False) -> str:
    """Return the text shown in place of a figure without data."""
    if filtered:
        return "nothing of this kind in what is chosen"
    return "no durations were measured" if kind == "bandwidth" else "nothing of this kind in the trace"


def modules(tables: Tables, size: str = "wire_bytes") -> Spec:
    """Return a heatmap of bytes: place in the model × mesh axis."""
    codes = EventCodes(tables, sizes=KIND_OF[size])
    return module_heatmap(codes.places(codes.total, unknown=codes.unknown(codes.every)), codes.largest_place)


def module_heatmap(grid: Grid, top: float = 0.0) -> Spec:
    """Return a heatmap of places in the model, with the prefix that all names share removed from labels."""
    shared = shared_prefix([row for row in grid.rows if row not in (OUTSIDE, OTHERS)])
    return heatmap_spec(grid, "module_axis", [row.removeprefix(shared) for row in grid.rows], grid.columns, top)


def sequence_state(tables: Tables, sizes: str, kind: Any = None) -> TimelineState:
    """Return the timeline with a lane for each rank, group and op, of at most `FIGURE_LANES` lanes."""
    timeline = timeline_of(tables, "collective", "phase", "wire" if sizes == WIRE else "message")
    return TimelineState(timeline, columns_of(len(timeline.lanes)), 1500, kind, FIGURE_LANES)


def sequence(tables: Tables, window: tuple[float, float] | None, sizes: str) -> Spec:
    """Return collectives over time, or in program order if no times were measured."""
    state = sequence_state(tables, sizes)
    if window is not None:
        state.zoom(*window)
    return timeline_spec(state)


def ops(tables: Tables, size: str = "wire_bytes") -> Spec:
    """Return bars of bytes per op, split by phase with its letter."""
    totals = tally.op_by_phase(tables.events, size)
    order = list(dict.fromkeys(totals["op"]))
    names = unique(order)
    data = []
    for phase in [p for p in PHASES if p in set(totals["phase"])]:
        rows = {op: tuple(numbers) for op, p, *numbers in totals.iter_rows() if p == phase}
        values = [rows.get(op, (0, 0, 0)) for op in order]
        mark = phase_mark(phase)
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "y": names,
                "x": [size for _, size, _ in values],
                "name": f"{mark.letter} {phase}",
                "marker": {"color": mark.color},
                "customdata": [[op, phase] for op in order],
                "hovertext": [
                    f"{name}, {phase}<br>{count:,} ×, {format_sum(size, unknown)}"
                    for name, (count, size, unknown) in zip(names, values, strict=True)
                ],
                "meta": {"kind": "op_phase"},
                "hovertemplate": "%{hovertext}<extra></extra>",
            }
        )
    sums = totals.group_by("op").agg(pl.col("bytes").sum())["bytes"]
    title = {"title": {"text": f"{KIND_OF[size]} bytes, {summed_over(tables)}"}}
    axes = {"xaxis": {**byte_axis([float(x) for x in sums]), **title}, "yaxis": {"autorange": "reversed"}}
    return {"data": data, "layout": {"barmode": "stack", **axes}}


def sizes(tables: Tables, _size: str = "") -> Spec:
    """Return a histogram of message sizes by powers of two; always message bytes, whatever ``sizes`` is elsewhere."""
    messages = tally.message_sizes(tables.events)
    every = messages["size"].unique().sort(nulls_last=True).to_list()
    data = []
    for op in sorted(set(messages["op"])):
        rows = dict(messages.filter(op=op).select("size", "count").iter_rows())
        data.append(
            {
                "type": "bar",
                "x": [format_bytes(s) if s else tally.size_range(s) for s in every],
                "y": [rows.get(s, 0) for s in every],
                "name": label(op, 20),
                "marker": {"color": op_mark(op).color},
                "customdata": [[op, s] for s in every],
                "meta": {"kind": "size"},
                "hovertext": [tally.size_range(s) for s in every],
                "hovertemplate": f"%{{hovertext}}: %{{y}} ×<extra>{label(op)}</extra>",
            }
        )
    axes = {
        "xaxis": {"type": "category", "title": {"text": "message size, at least"}},
        "yaxis": {"title": {"text": f"collectives {summed_over(tables)}"}},
    }
    return {"data": data, "layout": {"barmode": "stack", **axes}}


def bandwidth(tables: Tables, _size: str = "") -> Spec:
    """Return median bus bandwidth over message size; empty if nothing was measured, as in a simulation."""
    bandwidths = tally.bus_bandwidth(tables.events)
    data = []
    for op in sorted(set(bandwidths["op"])):
        part = bandwidths.filter(op=op)
        mark = op_mark(op)
        data.append(
            {
                "type": "scatter",
                "x": part["size"].to_list(),
                "y": part["gb_per_s"].to_list(),
                "mode": "lines+markers",
                "name": label(op, 20),
                "marker": {"color": mark.color, "symbol": mark.symbol, "size": 9},
                "line": {"color": mark.color},
                "meta": {"kind": "size"},
                "customdata": [[op, s] for s in part["size"]],
                "hovertext": [f"from {format_bytes(s)}" for s in part["size"]],
                "hovertemplate": f"%{{hovertext}}: %{{y:.3g}} GB/s<extra>{label(op)}</extra>",
            }
        )
    every = sorted(set(bandwidths["size"]))
    shown = every[:: -(-len(every) // 6) or 1]
    x = {"type": "log", "tickvals": shown, "ticktext": [format_bytes(s) for s in shown]}
    axes = {
        "xaxis": {**x, "title": {"text": "message bytes"}},
        "yaxis": {"title": {"text": "bus bandwidth, GB/s"}, "rangemode": "tozero"},
    }
    return {"data": data, "layout": axes}


KINDS: dict[str, Callable[[Tables, str], Spec]] = {
    "modules": modules,
    "ops": ops,
    "sequence": lambda tables, size: sequence(tables, None, KIND_OF[size]),
    "ranks": peers,
    "sankey": sankey,
    "sizes": sizes,
    "bandwidth": bandwidth,
}
