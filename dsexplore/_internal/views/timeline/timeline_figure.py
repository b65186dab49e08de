"""A timeline as a plotly figure: one bar per box, in lanes."""

from __future__ import annotations

import numpy as np

from dsexplore._internal.analysis.timeline_verdict import WORDS
from dsexplore._internal.views.page import html
from dsexplore._internal.views.timeline.boxes import Boxes, Indices
from dsexplore._internal.views.timeline.mark_colors import is_gap, key_order
from dsexplore._internal.views.timeline.timeline_state import TimelineState
from dsexplore._internal.views.timeline.timeline_text import AXES, span_texts
from dsexplore._internal.views.trace.byte_sizes import size_text
from dsexplore._internal.views.trace.figure_spec import EMPTY, Spec, label, unique

FIGURE_LANES = 24
_THICK, _THIN = 0.84, 0.12
"""Maximal and minimal fraction of its lane that a bar takes."""
_MOST_KEYS = 8


def columns_of(lanes: int) -> int:
    """Return the number of columns into which many spans are summed, so that a figure of all lanes stays small."""
    return max(60, 2400 // max(1, min(lanes, FIGURE_LANES)))


def timeline_spec(state: TimelineState, height: int = 0) -> Spec:
    """Return the figure of the window of ``state`` as plotly's JSON.

    Args:
        state: window and spans, with at most `FIGURE_LANES` lanes.
        height: height in pixels; 0 to fit the lanes.
    """
    timeline, cut = state.timeline, state.cut()
    if not len(cut):
        return EMPTY
    drawn = timeline.lanes[: state.spans.shape[0]]
    timed = timeline.order in ("measured", "predicted")
    scale = 1e3 if timed else 1.0
    first, last = (at * scale for at in state.window)
    begin, end = (first + at * (last - first) for at in (cut.begin, cut.end))
    thick = np.clip(_THICK * cut.level, _THIN, None)
    names, texts = unique(drawn), _texts(state, cut)
    listed, data = key_order(state.colors)[:_MOST_KEYS], list[Spec]()
    for mark in reversed(key_order(state.colors)):  # gaps lie below
        at = np.flatnonzero(cut.mark == mark)
        if len(at):
            data.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "name": label(f"{state.colors[mark].letter} {state.colors[mark].name}"),
                    "legendrank": mark + len(state.colors) * is_gap(state.colors[mark]),
                    "base": np.round(begin[at], 6).tolist(),
                    "x": np.round((end - begin)[at], 6).tolist(),
                    "y": [names[lane] for lane in cut.lane[at]],
                    "width": np.round(thick[at], 3).tolist(),
                    "offset": np.round(_THICK / 2 - thick[at], 3).tolist(),
                    "marker": {"color": state.colors[mark].fill, "line": {"width": 0}},
                    "showlegend": mark in listed,
                    "customdata": at.tolist(),
                    "hovertext": [texts[i] for i in at],
                    "hovertemplate": "%{hovertext}<extra></extra>",
                    "meta": {"kind": "sequence"},
                    **_labels(state, cut, at),
                }
            )
    hidden = len(timeline.lanes) - len(drawn)
    more = f", {hidden:,} more lanes not drawn" if hidden else ""
    tall = f"; taller is more {timeline.sizes} bytes" if not state.spans.flat.all() else ""
    axis = AXES[timeline.order].partition(",")[0]
    title = f"{'ms' if timed and tall else f'ms, {axis}' if timed else axis}{tall}{more}"
    lanes = {"type": "category", "categoryorder": "array", "categoryarray": names, "showgrid": False}
    layout = {
        "barmode": "overlay",
        "height": height or 150 + 34 * len(drawn),
        "xaxis": {"title": {"text": title}, "range": [first, last], "zeroline": False},
        "yaxis": {**lanes, "range": [len(drawn) - 0.5, -0.5]},
    }
    return {"data": data, "layout": layout}


def _labels(state: TimelineState, drawn: Boxes, at: Indices) -> Spec:
    """Return the texts on the bars, if spans have labels."""
    labels = state.labels(drawn)
    if not labels or not any(labels[i] for i in at):
        return {}
    shown = {"textposition": "inside", "insidetextanchor": "middle", "textangle": 0}
    ink = state.colors[int(drawn.mark[at[0]])].ink
    return {"text": [html.escape(labels[i]) for i in at], "textfont": {"color": ink}, **shown}


def _texts(state: TimelineState, drawn: Boxes) -> list[str]:
    """Return the text of each box: one span, or the number of spans in a lane."""
    timeline = state.timeline
    if drawn.one_by_one:
        return [html.escape(text, 0) for text in span_texts(timeline, drawn.span)]
    words = WORDS[timeline.sizes]
    return [
        f"{state.colors[mark].name}: {count:,} ×, {size_text(size)} {words}"
        for mark, count, size in zip(drawn.mark.tolist(), drawn.count.tolist(), drawn.bytes.tolist(), strict=True)
    ]
