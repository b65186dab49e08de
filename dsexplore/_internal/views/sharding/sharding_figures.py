"""Plotly figures of a `Sharding`: memory by rank, and the picture of one tensor."""

from __future__ import annotations

import html as entities
from typing import Any

import plotly.graph_objects as go
import torch

from dsexplore._internal.errors import UsageError
from dsexplore._internal.sharding.layout import Sharding
from dsexplore._internal.sharding.memory import PARTS, Assumptions, assume, memory_groups
from dsexplore._internal.sharding.rank_groups import RankGroup
from dsexplore._internal.sharding.tensor import PlacedTensor
from dsexplore._internal.units import format_bytes, parse_size
from dsexplore._internal.views.page import html
from dsexplore._internal.views.page.charts import LEGEND_ABOVE, themed
from dsexplore._internal.views.page.theme import AXES, FIGURE_TEXT, MEMORY, axis_number, tint
from dsexplore._internal.views.sharding.block_titles import Titles
from dsexplore._internal.views.sharding.drawn_mesh import DrawnMesh
from dsexplore._internal.views.sharding.shard_blocks import Panel, Picture, ShardBlock, axis_cuts, boundaries, picture
from dsexplore._internal.views.sharding.zoom import Frame, orders, picture_frame

KINDS = ("memory", "shards")
"""Kinds of figure."""
MOST_RANKS, MOST_BARS = 64, 40
"""Number of ranks up to which each has a bar, and maximal number of bars of groups of ranks."""
_WHOLE = ("replicate", "partial")
"""Kinds of placements with which each rank has the whole tensor."""


def sharding_figure(
    shown: Sharding,
    kind: str | None = None,
    tensor: str | None = None,
    optimizer: str | int = "AdamW",
    state_dtype: torch.dtype | None = None,
    gradient_dtype: torch.dtype | None = None,
) -> go.Figure:
    """Return a figure of a `Sharding`; `ShardingView.figure` describes the arguments.

    Raises:
        UsageError: No such kind, tensor or optimizer.
    """
    chosen = kind or ("shards" if len(shown) == 1 or tensor is not None else "memory")
    if chosen not in KINDS:
        raise UsageError(f"figure(kind={kind!r}): no such figure; kinds are {', '.join(KINDS)}")
    if chosen == "memory":
        figure = _memory(shown, assume(optimizer, state_dtype, gradient_dtype))
    else:
        figure = _shards(shown if tensor is None else shown[tensor])
    margin = {"l": 8, "r": 24, "t": 76 if chosen == "memory" else 44, "b": 8}
    themed(figure, margin=margin, title={"x": 0, "xref": "paper", "font": {"size": 13}})
    figure.update_xaxes(zeroline=False)
    return figure.update_yaxes(zeroline=False)


def _memory(shown: Sharding, assumed: Assumptions) -> go.Figure:
    """Return a bar of bytes per rank or group of ranks."""
    groups = memory_groups(shown.mesh, shown.tensors, assumed)
    labels, bars = _bars(shown, groups)
    unit, size = _unit(max((sum(group.value) for group in groups), default=0))
    figure = go.Figure(layout={"barmode": "stack", "height": 150 + 24 * max(2, len(bars))})
    for number, part in enumerate(PARTS):
        mark = MEMORY[part]
        figure.add_bar(
            y=labels,
            x=[group.value[number] / size for group in bars],
            name=f"{mark.letter} {part}",
            orientation="h",
            marker={"color": mark.color, "line": {"width": 0}},
            text=[mark.letter if group.value[number] else "" for group in bars],
            textposition="inside",
            insidetextanchor="middle",
            textfont={"color": mark.text_color},
            textangle=0,
            customdata=[format_bytes(group.value[number]) for group in bars],
            hovertemplate=f"%{{y}}<br>{part}: %{{customdata}}<extra></extra>",
        )
    more = len(groups) - len(bars)
    what = f"{html.escape(shown.title, longest=60)} on {html.escape(shown.mesh, longest=60)}"
    title = f"{what}: memory by rank, {assumed.optimizer}"
    figure.update_layout(
        title_text=title + (f" ({more:,} smaller groups not shown)" if more > 0 else ""), legend=LEGEND_ABOVE
    )
    figure.update_xaxes(title=f"{unit} on a rank", rangemode="tozero")
    figure.update_yaxes(autorange="reversed", type="category")
    return figure


def _bars(shown: Sharding, groups: list[RankGroup]) -> tuple[list[str], list[RankGroup]]:
    """Return (labels, groups): one bar per rank if ranks are few, else one per group of equal ranks."""
    if shown.mesh.size <= MOST_RANKS and shown.tensors:
        ranks = {rank: group for group in groups for rank in group.numbers(shown.mesh)}
        return [f"rank {rank}" for rank in sorted(ranks)], [ranks[rank] for rank in sorted(ranks)]
    kept = groups[:MOST_BARS]
    return [f"{html.escape(group.ranks, longest=40)} ({group.count:,})" for group in kept], kept


def _unit(largest: int) -> tuple[str, int]:
    """Return the unit in which ``largest`` bytes are written, and its size in bytes."""
    unit = format_bytes(largest).split()[1]
    return unit, parse_size(f"1{unit}")


