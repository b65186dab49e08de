"""Bars, heatmaps and lanes as HTML and inline SVG, with their numbers as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dsexplore.views.page import html
from dsexplore.views.page.theme import PHASES, heat, phase_mark
from dsexplore.views.trace.grid import Grid
from dsexplore.views.trace.lanes import Lanes, lane_names, phase_runs

STYLE = (
    """
.dsx .part>summary{font-weight:600;padding:3px 4px;border-top:1px solid var(--dsx-line)}
.dsx .part>div,.dsx .part>p{margin:4px 0 8px 18px}
.dsx.dsx .heat td{padding:2px 8px;text-align:right;border:1px solid var(--dsx-line)}
.dsx.dsx .heat th{padding:2px 8px}
.dsx.dsx .heat tbody th{font-weight:400;text-align:left;white-space:normal;overflow-wrap:break-word;border:0;
min-width:10em}
.dsx .lane{display:flex;align-items:center;gap:8px;height:16px}
.dsx .lane>span{flex:0 0 210px;overflow:hidden;text-overflow:ellipsis;white-space:nowrap;font-size:var(--dsx-small)}
.dsx .lane>.phases{flex:1 1 0;min-width:0}
.dsx .lane>svg{flex:1 1 0;min-width:0;height:12px;background:var(--dsx-shade)}
"""
    + "".join(f".dsx .p{i}{{{m.css}}}\n.dsx .lane .q{i}{{fill:{m.colour}}}\n" for i, m in enumerate(PHASES.values()))
    + ".dsx .lane .h{fill:none;stroke:#000b;vector-effect:non-scaling-stroke}\n"
)

_INDEX = {phase: i for i, phase in enumerate(PHASES)}
_OTHER = _INDEX["other"]


def part(title: str, body: str, opened: bool = False, anchor: str = "") -> str:
    """A section that opens and closes; empty where its body is.

    Args:
        title: always in sight.
        body: HTML.
        opened: whether the body is in sight at first.
        anchor: the id of the body: a browser that follows a link to it opens the section.
    """
    if not body:
        return ""
    held = f'<div id="{anchor}">{body}</div>' if anchor else body
    return f'<details class="part"{" open" * opened}><summary>{html.escape(title)}</summary>{held}</details>'


def phase_key(phases: Sequence[str]) -> str:
    """The legend: letter, hatch and name of each phase."""
    return (
        '<p class="dim">'
        + " ".join(
            f'<span class="key p{_INDEX.get(p, _OTHER)}">{phase_mark(p).letter}</span>{html.escape(p)}' for p in phases
        )
        + "</p>"
    )


def heatmap(grid: Grid, write: Callable[[float], str], corner: str = "", log: bool = True) -> str:
    """A table whose cells are shaded by value; the value stands in each cell."""
    if not grid.rows or not grid.columns:
        return ""
    top = float(grid.values.max()) or 1.0
    head = "".join(f'<th scope="col">{html.name(c, 32)}</th>' for c in grid.columns)
    body = "".join(
        f'<tr><th scope="row">{html.parted(row, 96)}</th>'
        + "".join(_heat_cell(float(v), top, write, log) for v in values)
        + "</tr>"
        for row, values in zip(grid.rows, grid.values, strict=True)
    )
    return (
        '<div class="scroll"><table class="heat"><thead><tr>'
        f'<th class="l">{html.escape(corner)}</th>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>{scale(top, write, log)}"
    )


def scale(top: float, write: Callable[[float], str], log: bool = True) -> str:
    """The bar of a heatmap's colours, from nothing to its largest value; marked where half of the colour is reached."""
    half = top / 8 if log else top / 2
    cells = "".join(
        f'<span style="{heat(_shade(top * (i / 6) ** (3 if log else 1), top, log))}"></span>' for i in range(7)
    )
    return f'<p class="dim scale">0<span>{cells}</span>{write(top)}, half as dark at {write(half)}</p>'


def _heat_cell(value: float, top: float, write: Callable[[float], str], log: bool) -> str:
    if not value:
        return '<td class="dim">–</td>'
    return f'<td style="{heat(_shade(value, top, log))}">{write(value)}</td>'


def _shade(value: float, top: float, log: bool) -> int:
    """Percent of blue: none for nothing, and on a log scale half of the most for an eighth of the top."""
    return round(45 * (value / top) ** (1 / 3 if log else 1))


def phase_bar(parts: Sequence[tuple[str, float]], top: float) -> str:
    """A bar split by phase; ``parts``: (phase, value)."""
    marked = ((f"p{_INDEX.get(phase, _OTHER)}", phase_mark(phase).letter, value, "") for phase, value in parts)
    return html.stacked_bar(marked, top)


def lanes_html(lanes: Lanes) -> str:
    """One strip per rank, group and op; the colour and the hatch of a mark are those of its phase in the key."""
    if not lanes.labels:
        return ""
    rows = "".join(_lane(lanes, row, name) for row, name in enumerate(lane_names(lanes)))
    hidden = f'<p class="dim">{lanes.hidden:,} more lanes are not drawn.</p>' if lanes.hidden else ""
    return f'<div class="scroll"><div style="min-width:420px">{rows}</div></div>{hidden}'


def _lane(lanes: Lanes, row: int, label: str) -> str:
    _, lane, op = lanes.labels[row]
    paths: dict[str, list[str]] = {}
    hatches: list[str] = []
    top = int(lanes.bytes.max()) or 1
    for column, size in enumerate(lanes.bytes[row]):
        if lanes.counts[row, column]:
            height = round(3 + 9 * (int(size) / top) ** (1 / 3))
            phase = lanes.phases[row][column]
            paths.setdefault(phase, []).append(f"M{column} {12 - height}h1v{height}h-1z")
            hatches.append(_hatch(phase_mark(phase).pattern, column, height))
    marks = "".join(f'<path class="q{_INDEX.get(p, _OTHER)}" d="{"".join(d)}"/>' for p, d in sorted(paths.items()))
    hatch = "".join(hatches)
    spoken = f"{lanes.events[row]:,} × {op} on {lane}"
    return (
        f'<div class="lane"><span>{html.name(label, 60)}</span>'
        f'<svg viewBox="0 0 {lanes.bytes.shape[1]} 12" preserveAspectRatio="none" role="img" '
        f'aria-label="{html.escape(spoken)}">{marks}{f"""<path class="h" d="{hatch}"/>""" if hatch else ""}</svg></div>'
    )


def _hatch(pattern: str, column: int, height: int) -> str:
    """The phase's stripe across a mark that is one wide and stands on the lane's floor at 12."""
    return {
        "/": f"M{column} 12l1-{height}",
        "\\": f"M{column} {12 - height}l1 {height}",
        "-": f"M{column} {12 - height // 2}h1",
        "|": f"M{column}.5 12v-{height}",
        "x": f"M{column} 12l1-{height}M{column} {12 - height}l1 {height}",
    }.get(pattern, "")


def phase_strip(lanes: Lanes) -> str:
    """The band above the lanes: each bin in the mark of its phase."""
    if not lanes.labels:
        return ""
    parts = [(phase, float(end - first)) for phase, first, end in phase_runs(lanes)]
    bar = phase_bar(parts, float(lanes.bytes.shape[1]))
    return f'<div class="lane"><span class="dim">phase</span><div class="phases">{bar}</div></div>'
