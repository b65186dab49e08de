"""A timeline as a plotly figure: one bar per box, in lanes."""

from __future__ import annotations

import numpy as np

from dsexplore._internal.analysis.step_timeline import Timeline
from dsexplore._internal.analysis.timeline_verdict import WORDS
from dsexplore._internal.views.page import html
from dsexplore._internal.views.timeline.boxes import Boxes, Indices
from dsexplore._internal.views.timeline.mark_colors import is_gap, key_order
from dsexplore._internal.views.timeline.timeline_state import TimelineState
from dsexplore._internal.views.timeline.timeline_text import LEFT_TO_RIGHT, is_timed, span_texts
from dsexplore._internal.views.trace.byte_sizes import size_text
from dsexplore._internal.views.trace.figure_spec import EMPTY, Spec, label, unique

FIGURE_LANES = 24
_THICK, _THIN = 0.84, 0.12
"""Maximal and minimal fraction of its lane that a bar takes."""
_MOST_KEYS = 8


def columns_of(lanes: int) -> int:
    """Return the number of columns into which many spans are summed, so that a figure with many lanes stays small."""
    return max(60, 2400 // max(1, min(lanes, FIGURE_LANES)))


def timeline_spec(state: TimelineState) -> Spec:
    """Return the figure of the window of ``state``, of at most `FIGURE_LANES` lanes, as plotly's JSON."""
    timeline, cut = state.timeline, state.cut()
    if not len(cut):
        return EMPTY
    lanes = timeline.lanes[: state.spans.shape[0]]
    names = unique(lanes)
    first, last = (at * _scale(timeline) for at in state.window)
    across = {"title": {"text": _title(state, len(timeline.lanes) - len(lanes))}, "range": [first, last]}
    down = {"type": "category", "categoryorder": "array", "categoryarray": names, "showgrid": False}
    layout = {
        "barmode": "overlay",
        "height": 150 + 34 * len(lanes),
        "xaxis": {**across, "zeroline": False},
        "yaxis": {**down, "range": [len(lanes) - 0.5, -0.5]},
    }
    return {"data": _bars(state, cut, names), "layout": layout}


def _scale(timeline: Timeline) -> float:
    """Return the factor from the timeline's unit to that of the figure's axis: from seconds to milliseconds."""
    return 1e3 if is_timed(timeline) else 1.0


def _title(state: TimelineState, hidden: int) -> str:
    """Return the title of the axis; ``hidden``: number of lanes that are not drawn."""
    timeline = state.timeline
    more = f", {hidden:,} more lanes not drawn" if hidden else ""
    tall = f"; taller is more {timeline.sizes} bytes" if not state.spans.flat.all() else ""
    axis = LEFT_TO_RIGHT[timeline.order].partition(",")[0]
    if is_timed(timeline):
        axis = "ms" if tall else f"ms, {axis}"
    return f"{axis}{tall}{more}"


def _bars(state: TimelineState, drawn: Boxes, names: list[str]) -> list[Spec]:
    """Return the bars of each mark, with waiting below all others; ``names``: labels of the lanes."""
    texts, order = _texts(state, drawn), key_order(state.colors)
    first, last = (at * _scale(state.timeline) for at in state.window)
    begin, end = (first + at * (last - first) for at in (drawn.begin, drawn.end))
    thick = np.clip(_THICK * drawn.level, _THIN, None)
    bars = []
    for mark in reversed(order):
        at, color = np.flatnonzero(drawn.mark == mark), state.colors[mark]
        if len(at):
            bars.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "name": label(f"{color.letter} {color.name}"),
                    "legendrank": mark + len(state.colors) * is_gap(color),
                    "base": np.round(begin[at], 6).tolist(),
                    "x": np.round((end - begin)[at], 6).tolist(),
                    "y": [names[lane] for lane in drawn.lane[at]],
                    "width": np.round(thick[at], 3).tolist(),
                    "offset": np.round(_THICK / 2 - thick[at], 3).tolist(),
                    "marker": {"color": color.fill, "line": {"width": 0}},
                    "showlegend": mark in order[:_MOST_KEYS],
                    "customdata": at.tolist(),
                    "hovertext": [texts[i] for i in at],
                    "hovertemplate": "%{hovertext}<extra></extra>",
                    "meta": {"kind": "sequence"},
                    **_labels(state, drawn, at),
                }
            )
    return bars


def _labels(state: TimelineState, drawn: Boxes, at: Indices) -> Spec:
    """Return plotly's settings for the labels on the bars at these indices; empty if spans have no labels."""
    labels = state.labels(drawn)
    if not labels or not any(labels[i] for i in at):
        return {}
    shown = {"textposition": "inside", "insidetextanchor": "middle", "textangle": 0}
    color = state.colors[int(drawn.mark[at[0]])].text_color
    return {"text": [html.escape(labels[i]) for i in at], "textfont": {"color": color}, **shown}


def _texts(state: TimelineState, drawn: Boxes) -> list[str]:
    """Return the tooltip of each box: its span, or number and bytes of its spans."""
    timeline = state.timeline
    if drawn.one_by_one:
        return [html.escape(text, longest=0) for text in span_texts(timeline, drawn.span)]
    words = WORDS[timeline.sizes]
    return [
        f"{state.colors[mark].name}: {count:,} ×, {size_text(size)} {words}"
        for mark, count, size in zip(drawn.mark.tolist(), drawn.count.tolist(), drawn.bytes.tolist(), strict=True)
    ]
