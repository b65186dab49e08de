"""The picture of a `DifferenceMap`: a tensor as a table of cells, with the outlines and ranks of its shards."""

from __future__ import annotations

import math

from dsexplore._internal.numerics.difference_map import DifferenceMap
from dsexplore._internal.units import format_ranks
from dsexplore._internal.views.page import html, theme

LEVELS = ((0.01, "≤ 1 %", 0.22), (0.1, "≤ 10 %", 0.42), (1.0, "≤ 100 %", 0.68), (math.inf, "> 100 %", 1.0))
"""(upper end, label, opacity) of each level of differences beyond rounding, relative to the root mean square."""
_MOST_LABELS = 32
_ROW, _LEAST_HEIGHT = 14, 56
"""Height of a row of cells, and minimal height of the picture, in pixels."""

STYLE = f"""
.dsx .dif-row{{display:flex;flex-wrap:wrap;gap:4px 16px;align-items:flex-start;margin-bottom:8px}}
.dsx .dif-text{{flex:1 1 300px;max-width:560px}}
.dsx .dif{{position:relative;flex:1 1 300px;max-width:560px;background:var(--dsx-shade);
border:1px solid var(--dsx-line);margin:2px 0 4px}}
.dsx .dif svg{{display:block;position:absolute;inset:0;width:100%;height:100%}}
.dsx .dif path{{fill:{theme.ALARM};forced-color-adjust:none}}
.dsx .dif i{{position:absolute;border:1px solid var(--dsx-fg);overflow:hidden;font-style:normal}}
.dsx .dif i span{{background:var(--dsx-bg);color:var(--dsx-fg);font-size:var(--dsx-tiny);padding:0 3px;
white-space:nowrap}}
.dsx .dif-label{{white-space:nowrap;margin-right:10px}}
.dsx .dif-key{{display:inline-block;width:1.1em;height:1.1em;vertical-align:text-bottom;margin:0 3px 0 0;
border:1px solid var(--dsx-line);background:{theme.ALARM};forced-color-adjust:none}}
"""


def difference_picture(shown: DifferenceMap, where: str) -> str:
    """Return the map as HTML, beside a text that begins with ``where``: the tensor and the phase."""
    rows, columns = len(shown.errors), len(shown.errors[0])
    height = max(_LEAST_HEIGHT, _ROW * rows)
    paths = "".join(
        f'<path fill-opacity="{opacity:g}" d="{drawn}"/>'
        for level, (_, _, opacity) in enumerate(LEVELS)
        if (drawn := _cells(shown, level))
    )
    spoken = f"Where the tensor of shape {list(shown.shape)} differs"
    return (
        f'<div class="dif-row"><div class="dif" style="height:{height}px" role="img" '
        f'aria-label="{html.escape(spoken, longest=0)}">'
        f'<svg viewBox="0 0 {columns} {rows}" preserveAspectRatio="none" aria-hidden="true">{paths}</svg>'
        f"{_outlines(shown, rows, columns)}</div>"
        f'<div class="dif-text"><p><b>Where {html.escape(where, longest=0)}</b></p>'
        f'<p class="dim">{html.escape(_axes(shown), longest=0)}</p><p>{_key()}</p></div></div>'
    )


def _cells(shown: DifferenceMap, level: int) -> str:
    """Return the SVG path of all cells of a level; neighbors in a row are joined."""
    drawn = []
    for row, errors in enumerate(shown.errors):
        column = 0
        while column < len(errors):
            end = column
            while end < len(errors) and _level(errors[end], shown.allowed) == level:
                end += 1
            if end > column:
                drawn.append(f"M{column} {row}h{end - column}v1h{column - end}z")
            column = max(end, column + 1)
    return "".join(drawn)


def _level(error: float, allowed: float) -> int | None:
    """Return the index into `LEVELS` of an error; None if rounding may cause it, or for an empty cell."""
    if math.isnan(error) or error <= allowed:
        return None
    return next(at for at, (end, _, _) in enumerate(LEVELS) if error <= end)


def _outlines(shown: DifferenceMap, rows: int, columns: int) -> str:
    """Return the outline of each shard, with its ranks."""
    parts = []
    for block in shown.blocks:
        ranks = format_ranks(block.ranks)
        left, width = (100 * edge / columns for edge in (block.columns[0], block.columns[1] - block.columns[0]))
        top, high = (100 * edge / rows for edge in (block.rows[0], block.rows[1] - block.rows[0]))
        label = f"<span>{html.escape(ranks, longest=0)}</span>" if len(shown.blocks) <= _MOST_LABELS else ""
        parts.append(
            f'<i title="{html.escape(ranks, longest=0)}" style="left:{left:.4g}%;top:{top:.4g}%;width:{width:.4g}%;'
            f'height:{high:.4g}%">{label}</i>'
        )
    return "".join(parts)


def _axes(shown: DifferenceMap) -> str:
    """Return the sentences on the dims, the outlines and the cells."""
    first, second = shown.dims
    across = f"dim {second} across ({shown.shape[second]:,})"
    down = f"dim {first} down ({shown.shape[first]:,}), " if first >= 0 else ""
    return (
        f"Shape {list(shown.shape)}: {down}{across}. Outlines are the shards of ranks. A cell shows the largest "
        "difference in it, over all ranks that hold it, relative to the tensor's root mean square:"
    )


def _key() -> str:
    return "".join(
        f'<span class="dif-label"><i class="dif-key" style="opacity:{opacity:g}"></i>'
        f"{html.escape(label, longest=0)}</span>"
        for _, label, opacity in LEVELS
    )
