"""The view of a `WorldMap`: text, and a drawing of the nodes with a table of the links."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from dsexplore._internal.analysis.link_flows import BETWEEN, INSIDE
from dsexplore._internal.analysis.world_map import Level, WorldMap
from dsexplore._internal.trace.schema import NO_AXIS
from dsexplore._internal.trace.steps import in_steps
from dsexplore._internal.trace.unknown_sizes import what_is_unknown
from dsexplore._internal.units import format_bytes, format_count, format_ranges, format_seconds
from dsexplore._internal.views.page import html
from dsexplore._internal.views.page.style import AXIS_STYLE
from dsexplore._internal.views.page.theme import AXES, SHADE, axis_number
from dsexplore._internal.views.view import View
from dsexplore._internal.views.world_map.world_map_figure import DrawnNode, DrawnRank, node_boxes, written

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
_NOTHING = "Nothing was sent after start-up: there is no link to draw."
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
        """Return a line about the world, and a line per axis and level of link."""
        lines = _level_lines(self._world) if self._world.received else [_nothing(self._world)]
        unknown = _unknown(self._world)
        if unknown and self._world.received:
            lines.append(f"More may be sent: {unknown}.")
        return "\n".join([summary(self._world), *(f"  {line}" for line in lines)])

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
        """Return the map with a choice of axes; a click on a rank selects what is sent to it."""
        from dsexplore._internal.views.world_map.world_map_explorer import (
            explorer,  # ipywidgets are loaded when asked for
        )

        return explorer(self._world, self)


@dataclass(frozen=True)
class Look:
    """Options of a drawn map."""

    top: float = 0.0
    """Bytes or seconds of the darkest shade; 0 for the maximum over the map's ranks."""
    live: bool = False
    """True if ranks and links can be clicked."""
    picked: tuple[int, ...] = ()
    """Selected ranks."""
    link: int = -1
    """Index of the selected row in the table of links; −1 for none."""


def map_html(world: WorldMap, look: Look = Look()) -> str:
    """Return the key, the nodes and the table of links as HTML, without `STYLE`."""
    title = f"<p>{html.prose(summary(world), 200)}</p>"
    if not world.received:
        return title + html.verdict(_nothing(world))
    top = look.top or float(world.to_shades().max()) or 1.0
    look = replace(look, top=top)
    return title + _total(world) + _key(world, look) + _nodes_html(world, look) + _table(world, look) + _rules(world)


def summary(world: WorldMap) -> str:
    """Return one line that describes the world."""
    ranks = world.senders or world.tables.info.ranks
    senders = f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks):,} ranks"
    mesh = f", {world.tables.info.mesh}" if world.tables.info.mesh else ""
    send = "sends" if len(ranks) == 1 else "send"
    shown = f"what {senders} {send}" if world.running is None else f"how long collectives of {senders} run"
    times = f" ({world.running.times.source})" if world.running is not None else ""
    return html.plain(f"World map: {world.extent}{mesh}; {shown} in a step{times}", 200)


def _kind_of_bytes(world: WorldMap) -> str:
    return "on the wire" if world.sizes == "wire" else "in messages"


def _level_lines(world: WorldMap) -> list[str]:
    most = "" if world.is_even else "at most "
    lines = [
        f"{html.plain(level.axis, 30)}, {world.named(level.level)}: {most}{format_bytes(level.bytes)} "
        f"{_kind_of_bytes(world)} to {format_count(level.peers, 'other rank')}"
        for level in world.levels
    ]
    if world.running is None:
        return lines
    at_most = "at most " if len(world.senders) > 1 else ""
    timed = [
        f"{line}, {at_most}{format_seconds(level.seconds)}" for line, level in zip(lines, world.levels, strict=True)
    ]
    return [*timed, _about_seconds(world)]


def _about_seconds(world: WorldMap) -> str:
    """Return sentences on what the seconds count, and whether they are measured or predicted."""
    assert world.running is not None
    times = world.running.times
    alone = (
        " Of a collective that one rank alone recorded, waiting for the others is part of what was measured."
        if times.source == "measured" and len(world.senders) < world.world_size
        else ""
    )
    return (
        f"Seconds: {html.plain(times.words, 200)}, in which collectives ran that the rank takes part in with a "
        "recorded one; what runs at the same time counts once, and start-up is left out. A collective has one "
        f"duration, the least over its recorded ranks: the rest is waiting, and is not counted.{alone} Links have no "
        "times of their own: theirs are those of the collectives that go over them."
    )


