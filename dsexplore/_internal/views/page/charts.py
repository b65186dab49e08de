"""The look of plotly's figures, ticks of axes, and a chart that several views draw."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, floor, log10
from typing import Any

from dsexplore._internal.units import unit_of_seconds
from dsexplore._internal.views.page.theme import FIGURE_TEXT, SHADE, tint

_CLEAR = "rgba(0,0,0,0)"
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
"""Dash styles of a figure's lines, in order of use."""

FIGURE: dict[str, Any] = {
    "paper_bgcolor": _CLEAR,
    "plot_bgcolor": _CLEAR,
    "font": {"color": FIGURE_TEXT, "size": 12},
    "modebar": {"bgcolor": _CLEAR, "color": FIGURE_TEXT},
}
"""Layout that all figures share, as plotly's JSON: no background, and legible text."""
AXIS: dict[str, Any] = {
    "gridcolor": "rgba(128,128,128,0.25)",
    "zerolinecolor": "rgba(128,128,128,0.4)",
    "automargin": True,
}
"""Settings that all axes share: lines that are visible on white and on black, and space for the labels."""
_TICKS = 5
"""Number of ticks of an axis; there may be one more."""
_NEAR = 1e-9
"""Tolerance within which a position counts as a multiple of the distance of ticks."""
LEGEND_ABOVE = {"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0, "traceorder": "normal"}


def color_scale(least: float = 0.04) -> list[list[Any]]:
    """Return plotly's color scale of bytes, times and rates; ``least`` is the opacity of its lowest value."""
    return [[0.0, tint(SHADE, least)], [1.0, SHADE]]


def themed(figure: Any, **layout: Any) -> Any:
    """Apply this theme to a ``plotly.graph_objects.Figure`` and return it."""
    figure.update_layout(template="none", **FIGURE, **layout)
    figure.update_xaxes(**AXIS)
    return figure.update_yaxes(**AXIS)


def round_numbers(first: float, last: float) -> list[float]:
    """Return the ticks of an axis: multiples of 1, 2 or 5 times a power of ten, from ``first`` to ``last``."""
    least = (last - first) / _TICKS
    if least <= 0:
        return [first]
    power = 10.0 ** floor(log10(least))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - _NEAR))
    return [step * number for number in range(ceil(first / step - _NEAR), floor(last / step + _NEAR) + 1)]


def stacked_bars(names: list[str], series: Iterable[tuple[str, list[float], str]], title: str, left: int) -> Any:
    """Return a plotly figure of horizontal bars of durations, from top to bottom, in the unit of the longest part.

    Args:
        names: labels of the bars.
        series: (name, seconds in each bar, color) of each part of the bars, from left to right.
        title: text after the unit in the title of the axis: ``"of a cold load"`` gives ``"ms of a cold load"``.
        left: pixels left of the bars, for their labels.
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
