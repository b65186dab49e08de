"""The view of a `WorldMap`: nodes with their ranks, shaded by what is sent to each, and a table of the links."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from dsexplore._internal.analysis.world_map import (
    WorldMap,
    about_seconds,
    at_most,
    link_rows,
    merged,
    unknown_bytes,
    value_text,
)
from dsexplore._internal.trace.schema import NO_AXIS
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.units import format_bytes, format_ranges, format_seconds
from dsexplore._internal.views.page import html
from dsexplore._internal.views.page.html_table import Column, table, text
from dsexplore._internal.views.page.style import AXIS_STYLE
from dsexplore._internal.views.page.theme import AXES, SHADE, axis_number
from dsexplore._internal.views.view import View
from dsexplore._internal.views.world_map.world_map_figure import DrawnNode, DrawnRank, node_boxes

STYLE = """
.dsx .nodes{display:flex;flex-wrap:wrap;gap:8px;margin:6px 0}
.dsx .node{border:1px solid var(--dsx-line);padding:3px 5px;font-size:var(--dsx-tiny)}
.dsx .node>div{display:grid;gap:2px;margin-top:2px}
.dsx .rank{min-width:28px;height:23px;text-align:center;color:inherit;
font:calc(var(--dsx-size)*10/13)/15px var(--dsx-font);
border:1px solid var(--dsx-line);background:none;padding:0 2px 5px;border-radius:0;forced-color-adjust:none}
.dsx .rank.in{position:relative}
.dsx .rank.some{border:2px solid var(--dsx-fg);line-height:13px}
.dsx .rank>s{position:absolute;inset:auto 0 0;height:5px;display:flex;border-top:1px solid #fff9}
.dsx .rank>s>i{flex:1}
.dsx .rank.own{font-weight:700;text-decoration:underline}
.dsx button.rank,.dsx [data-link]{cursor:pointer}
.dsx .rank[aria-pressed=true],.dsx [data-link][aria-selected=true]{box-shadow:0 0 0 2px var(--dsx-focus)}
.dsx .rank sub{font-size:calc(var(--dsx-size)*8/13);line-height:0}
.dsx .ramp{display:inline-block;width:120px;height:10px;border:1px solid var(--dsx-line);vertical-align:middle}
.dsx .nodes~.scroll th{white-space:normal}
.dsx .level{display:block;width:140px;height:9px;margin-top:5px;background:var(--dsx-shade)}
.dsx .level i{display:block;height:9px}
.dsx .ramp,.dsx .level i{forced-color-adjust:none}
""" + "".join(f".dsx .rank.g{i}{{outline:2px solid {axis[0]};outline-offset:-2px}}\n" for i, axis in enumerate(AXES))
_STYLE = STYLE + AXIS_STYLE
_MOST_NODES = 40
_COLUMNS = 4
"""Number of ranks in one row of a node's box."""
_DARK = 78
"""Percentage of the shade above which text on it is white."""


class WorldMapView(View):
    """The view of a `WorldMap`."""

    title = "World map"

    def __init__(self, world: WorldMap) -> None:
        self._world = world

    def text(self) -> str:
        """Return the title, the verdict, and a line per axis and level of link."""
        return "\n".join([_title(self._world), *(f"  {html.plain(line, longest=0)}" for line in self._world.lines())])

    def html(self) -> str:
        """Return boxes of ranks per node, shaded by what the recorded ranks send them, and a table of links."""
        return html.fragment(map_html(self._world), _STYLE)

    def figure(self, axis: str | None = None) -> Any:
        """Return a heatmap with a row per node and a column per rank in it.

        Args:
            axis: a mesh axis; None for all of them.
        """
        import plotly.graph_objects as go  # takes long to import

        from dsexplore._internal.views.world_map.world_map_figure import heatmap

        return go.Figure(heatmap(self._world, axis))

    def explore(self) -> Any:
        """Return the map with a choice of axes; a click on a rank selects what is sent to it.

        ``.selection`` is the `Trace` of the selected events, the whole trace before any click. ``.select(rank)`` does
        the same as a click.
        """
        import ipywidgets

        from dsexplore._internal.views.widgets.chart_explorer import ChartExplorer

        world, rank, description = self._world, None, ipywidgets.HTML()
        names = [("all axes", None), *((name, name) for name in world.axes)]
        axes = ipywidgets.Dropdown(options=names, description="axis")

        def select(chosen: int | None) -> None:
            nonlocal rank
            rank = chosen
            explorer.selection = Trace(world.tables) if rank is None else world.talks_to(rank, axes.value)
            if rank is None:
                description.value = "A click on a rank selects what is sent to it."
            else:
                description.value = html.escape(_rank_text(world, rank, axes.value, len(explorer.selection)))

        def draw(axis: str | None) -> tuple[Any, str]:
            return self.figure(axis), f"world map, {axis or 'all axes'}"

        explorer = ChartExplorer(self, draw=draw, select=select, controls={"axis": axes}, below=[description])
        axes.observe(lambda _: select(rank), "value")
        select(None)
        return explorer


def _rank_text(world: WorldMap, rank: int, axis: str | None, events: int) -> str:
    """Return what a rank exchanges with the recorded ranks on an axis (None: on all), and the number of its events."""
    amount = value_text(world, world.to_shades(axis)[rank])
    shared = "with" if world.running is not None else "from"
    return f"rank {rank}: {amount} a step {shared} the recorded ranks; {events:,} events selected"


@dataclass(frozen=True)
class Look:
    """Options of a drawn map."""

    top: float = 0.0
    """Bytes or seconds of the darkest shade; 0 for the maximum over the map's ranks."""
    live: bool = False
    """True if ranks and links can be clicked."""
    picked: tuple[int, ...] = ()
    """Ranks that are drawn as selected."""
    link: int = -1
    """Index of the selected row in the table of links; −1 for none."""


def map_html(world: WorldMap, look: Look = Look()) -> str:
    """Return the key, the nodes and the table of links as HTML, without `STYLE`."""
    unknown = unknown_bytes(world) if world.received else ""
    more = [f"More may be sent: {unknown}."] if unknown else []
    title = f"<p>{html.prose(_title(world), longest=200)}</p>{html.verdict(world.verdict())}{html.sentences(more)}"
    if not world.received:
        return title
    look = replace(look, top=look.top or float(world.to_shades().max()) or 1.0)
    return title + _key(world, look) + _nodes_html(world, look) + _table(world, look) + _rules(world)


def _title(world: WorldMap) -> str:
    """Return the ranks, their nodes and mesh, and the quantity that shades the map, in one line."""
    ranks = world.senders or world.tables.info.ranks
    senders = f"rank {ranks[0]} sends" if len(ranks) == 1 else f"{len(ranks):,} ranks send"
    shown = f"what {senders} in a step"
    if world.running is not None:
        shown = f"time in collectives per step, {world.running.times.source}"
    mesh = f", {world.tables.info.mesh}" if world.tables.info.mesh else ""
    return html.plain(f"World map: {world.extent}{mesh}; {shown}", longest=200)


def _key(world: WorldMap, look: Look) -> str:
    """Return which axes the colors stand for, and the scale of the shades."""
    scale = f'<span class="ramp" style="background:linear-gradient(90deg,transparent,{SHADE})"></span>'
    what, top = f"{world.sizes} bytes that a rank receives from the recorded ones in a step", format_bytes(look.top)
    if world.running is not None:
        what, top = "seconds of a step that a rank is in collectives", format_seconds(look.top)
    axes = dict.fromkeys(axis for node in node_boxes(world) for cell in node.cells for axis in _striped(cell))
    below = f"Below a number: axis {', '.join(html.axis_key(axis, longest=40) for axis in axes)}. " if axes else ""
    return f'<p class="dim">{below}Shade: {what}, 0 {scale} {top}.</p>'


def _striped(cell: DrawnRank) -> tuple[str, ...]:
    """Return the axes whose colors are below a rank's number: none if no group belongs to a mesh."""
    return () if {*cell.axes} <= {"", NO_AXIS} else cell.axes


def _rules(world: WorldMap) -> str:
    """Return what the marks and numbers mean, folded behind a "?"."""
    framed = (
        "Underlined: recorded. A thick frame: in a group of a recorded rank, on the axes whose colors are below its "
        "number."
    )
    outlined = f" Outlined with a number: the groups of {html.name(world.axis, longest=40)}." if world.axis else ""
    about = "The bytes of a collective are divided equally among the other ranks of its group. Start-up is not counted."
    if world.running is not None:
        about = html.escape(about_seconds(world), longest=1000)
    return html.how(f"{framed}{outlined} {about}")


def _nodes_html(world: WorldMap, look: Look) -> str:
    """Return the boxes of the nodes, and a note if some are not drawn."""
    nodes, groups = node_boxes(world), world.group_of_each()
    hidden = sum(len(node.numbers) for node in nodes[_MOST_NODES:])
    more = f'<p class="dim">{hidden:,} more {world.box}s are not drawn.</p>' if hidden else ""
    drawn = "".join(_node(world, node, groups, number=i, look=look) for i, node in enumerate(nodes[:_MOST_NODES]))
    return f'<div class="nodes">{drawn}</div>{more}'


def _node(world: WorldMap, node: DrawnNode, groups: dict[int, int], *, number: int, look: Look) -> str:
    """Return the box of a node, the ``number``-th that is drawn; ``groups``: {rank: number of its outlined group}."""
    if len(node.numbers) > 1:
        name = f"{world.box}s {format_ranges(node.numbers, 3)} (each of {len(node.numbers):,})"
    else:
        name = f"{world.box} {node.numbers[0]}"
    cells = "".join(_cell(world, cell, groups, place=f"{number}.{i}", look=look) for i, cell in enumerate(node.cells))
    columns = f"grid-template-columns:repeat({min(_COLUMNS, len(node.cells))},auto)"
    return f'<div class="node">{html.escape(name)}<div style="{columns}">{cells}</div></div>'


def _cell(world: WorldMap, cell: DrawnRank, groups: dict[int, int], *, place: str, look: Look) -> str:
    """Return the cell of a rank, or of the ranks at this place in several equal nodes.

    Args:
        world: the map.
        cell: the rank, or the ranks at this place.
        groups: {rank: number of its outlined group}.
        place: ``"3.5"`` for the sixth cell of the fourth drawn node.
        look: options of the map, with the value of the darkest shade.
    """
    several = len(cell.ranks) > 1
    rank_text = f"each of ranks {format_ranges(cell.ranks, 3)}" if several else f"rank {cell.ranks[0]}"
    axes = f", in a group of {', '.join(cell.axes)}" if cell.axes else ""
    group = groups.get(cell.ranks[0]) if not several else None
    numbered = f", group {group}" if group is not None else ""
    marks_recorded = len(world.senders) < world.world_size  # nothing to mark where all ranks are recorded
    kind = f"rank{' in' if cell.axes else ''}{' some' if marks_recorded and cell.axes else ''}"
    kind += " own" if marks_recorded and cell.recorded else ""
    kind += f" g{group % len(AXES)}" if group is not None else ""
    spoken = html.escape(
        f"{rank_text}: {value_text(world, cell.value)} a step{', recorded' if cell.recorded else ''}{axes}{numbered}"
    )
    share = round(85 * min(1.0, cell.value / look.top))
    shade = f"background:color-mix(in srgb,{SHADE} {share}%,transparent)" if share else ""
    text_color = ";color:#fff" if share > _DARK else ""
    text = ("·" if several else str(cell.ranks[0])) + (f"<sub>{group}</sub>" if group is not None else "")
    stripes = "".join(f'<i class="a{color}"></i>' for color in sorted(map(axis_number, _striped(cell))))
    text += f"<s>{stripes}</s>" if stripes else ""
    drawn = f'class="{kind}" style="{shade}{text_color}" title="{spoken}" aria-label="{spoken}"'
    if look.live:
        first = 0 if place == "0.0" else -1
        state = f'data-cell="{place}" tabindex="{first}" aria-pressed="{str(cell.ranks == look.picked).lower()}"'
        return f"<button {drawn} {state}>{text}</button>"
    return f'<div {drawn} role="img">{text}</div>'


def _table(world: WorldMap, look: Look) -> str:
    """Return a row per axis and level of link; empty if it would only repeat the verdict."""
    links = link_rows(world)
    if not look.live and world.running is not None:
        links = merged(links)
        if len(links) == 1:
            return ""
    top = max((link.value for link in links), default=0) or 1
    per = f"{world.sizes} bytes" if world.running is None else "seconds"
    columns = (
        text("axis", lambda row: html.axis_key(row.axis, longest=40)),
        text("links", lambda row: row.links),
        Column("ranks sent to", lambda row: f"{row.peers:,}"),
        Column(
            f"{per} per rank and step{', at most' if at_most(world) else ''}", lambda row: value_text(world, row.value)
        ),
        text("", lambda row: _level_bar(row.axis, row.value / top)),
    )
    marks = [
        f' data-link="{i}" tabindex="0" aria-selected="{str(i == look.link).lower()}"'
        for i in range(len(links))
        if look.live
    ]
    return table(columns, links, attributes=marks)


def _level_bar(axis: str, share: float) -> str:
    look = f"width:{100 * share:.3g}%"
    return f'<span class="level"><i class="a{axis_number(axis)}" style="{look}"></i></span>'
