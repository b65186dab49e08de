"""A timeline as a drawing in static HTML: a strip of SVG per lane under a key, with the same in words."""

from __future__ import annotations

from itertools import groupby

from dsexplore.analysis.step_timeline import Timeline
from dsexplore.views.page import html
from dsexplore.views.timeline.boxes import Boxes, boxes, coded, extent
from dsexplore.views.timeline.mark_colours import Colour, colours_of
from dsexplore.views.timeline.timeline_text import AXES, place, whole

COLUMNS, LANES = 160, 24
"""Of the drawing."""
_LANE = 12
"""Height of a lane in the drawing's own units."""
_TICKS = 5

STYLE = """
.dsx .tl{display:grid;grid-template-columns:minmax(90px,max-content) minmax(0,1fr);gap:2px 8px;align-items:center}
.dsx .tl>span{font-size:12px;overflow:hidden;text-overflow:ellipsis;white-space:nowrap;max-width:260px}
.dsx .tl>svg{width:100%;height:18px;background:var(--dsx-shade)}
.dsx .tl>div{display:flex;justify-content:space-between;font-size:11px;color:var(--dsx-dim)}
"""


def timeline_html(timeline: Timeline) -> str:
    """The lanes as SVG under their key, with the same in words for who cannot see them."""
    if timeline.spans.is_empty():
        return html.fragment(f"<p>{html.escape(whole(timeline))}</p>")
    key = "".join(_key(colour) for colour in colours_of(timeline))
    note = f"left to right: {AXES[timeline.order]}; taller is more message bytes"
    title = f"<p><b>{html.escape(whole(timeline))}</b></p>"
    return html.fragment(f'{title}<p class="dim">{html.escape(note)}. {key}</p>{_drawing(timeline)}', STYLE)


def _key(colour: Colour) -> str:
    return (
        f'<span class="key" style="background:{colour.fill};color:{colour.ink}">{html.escape(colour.letter)}</span>'
        f"{html.escape(colour.name)} "
    )


def _drawing(timeline: Timeline) -> str:
    spans = coded(timeline)
    first, last = extent(timeline)
    found = boxes(spans, (first, last), COLUMNS, most=0)
    fills = [colour.fill for colour in colours_of(timeline)]
    rows = []
    for number, (lane, spoken) in enumerate(zip(timeline.lanes[:LANES], _spoken_lanes(timeline), strict=False)):
        rows.append(
            f"<span>{html.name(lane, 60)}</span>"
            f'<svg viewBox="0 0 {COLUMNS} {_LANE}" preserveAspectRatio="none" role="img" '
            f'aria-label="{html.escape(spoken)}">{_paths(found, number, fills)}</svg>'
        )
    hidden = len(timeline.lanes) - LANES
    more = f'<p class="dim">{hidden:,} more lanes are not drawn.</p>' if hidden > 0 else ""
    ticks = "".join(
        f"<span>{html.escape(place(timeline, first + (last - first) * tick / (_TICKS - 1)))}</span>"
        for tick in range(_TICKS)
    )
    return f'<div class="tl">{"".join(rows)}<span></span><div>{ticks}</div></div>{more}'


def _spoken_lanes(timeline: Timeline) -> list[str]:
    """A line of words per lane drawn."""
    counts = dict(timeline.spans.group_by("lane").len().iter_rows())
    return [f"{lane}: {counts.get(lane, 0):,} collectives" for lane in timeline.lanes[:LANES]]


def _paths(found: Boxes, lane: int, fills: list[str]) -> str:
    """One path per colour; boxes side by side that look alike are one rectangle."""
    at = [i for i in range(len(found)) if found.lane[i] == lane]
    runs: dict[int, list[str]] = {}
    cells = [
        (
            round(found.begin[i] * COLUMNS),
            max(1, round((found.end[i] - found.begin[i]) * COLUMNS)),
            round(2 + (_LANE - 2) * float(found.level[i])),
            int(found.mark[i]),
        )
        for i in at
    ]
    for (_, height, mark), group in groupby(enumerate(cells), lambda cell: (cell[1][0] - cell[0], *cell[1][2:])):
        members = [cell for _, cell in group]
        left = members[0][0]
        width = members[-1][0] + members[-1][1] - left
        runs.setdefault(mark, []).append(f"M{left} {_LANE - height}h{width}v{height}h-{width}z")
    return "".join(f'<path fill="{fills[mark]}" d="{"".join(parts)}"/>' for mark, parts in sorted(runs.items()))
