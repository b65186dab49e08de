"""A timeline as static HTML: a key, a strip per lane with its totals for screen readers, and the axis."""

from __future__ import annotations

from typing import NamedTuple

from dsexplore._internal.analysis.step_timeline import Timeline
from dsexplore._internal.views.page import html
from dsexplore._internal.views.timeline.boxes import Boxes, Coded, boxes, extent
from dsexplore._internal.views.timeline.mark_colors import Color, colors_of, is_gap, key_order
from dsexplore._internal.views.timeline.timeline_text import axis_text, lane_totals, ticks, title_text

_COLUMNS, _LANES = 160, 24
"""Maximal numbers of columns and lanes of the drawing."""
_LANE, _GAP = 12, 2
"""Height of a lane, and distance between lanes, in the drawing's own units."""
_MOST_SINGLE = 240
"""Maximal number of spans that each get a box and a label."""
_BETWEEN = 0.2
"""Distance between the boxes of single spans, in columns."""
_MOST_TIES, _MOST_KEYS = 200, 8

TICKS_STYLE = """
.dsx .ticks{position:relative;height:1.4em;color:var(--dsx-dim);font-size:var(--dsx-tiny);container-type:inline-size}
.dsx .ticks span{position:absolute;transform:translateX(-50%);white-space:nowrap}
.dsx .ticks .f{transform:none}
.dsx .ticks .e{transform:translateX(-100%)}
@container (max-width:280px){.dsx .ticks span:nth-child(even){display:none}}
"""
STYLE = (
    TICKS_STYLE
    + """
.dsx .named{display:inline-block;margin-right:6px}
.dsx .keyed{margin-bottom:4px}
.dsx .keyed>.how{display:inline-block}
.dsx .keyed>.how[open]{display:block}
.dsx .tl{display:grid;grid-template-columns:fit-content(34%) minmax(0,1fr);gap:3px 8px;align-items:center}
.dsx .tl>span{font-size:var(--dsx-small);overflow:hidden;text-overflow:ellipsis;white-space:nowrap;max-width:260px;
grid-column:1}
.dsx .tl>svg,.dsx .tl>.l{width:100%;height:18px;background:var(--dsx-shade);grid-column:2;position:relative}
.dsx .tl>.l>i{forced-color-adjust:none;box-sizing:border-box;border-right:1px solid var(--dsx-bg);min-width:2px;
position:absolute;bottom:0;overflow:hidden;font:calc(var(--dsx-size)*10/13)/16px var(--dsx-font);
text-align:center}
.dsx .tl>.l>i>b{position:relative;z-index:1;background:inherit;font-weight:400;padding:0 2px}
.dsx .tl-part{margin-bottom:8px;max-width:1000px}
.dsx .tl-part>summary{font-weight:600}
.dsx .tl>.ties{background:none;height:0;min-height:100%;pointer-events:none;fill:none;stroke:currentColor;opacity:.6}
.dsx .tl>.ticks{grid-column:2}
.dsx .tl{container-type:inline-size}
@container (max-width:520px){.dsx .tl>.l>i>b{display:none}}
"""
)
_AT_END = 0.95
"""Fraction of the axis from which a tick's label ends at the tick."""


def axis_html(marked: list[tuple[float, str]], more: str = "") -> str:
    """Return an axis; ``marked``: (position as a fraction, text) of each tick; ``more``: attributes of its tag."""
    drawn = []
    for at, text in marked:
        edge = ""
        if at <= 0:
            edge = ' class="f"'
        elif at > _AT_END:
            edge = ' class="e"'
        drawn.append(f'<span{edge} style="left:{100 * at:.1f}%">{html.escape(text)}</span>')
    return f'<div class="ticks"{more}>{" ".join(drawn)}</div>'


def timeline_html(timeline: Timeline) -> str:
    """Return the drawing of a timeline below its title and verdict."""
    if timeline.spans.is_empty():
        return html.fragment(html.verdict(title_text(timeline)))
    return html.fragment(f"{title_html(timeline)}{drawing(timeline)}", STYLE)