def _shards(shown: Sharding) -> go.Figure:
    """Return the picture of the only tensor of a sharding."""
    if len(shown) != 1:
        raise UsageError("figure(kind='shards') draws one tensor: name it, figure(kind='shards', tensor='…')")
    (tensor,) = shown.tensors
    placed = ", ".join(f"{axis.name} {p}" for axis, p in zip(tensor.axes, tensor.placements, strict=True)) or "plain"
    title = f"{html.escape(tensor.name, longest=60)} {tensor.shape}: {html.escape(placed, longest=80)}"
    figure = go.Figure(layout={"title_text": title, "height": 200, "showlegend": False})
    figure.update_xaxes(showgrid=False)
    figure.update_yaxes(showgrid=False)
    if not tensor.numel:
        figure.add_annotation(text="no elements: every rank holds an empty tensor", showarrow=False)
        figure.update_xaxes(visible=False)
        figure.update_yaxes(visible=False)
        return figure
    drawn = picture(tensor)
    frame = picture_frame(tensor, drawn)
    titles, panel = Titles(tensor, DrawnMesh(shown)), drawn.panels[0]
    down, across = orders(panel)
    for block in panel.blocks:
        _add_block(figure, block, down[block.rows[0][0]] + across[block.columns[0][0]], titles)
    for placement, axis in zip(tensor.placements, tensor.axes, strict=True):
        if placement.kind in _WHOLE and axis.size > 1:
            _add_tint(figure, f"{placement.kind} on {axis.name}", AXES[axis_number(axis.name)][0], frame)
    _add_cuts(figure, tensor, drawn, frame)
    _name_sides(figure, drawn, panel, tensor.shape)
    figure.update_layout(width=max(440, 1.3 * frame.width + 110), height=1.3 * frame.height + 110)
    return figure


def _name_sides(figure: go.Figure, drawn: Picture, panel: Panel, shape: tuple[int, ...]) -> None:
    """Set titles and ranges of the axes to the dims of a panel."""
    fixed = "".join(f", dim {dim} at {start}:{stop}" for dim, (start, stop) in panel.fixed)
    columns = shape[drawn.columns] if drawn.columns is not None else 1
    figure.update_xaxes(title=f"dim {drawn.columns}{fixed}" if shape else "", range=[0, columns])
    rows = shape[drawn.rows] if drawn.rows is not None else 1
    figure.update_yaxes(title=f"dim {drawn.rows}" if drawn.rows is not None else "", range=[rows, 0])
    figure.update_yaxes(visible=drawn.rows is not None)
    figure.update_xaxes(visible=bool(shape))


def _add_block(figure: go.Figure, block: ShardBlock, place: int, titles: Titles) -> None:
    """Draw each piece of a block as a closed line, with a tooltip; ``place`` alternates the shades of blocks."""
    xs: list[Any] = []
    ys: list[Any] = []
    for (y0, y1), (x0, x1) in ((row, column) for row in block.rows for column in block.columns):
        xs += [x0, x1, x1, x0, x0, None]
        ys += [y0, y0, y1, y1, y0, None]
        label = titles.label(block, 24) or f"{block.folded:,} shards"
        figure.add_annotation(
            x=(x0 + x1) / 2, y=(y0 + y1) / 2, text=label, showarrow=False, bgcolor="rgba(255,255,255,0.8)"
        )
    text = "<br>".join(titles.lines(block))
    odd = bool(titles.shade(block, place))
    figure.add_scatter(
        x=xs,
        y=ys,
        mode="lines",
        fill="toself",
        fillcolor=tint(FIGURE_TEXT, 0.12 if odd else 0.3),
        line={"color": FIGURE_TEXT, "width": 1, "dash": "dash" if block.folded > 1 else "solid"},
        text=text,
        hoverinfo="text",
        hoveron="fills",
        name=entities.unescape(text),
    )


def _add_cuts(figure: go.Figure, tensor: PlacedTensor, drawn: Picture, frame: Frame) -> None:
    """Add a line at each cut in the color of the outermost axis that cuts there; hovering names the axis."""
    lines: dict[str, tuple[list[Any], list[Any]]] = {}
    for down, dim, stretches in ((True, drawn.rows, drawn.down), (False, drawn.columns, drawn.across)):
        cuts = axis_cuts(tensor, dim, stretches)
        for index, place in boundaries(cuts).items():
            along, across = lines.setdefault(tensor.axes[cuts[place].number].name, ([], []))
            along += [0, frame.columns, None] if down else [index, index, None]
            across += [index, index, None] if down else [0, frame.rows, None]
    for axis, (xs, ys) in lines.items():
        line = {"color": AXES[axis_number(axis)][0], "width": 4}
        figure.add_scatter(x=xs, y=ys, mode="lines", line=line, name=html.escape(axis, longest=40), hoverinfo="name")


def _add_tint(figure: go.Figure, name: str, color: str, frame: Frame) -> None:
    """Add the tint of copies or partial values over the whole picture, because they concern the whole tensor."""
    figure.add_scatter(
        x=[0, frame.columns, frame.columns, 0],
        y=[0, 0, frame.rows, frame.rows],
        mode="none",
        fill="toself",
        fillcolor=tint(color, 0.14),
        hoverinfo="skip",
        name=html.escape(name, longest=60),
    )