def _key(world: WorldMap, look: Look) -> str:
    scale = f'<span class="ramp" style="background:linear-gradient(90deg,transparent,{SHADE})"></span>'
    what, top = (
        (f"{world.sizes} bytes that a rank gets of the recorded ones in a step", format_bytes(look.top))
        if world.running is None
        else ("seconds of a step that a rank is in collectives", format_seconds(look.top))
    )
    axes = dict.fromkeys(axis for node in node_boxes(world) for cell in node.cells for axis in _striped(cell))
    below = f"Below a number: axis {', '.join(html.axis_key(axis, 40) for axis in axes)}. " if axes else ""
    return f'<p class="dim">{below}Shade: {what}, 0 {scale} {top}.</p>'


def _striped(cell: DrawnRank) -> tuple[str, ...]:
    """Return the axes whose colors are below a rank's number: none where no group is of a mesh."""
    return () if {*cell.axes} <= {"", NO_AXIS} else tuple(cell.axes)


def _rules(world: WorldMap) -> str:
    """Return what marks and numbers mean, closed at first."""
    framed = (
        "Underlined: recorded. A thick frame: in a group of a recorded rank, on the axes whose colors are below its "
        "number."
    )
    outlined = f" Outlined with a number: the groups of {html.name(world.axis, 40)}." if world.axis else ""
    about = (
        "What a collective sends is shared equally among the other ranks of its group; start-up is left out."
        if world.running is None
        else html.escape(_about_seconds(world), 1000)
    )
    return html.how(f"{framed}{outlined} {about}")


def _nodes_html(world: WorldMap, look: Look) -> str:
    """Return the boxes of the nodes, and a note if some are not drawn."""
    nodes, groups = node_boxes(world), world.group_of_each()
    hidden = sum(len(node.numbers) for node in nodes[_MOST_NODES:])
    more = f'<p class="dim">{hidden:,} more {world.box}s are not drawn.</p>' if hidden else ""
    drawn = "".join(_node(world, node, groups, i, look) for i, node in enumerate(nodes[:_MOST_NODES]))
    return f'<div class="nodes">{drawn}</div>{more}'


def _node(world: WorldMap, node: DrawnNode, groups: dict[int, int], number: int, look: Look) -> str:
    if len(node.numbers) > 1:
        name = f"{world.box}s {format_ranges(node.numbers, 3)} (each of {len(node.numbers):,})"
    else:
        name = f"{world.box} {node.numbers[0]}"
    cells = "".join(_cell(world, cell, groups, f"{number}.{i}", look) for i, cell in enumerate(node.cells))
    columns = f"grid-template-columns:repeat({min(_COLUMNS, len(node.cells))},auto)"
    return f'<div class="node">{html.escape(name)}<div style="{columns}">{cells}</div></div>'


def _cell(world: WorldMap, cell: DrawnRank, groups: dict[int, int], place: str, look: Look) -> str:
    several = len(cell.ranks) > 1
    rank_text = f"each of ranks {format_ranges(cell.ranks, 3)}" if several else f"rank {cell.ranks[0]}"
    axes = f", in a group of {', '.join(cell.axes)}" if cell.axes else ""
    group = groups.get(cell.ranks[0]) if not several else None
    numbered = f", group {group}" if group is not None else ""
    some = len(world.senders) < world.world_size  # where all are recorded, all are alike
    kind = f"rank{' in' if cell.axes else ''}{' some' if some and cell.axes else ''}"
    kind += " own" if some and cell.recorded else ""
    kind += f" g{group % len(AXES)}" if group is not None else ""
    spoken = html.escape(
        f"{rank_text}: {written(world, cell.value)} a step{', recorded' if cell.recorded else ''}{axes}{numbered}"
    )
    share = round(85 * min(1.0, cell.value / look.top))
    shade = f"background:color-mix(in srgb,{SHADE} {share}%,transparent)" if share else ""
    ink = ";color:#fff" if share > _DARK else ""
    text = ("·" if several else str(cell.ranks[0])) + (f"<sub>{group}</sub>" if group is not None else "")
    stripes = "".join(f'<i class="a{color}"></i>' for color in sorted(map(axis_number, _striped(cell))))
    text += f"<s>{stripes}</s>" if stripes else ""
    drawn = f'class="{kind}" style="{shade}{ink}" title="{spoken}" aria-label="{spoken}"'
    if look.live:
        first = 0 if place == "0.0" else -1
        state = f'data-cell="{place}" tabindex="{first}" aria-pressed="{str(cell.ranks == look.picked).lower()}"'
        return f"<button {drawn} {state}>{text}</button>"
    return f'<div {drawn} role="img">{text}</div>'


