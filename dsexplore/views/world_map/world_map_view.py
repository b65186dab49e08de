"""The view of a `WorldMap`: text, and a drawing of the nodes with a table of the links."""

from __future__ import annotations

from typing import Any

import polars as pl

from dsexplore.analysis.world_map import BETWEEN, INSIDE, WorldMap
from dsexplore.units import format_bytes
from dsexplore.views.page import html
from dsexplore.views.page.theme import BLUE
from dsexplore.views.trace.folding import ranges
from dsexplore.views.view import View
from dsexplore.views.world_map.node_boxes import Cell, Node, node_boxes

STYLE = """
.dsx .nodes{display:flex;flex-wrap:wrap;gap:8px;margin:6px 0}
.dsx .node{border:1px solid var(--dsx-line);padding:3px 5px;font-size:11px}
.dsx .node>div{display:grid;gap:2px;margin-top:2px}
.dsx .rank{min-width:26px;height:18px;line-height:16px;text-align:center;font-size:10px;
border:1px solid var(--dsx-line)}
.dsx .rank.in{border:2px solid var(--dsx-fg);line-height:14px}
.dsx .rank.own{font-weight:700;text-decoration:underline}
.dsx .scale{display:inline-block;width:120px;height:10px;border:1px solid var(--dsx-line);vertical-align:middle}
"""
_MOST_NODES = 40
_COLUMNS = 4
"""Ranks side by side in a node."""
_DARK = 78
"""The percentage of the shade from which text on it is white."""


class WorldMapView(View):
    """The view of a `WorldMap`."""

    title = "World map"

    def __init__(self, world: WorldMap) -> None:
        self._world = world

    def text(self) -> str:
        """The world, and a line per axis and level of link."""
        return "\n".join([_summary(self._world), *(f"  {line}" for line in _level_lines(self._world))])

    def html(self) -> str:
        """The nodes as boxes of ranks, shaded by what the recorded ranks send them, and a table of links."""
        world = self._world
        title = f"<p><b>{html.escape(_summary(world))}</b></p>"
        if not world.received:
            return html.fragment(title + "<p>Nothing was sent after start-up: there is no link to draw.</p>")
        return html.fragment(title + _key(world) + nodes_html(world) + _table(world), STYLE)

    def figure(self, axis: str | None = None, **_options: Any) -> Any:
        """A plotly heatmap, a row per node and a column per rank of it."""
        import plotly.graph_objects as go  # takes long to import

        from dsexplore.views.world_map.world_map_figure import heatmap

        return go.Figure(heatmap(self._world, axis))

    def explore(self, **options: Any) -> Any:
        """The map with its axes to choose from; a click on a rank selects what is sent to it."""
        from dsexplore.views.world_map.world_map_explorer import explorer  # ipywidgets are loaded when asked for

        return explorer(self._world, **options)


def _summary(world: WorldMap) -> str:
    ranks = sorted(set(world.tables.events["rank"].to_list()) or set(world.tables.info.ranks))
    whose = f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks):,} ranks"
    mesh = f", {world.tables.info.mesh}" if world.tables.info.mesh else ""
    nodes = f"{world.nodes:,} node{'s' if world.nodes > 1 else ''} of {world.ranks_per_node}"
    return html.plain(f"World map: {world.world_size:,} ranks on {nodes}{mesh}; what {whose} sends in a step", 200)


def _level_lines(world: WorldMap) -> list[str]:
    return [
        f"{html.plain(axis, 30)}, {level}: {format_bytes(size)} on the wire to {_count(peers)}"
        for axis, level, size, peers in _levels(world).iter_rows()
    ]


def _levels(world: WorldMap) -> pl.DataFrame:
    """Columns: axis, level, wire_bytes and peers, of the recorded rank that sends most there."""
    place = {axis: i for i, axis in enumerate(world.axes)}
    totals = world.links.group_by("axis", "level").agg(pl.col("wire_bytes").max(), pl.col("peers").max())
    order = pl.col("axis").replace_strict(place, default=len(place), return_dtype=pl.Int64)
    return totals.sort(order, "level", descending=[False, True]).select("axis", "level", "wire_bytes", "peers")


def _count(peers: int) -> str:
    return f"{peers:,} other rank{'s' if peers != 1 else ''}"


def _key(world: WorldMap) -> str:
    top = format_bytes(world.to_each().max())
    scale = f'<span class="scale" style="background:linear-gradient(90deg,transparent,{BLUE})"></span>'
    return (
        f'<p class="dim">Shade: wire bytes that a rank gets of the recorded ones in a step, 0 {scale} {top}. '
        "Underlined: recorded. A thick frame: in a group of a recorded rank. What a collective sends is shared "
        "equally among the other ranks of its group; start-up is left out.</p>"
    )


def nodes_html(world: WorldMap) -> str:
    """The boxes of the nodes."""
    nodes = node_boxes(world)
    top = float(world.to_each().max()) or 1.0
    hidden = sum(len(node.numbers) for node in nodes[_MOST_NODES:])
    more = f'<p class="dim">{hidden:,} more nodes are not drawn.</p>' if hidden else ""
    return f'<div class="nodes">{"".join(_node(node, top) for node in nodes[:_MOST_NODES])}</div>{more}'


def _node(node: Node, top: float) -> str:
    if len(node.numbers) > 1:
        name = f"nodes {ranges(list(node.numbers), 3)} (each of {len(node.numbers):,})"
    else:
        name = f"node {node.numbers[0]}"
    cells = "".join(_cell(cell, top) for cell in node.cells)
    columns = f"grid-template-columns:repeat({min(_COLUMNS, len(node.cells))},auto)"
    return f'<div class="node">{html.escape(name)}<div style="{columns}">{cells}</div></div>'


def _cell(cell: Cell, top: float) -> str:
    several = len(cell.ranks) > 1
    whose = f"each of ranks {ranges(list(cell.ranks), 3)}" if several else f"rank {cell.ranks[0]}"
    axes = f", in a group of {', '.join(cell.axes)}" if cell.axes else ""
    spoken = html.escape(f"{whose}: {format_bytes(cell.bytes)} a step{', recorded' if cell.recorded else ''}{axes}")
    kind = f"rank{' in' if cell.axes else ''}{' own' if cell.recorded else ''}"
    share = round(85 * (cell.bytes / top) ** 0.5)
    shade = f"background:color-mix(in srgb,{BLUE} {share}%,transparent)" if share else ""
    ink = ";color:#fff" if share > _DARK else ""
    text = "·" if several else str(cell.ranks[0])
    return f'<div class="{kind}" style="{shade}{ink}" title="{spoken}" role="img" aria-label="{spoken}">{text}</div>'


def _table(world: WorldMap) -> str:
    rows = [
        (html.name(axis, 40), level, f"{peers:,}", format_bytes(size))
        for axis, level, size, peers in _levels(world).iter_rows()
    ]
    inside, between = (format_bytes(_most(world, level)) for level in (INSIDE, BETWEEN))
    total = f"<p>Per rank and step {inside} stay inside a node, {between} go between nodes.</p>"
    head = ("axis", "links", "ranks sent to", "wire bytes per rank and step")
    return total + html.table(head, rows, left=(0, 1))


def _most(world: WorldMap, level: str) -> int:
    """What the recorded rank that sends most over links of that level sends over them."""
    of_level = world.links.filter(pl.col("level") == level)
    return max(of_level.group_by("rank").agg(pl.col("wire_bytes").sum())["wire_bytes"].to_list(), default=0)