def title_html(timeline: Timeline) -> str:
    """Return the title of the timeline, with its verdict below."""
    return f"<p>{html.escape(title_text(timeline))}</p>{html.verdict(timeline.verdict())}"


def drawing(timeline: Timeline, most_lanes: int = _LANES, columns: int = _COLUMNS) -> str:
    """Return the key, the lanes and the axis as HTML; needs `STYLE`."""
    colors = colors_of(timeline)
    key = [_key(colors[number]) for number in key_order(colors)]
    others = len(colors) - sum(map(is_gap, colors))
    if others > _MOST_KEYS:
        key[_MOST_KEYS:others] = [f"and {others - _MOST_KEYS:,} more "]
    lanes = _lanes(timeline, colors, most_lanes, columns)
    rules = html.how(f"{html.prose(axis_text(timeline), longest=600)}.")
    return f'<div class="dim keyed">{"".join(key)}{rules}</div>{lanes}'


def _key(color: Color) -> str:
    """Return an entry of the key: letter, color and name."""
    swatch = (
        f'<span class="key" style="background:{color.fill};color:{color.text_color}">{html.escape(color.letter)}</span>'
    )
    name = "" if color.letter == color.name else f" {html.escape(color.name, longest=30)}"
    return f'<span class="named">{swatch}{name}</span> '


def _lanes(timeline: Timeline, colors: list[Color], most_lanes: int, columns: int) -> str:
    """Return name and strip of each lane, the lines between them, and the axis."""
    spans, (first, last) = Coded(timeline, most_lanes=most_lanes), extent(timeline)
    lane_boxes = boxes(spans, (first, last), columns, most=_MOST_SINGLE, stacked=True)
    labeled = lane_boxes.one_by_one and timeline.spans["label"].null_count() < len(timeline.spans)
    totals, rows = lane_totals(timeline), []
    for number, lane in enumerate(timeline.lanes[:most_lanes]):
        spoken = f"{html.escape(lane, longest=60)}: {totals.get(lane, 'nothing')}"
        place_of = f'style="grid-row:{number + 1}" role="img" aria-label="{spoken}"'
        rows.append(f'<span style="grid-row:{number + 1}">{html.name(lane, longest=60)}</span> ')
        if labeled:
            rows.append(f'<div class="l" {place_of}>{_labeled(timeline, lane_boxes, number, colors)}</div>')
        else:
            strip = f'viewBox="0 0 {columns} {_LANE}" preserveAspectRatio="none"'
            are_spans = bool((lane_boxes.span[lane_boxes.lane == number] >= 0).all())
            paths_of_lane = _paths_of_spans if are_spans else _paths_of_columns
            paths = paths_of_lane(lane_boxes, number, colors, columns)
            rows.append(f"<svg {strip} {place_of}>{paths}</svg>")
    drawn, hidden = len(timeline.lanes[:most_lanes]), len(timeline.lanes) - most_lanes
    more = f'<p class="dim">{hidden:,} more lanes are not drawn.</p>' if hidden > 0 else ""
    axis = axis_html(ticks(timeline, first, last), f' style="grid-row:{drawn + 1}"')
    ties = _ties(timeline, drawn)
    return f'<div class="tl">{"".join(rows)}{ties}{axis}</div>{more}'


def _labeled(timeline: Timeline, lane_boxes: Boxes, lane: int, colors: list[Color]) -> str:
    """Return the boxes of a lane as HTML elements that contain their labels."""
    labels, names = timeline.spans["label"], timeline.spans["name"]
    boxes_of_lane = []
    for i in (lane_boxes.lane == lane).nonzero()[0]:
        color, span = colors[lane_boxes.mark[i]], int(lane_boxes.span[i])
        left, width = 100 * lane_boxes.begin[i], 100 * (lane_boxes.end[i] - lane_boxes.begin[i])
        look = f"left:{left:.4g}%;width:{width:.4g}%;height:{max(2, round(18 * lane_boxes.level[i]))}px"
        label = f"<b>{html.escape(labels[span], longest=12)}</b>" if labels[span] else ""
        boxes_of_lane.append(
            f'<i style="{look};background:{color.fill};color:{color.text_color};font-style:normal" '
            f'title="{html.escape(names[span], longest=90)}">{label}</i>'
        )
    return " ".join(boxes_of_lane)


