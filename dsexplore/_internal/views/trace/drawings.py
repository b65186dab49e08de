"""Sections, bars and heatmaps as HTML, with their numbers as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dsexplore._internal.views.page import html
from dsexplore._internal.views.page.style import heat
from dsexplore._internal.views.page.theme import PHASES, phase_mark
from dsexplore._internal.views.trace.byte_sizes import is_partial
from dsexplore._internal.views.trace.tally import Grid

STYLE = """
.dsx .part>summary{font-weight:600;padding:3px 4px;border-top:1px solid var(--dsx-line)}
.dsx .part>div,.dsx .part>p{margin:4px 0 8px 18px}
.dsx.dsx .heat td{padding:2px 8px;text-align:right;border:1px solid var(--dsx-line)}
.dsx.dsx .heat th{padding:2px 8px}
.dsx.dsx .heat tbody th{font-weight:400;text-align:left;white-space:normal;overflow-wrap:break-word;border:0;
min-width:10em}
""" + "".join(f".dsx .p{i}{{{m.css}}}\n" for i, m in enumerate(PHASES.values()))

_INDEX = {phase: i for i, phase in enumerate(PHASES)}
_OTHER = _INDEX["other"]


def part(title: str, body: str, opened: bool = False, anchor: str = "") -> str:
    """Return a collapsible section, or ``""`` if its body is empty.

    ``anchor`` is the id of the body; a browser that follows a link to it opens the section.
    """
    if not body:
        return ""
    content = f'<div id="{anchor}">{body}</div>' if anchor else body
    state = " open" if opened else ""
    return f'<details class="part"{state}><summary>{html.escape(title)}</summary>{content}</details>'


def phase_key(phases: Sequence[str]) -> str:
    """Return the legend: letter, color and name of each phase."""
    keys = (
        f'<span class="key p{_INDEX.get(phase, _OTHER)}">{phase_mark(phase).letter}</span> {html.escape(phase)}'
        for phase in phases
    )
    return html.note(" ".join(keys))


def heatmap(grid: Grid, format_value: Callable[[float], str], corner: str = "") -> str:
    """Return a table whose cells are shaded by value and contain the value; ``corner``: title of the row names."""
    if not grid.rows or not grid.columns:
        return ""
    top = float(grid.values.max()) or 1.0
    head = "".join(f'<th scope="col">{html.name(column, longest=32)}</th>' for column in grid.columns)
    body = ""
    for row, values in zip(grid.rows, grid.signed_values.tolist(), strict=True):
        cells = "".join(_heat_cell(value, top, format_value) for value in values)
        body += f'<tr><th scope="row">{html.parted(row, longest=96)}</th>{cells}</tr>'
    return (
        '<div class="scroll" tabindex="0"><table class="heat"><thead><tr>'
        f'<th class="l">{html.escape(corner)}</th>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>{scale(top, format_value) if grid.values.max() > 0 else ''}"
    )


def scale(top: float, format_value: Callable[[float], str]) -> str:
    """Return the color bar of a heatmap, from 0 to its largest value."""
    cells = "".join(f'<span style="{heat(_shade(i, 6))}"></span>' for i in range(7))
    return f'<p class="dim scale">0 <span>{cells}</span> {format_value(top)}</p>'


def _heat_cell(value: float, top: float, format_value: Callable[[float], str]) -> str:
    """Return a cell with a number of `byte_sizes.signed`; ``top``: value of the darkest shade."""
    if not value:
        return f'<td class="dim">{format_value(value) if is_partial(value) else "–"}</td>'
    return f'<td style="{heat(_shade(abs(value), top))}">{format_value(value)}</td>'


def _shade(value: float, top: float) -> int:
    """Return the shade of a value, in percent of the hue of bytes and time."""
    return round(45 * value / top)


def phase_bar(parts: Sequence[tuple[str, float]], top: float) -> str:
    """Return a bar split by phase; ``parts``: (phase, value); ``top``: value of a bar as wide as its column."""
    marked = ((f"p{_INDEX.get(phase, _OTHER)}", phase_mark(phase).letter, value, "") for phase, value in parts)
    return html.stacked_bar(marked, top)
