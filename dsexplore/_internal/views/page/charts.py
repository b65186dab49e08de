"""The look of plotly's figures, and charts that several views draw."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dsexplore._internal.units import unit_of_seconds
from dsexplore._internal.views.page.theme import INK, SHADE, tint

_CLEAR = "rgba(0,0,0,0)"
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
"""Dash styles of a figure's lines, in order of use."""

FIGURE: dict[str, Any] = {
    "paper_bgcolor": _CLEAR,
    "plot_bgcolor": _CLEAR,
    "font": {"color": INK, "size": 12},
    "modebar": {"bgcolor": _CLEAR, "color": INK},
}
"""Layout that all figures share, as plotly's JSON: no background, legible ink."""
AXIS: dict[str, Any] = {
    "gridcolor": "rgba(128,128,128,0.25)",
    "zerolinecolor": "rgba(128,128,128,0.4)",
    "automargin": True,
}
"""Settings that all axes share: lines that are visible on white and on black, and space for the labels."""
LEGEND_ABOVE = {"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0, "traceorder": "normal"}


def color_scale(least: float = 0.04) -> list[list[Any]]:
    """Return plotly's color scale of bytes, times and rates; ``least``: opacity at its beginning."""
    return [[0.0, tint(SHADE, least)], [1.0, SHADE]]


def themed(figure: Any, **layout: Any) -> Any:
    """Apply this theme to a ``plotly.graph_objects.Figure`` and return it."""
    figure.update_layout(template="none", **FIGURE, **layout)
    figure.update_xaxes(**AXIS)
    return figure.update_yaxes(**AXIS)


def stacked_bars(names: list[str], series: Iterable[tuple[str, list[float], str]], title: str, left: int) -> Any:
    """Return a plotly figure of horizontal bars of durations, from top to bottom, in the unit of the longest part.

    Args:
        names: of the bars.
        series: (name, seconds in each bar, color) of their parts, from left to right.
        title: what the durations are of, which follows their unit in the title of the axis.
        left: pixels that the names need.
    """
    import plotly.graph_objects as go

    figure, series = go.Figure(), list(series)
    unit, scale = unit_of_seconds(seconds for _, parts, _ in series for seconds in parts)
    for name, parts, color in series:
        hover = f"%{{y}}<br>%{{x:.3g}} {unit} {name}<extra></extra>"
        values = [seconds / scale for seconds in parts]
        figure.add_bar(orientation="h", x=values, y=names, name=name, marker={"color": color}, hovertemplate=hover)
    figure.update_yaxes(autorange="reversed")
    figure.update_xaxes(title=f"{unit} {title}", rangemode="tozero")
    figure.update_layout(barmode="stack", legend=LEGEND_ABOVE, showlegend=True)
    return themed(figure, height=110 + 28 * len(names), margin={"l": left, "r": 40, "t": 50, "b": 50})