def _ties(timeline: Timeline, lanes: int) -> str:
    """Return one SVG over all lanes, with a line from each send to its receive; empty if there are too many."""
    (first, last), place_of = extent(timeline), {lane: i for i, lane in enumerate(timeline.lanes[:lanes])}
    if not 0 < timeline.ties.height <= _MOST_TIES:
        return ""
    row = _LANE + _GAP
    lines = "".join(
        f"M{_COLUMNS * (tie['sent'] - first) / (last - first):.4g} {place_of[tie['from_lane']] * row + _LANE // 2}"
        f"L{_COLUMNS * (tie['received'] - first) / (last - first):.4g} {place_of[tie['to_lane']] * row + _LANE // 2}"
        for tie in timeline.ties.iter_rows(named=True)
        if tie["from_lane"] in place_of and tie["to_lane"] in place_of
    )
    box = f'viewBox="0 0 {_COLUMNS} {lanes * row - _GAP}" preserveAspectRatio="none"'
    return (
        f'<svg class="ties" {box} style="grid-row:1/{lanes + 1}" role="img" '
        f'aria-label="{timeline.ties.height:,} messages between lanes"><path vector-effect="non-scaling-stroke" '
        f'd="{lines}"/></svg>'
    )


def _paths_of_spans(lane_boxes: Boxes, lane: int, colors: list[Color], columns: int) -> str:
    """Return the boxes of a lane, each of which is one span, as an SVG path per color, with a gap after each box."""
    runs: dict[int, list[str]] = {}
    for i in (lane_boxes.lane == lane).nonzero()[0].tolist():
        width = columns * float(lane_boxes.end[i] - lane_boxes.begin[i])
        width = max(width - _BETWEEN, _BETWEEN)
        height = round(2 + (_LANE - 2) * float(lane_boxes.level[i]), 1)
        left = columns * float(lane_boxes.begin[i])
        drawn = f"M{left:.4g} {_LANE - height:.3g}h{width:.3g}v{height:.3g}h-{width:.3g}z"
        runs.setdefault(int(lane_boxes.mark[i]), []).append(drawn)
    return _filled(runs, colors)


class _JoinedBoxes(NamedTuple):
    """Neighboring boxes of columns that have one height and one mark; positions are numbers of columns."""

    left: int
    width: int
    height: int
    mark: int


def _paths_of_columns(lane_boxes: Boxes, lane: int, colors: list[Color], columns: int) -> str:
    """Return the boxes of a lane as an SVG path per color; equal boxes of neighboring columns are joined."""
    runs: list[_JoinedBoxes] = []
    for i in (lane_boxes.lane == lane).nonzero()[0].tolist():
        box = _JoinedBoxes(
            left=round(lane_boxes.begin[i] * columns),
            width=max(1, round((lane_boxes.end[i] - lane_boxes.begin[i]) * columns)),
            height=round(2 + (_LANE - 2) * float(lane_boxes.level[i])),
            mark=int(lane_boxes.mark[i]),
        )
        last = runs[-1] if runs else None
        if last is not None and last[2:] == box[2:] and last.left + last.width == box.left:
            runs[-1] = last._replace(width=last.width + box.width)
        else:
            runs.append(box)
    outlines: dict[int, list[str]] = {}
    for left, width, height, mark in runs:
        outlines.setdefault(mark, []).append(f"M{left} {_LANE - height}h{width}v{height}h-{width}z")
    return _filled(outlines, colors)


def _filled(outlines: dict[int, list[str]], colors: list[Color]) -> str:
    """Return an SVG path per mark; ``outlines``: {mark: its boxes}. Waiting, which is the tallest, lies below."""
    below = sorted(outlines, key=lambda mark: (not is_gap(colors[mark]), -mark))
    return "".join(f'<path fill="{colors[mark].fill}" d="{"".join(outlines[mark])}"/>' for mark in below)