def _table(world: WorldMap, look: Look) -> str:
    drawn_levels = _levels(world)
    if not look.live and world.running is not None:
        drawn_levels = _merged(drawn_levels)
        if len(drawn_levels) == 1:
            return ""  # the sentence above it says the same
    top = max((value for *_, value in drawn_levels), default=0) or 1
    rows = []
    for axis, links, peers, value in drawn_levels:
        drawn = (
            f'<span class="level"><i class="a{axis_number(axis)}" style="width:{100 * value / top:.3g}%"></i></span>'
        )
        rows.append((html.axis_key(axis, 40), links, f"{peers:,}", written(world, value), drawn))
    per = f"{world.sizes} bytes" if world.running is None else "seconds"
    head = ("axis", "links", "ranks sent to", f"{per} per rank and step{', at most' if _most(world) else ''}", "")
    marks = [
        f' data-link="{i}" tabindex="0" aria-selected="{str(i == look.link).lower()}"'
        for i in range(len(rows))
        if look.live
    ]
    return html.table(head, rows, left=(0, 1, 4), attributes=marks)


def _levels(world: WorldMap) -> list[tuple[str, str, int, float]]:
    return [(level.axis, world.named(level.level), level.peers, _value(world, level)) for level in world.levels]


def _value(world: WorldMap, level: Level) -> float:
    return level.bytes if world.running is None else level.seconds


def _merged(levels: list[tuple[str, str, int, float]]) -> list[tuple[str, str, int, float]]:
    """Return one row for both levels of an axis whose collectives all go over links of both."""
    rows: list[tuple[str, str, int, float]] = []
    for axis, links, peers, value in levels:
        if rows and (rows[-1][0], rows[-1][3]) == (axis, value):
            _, before, of_before, _ = rows.pop()
            rows.append((axis, f"{before} and {links}", of_before + peers, value))
        else:
            rows.append((axis, links, peers, value))
    return rows


def _most(world: WorldMap) -> str:
    """Return ``"at most "`` if the numbers are those of the busiest rank, ``""`` if all recorded ranks send as much."""
    even = world.is_even if world.running is None else len(world.senders) < 2
    return "" if even else "at most "


def _unknown(world: WorldMap) -> str:
    """Return half a sentence on bytes after start-up that are not known; empty if all are, or time is shown."""
    sizes = f"{world.sizes}_bytes"
    if world.running is not None or not world.tables.events[sizes].null_count():
        return ""
    events = in_steps(world.tables.events)
    return what_is_unknown(events.filter(pl.col(sizes).is_null()), events.height)


def _nothing(world: WorldMap) -> str:
    unknown = _unknown(world)
    return f"No link is drawn: {unknown}." if unknown else _NOTHING


def _total(world: WorldMap) -> str:
    """Return a paragraph on what goes over links inside a node and between nodes, summed over all axes."""
    values = world.most if world.running is None else world.most_seconds
    inside, between = (
        f"{_most(world) if values[level] else ''}{written(world, values[level])}" for level in (INSIDE, BETWEEN)
    )
    near, far = world.named(INSIDE), world.named(BETWEEN)
    if world.running is None:
        unknown = _unknown(world)
        more = f" More may be sent: {html.escape(unknown)}." if unknown else ""
        return html.verdict(f"Per rank and step {inside} stay {near}, {between} go {far}.{more}")
    waiting = ", waits for late ranks not counted" if world.running.times.source == "measured" else ""
    if inside == between:
        over = f"; all of them go over links {far}" if _cross_nodes(world) else f", {near} and {far} alike"
        return html.verdict(f"Collectives take {inside} of a rank's step{waiting}{over}.")
    return html.verdict(f"Per rank and step collectives run {inside} over links {near}, {between} {far}{waiting}.")


def _cross_nodes(world: WorldMap) -> bool:
    """Return True if the collectives of every axis go over links of both levels."""
    levels = _levels(world)
    return 2 * len(_merged(levels)) == len(levels)
