"""A sweep of collectives as plotly figures: bus bandwidth or time by message size, a line per op."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dsexplore._internal.comm.sweeps.bandwidth import bandwidth
from dsexplore._internal.comm.sweeps.sweep_result import CommSweep, SweepPoint
from dsexplore._internal.cost.collectives.calibrate import Calibration
from dsexplore._internal.cost.collectives.collective_duration import collective_time
from dsexplore._internal.errors import UsageError
from dsexplore._internal.units import format_bytes
from dsexplore._internal.views.page.charts import DASHES, themed
from dsexplore._internal.views.page.theme import FIGURE_TEXT, SHADE, op_mark

KINDS = ("busbw", "algbw", "time")
"""Kinds of figure: quantities by message size."""
_MOST_TICKS = 8
_AXES = {"busbw": "bus bandwidth, GB/s", "algbw": "algorithm bandwidth, GB/s", "time": "time of a call, µs"}


def value(sweep: CommSweep, point: SweepPoint, kind: str) -> float:
    """Return the quantity ``kind`` of a point: GB/s, or microseconds for ``"time"``."""
    if kind == "time":
        return point.seconds * 1e6
    algbw, busbw = bandwidth(point.op, point.message_bytes, point.seconds, sweep.conditions.ranks)
    return busbw if kind == "busbw" else algbw


def sweep_figure(sweep: CommSweep, kind: str, ops: Sequence[str], places: Sequence[bool] = (False, True)) -> Any:
    """Return a line per op by message size.

    Args:
        sweep: the sweep.
        kind: one of `KINDS`.
        ops: names of the ops to draw.
        places: False to draw the calls out of place, True those in place, with dashed lines; or both.
    """
    import plotly.graph_objects as go

    figure = go.Figure()
    for op in ops:
        for in_place in places:
            points = sweep.points_of(op, in_place=in_place)
            if points:
                figure.add_scatter(**_line(sweep, points, kind, op_mark(op).color, in_place))
    return _message_bytes_axis(figure, kind, sweep)


def _line(sweep: CommSweep, points: list[SweepPoint], kind: str, color: str, in_place: bool) -> dict[str, Any]:
    """Return plotly's arguments for the line of one op, which is labeled at its last point if out of place."""
    return {
        "x": [point.message_bytes for point in points],
        "y": [value(sweep, point, kind) for point in points],
        "name": f"{points[0].op}, in place" if in_place else points[0].op,
        "mode": "lines+markers+text",
        "text": [*[""] * (len(points) - 1), "" if in_place else points[0].op],
        "textposition": "middle right",
        "line": {"color": color, "dash": DASHES[int(in_place)]},
        "marker": {"symbol": op_mark(points[0].op).symbol},
        "customdata": [point_text(sweep, point) for point in points],
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def point_text(sweep: CommSweep, point: SweepPoint) -> str:
    """Return one sentence that describes a measured point."""
    algbw, busbw = bandwidth(point.op, point.message_bytes, point.seconds, sweep.conditions.ranks)
    place = "in place" if point.in_place else "out of place"
    quiet, slowest = (f"{seconds * 1e6:.4g} µs" for seconds in (point.quiet_seconds, max(point.rounds)))
    spread = f"quiet {quiet}, slowest of {len(point.rounds)} rounds {slowest}"
    return (
        f"{point.op} of {format_bytes(point.message_bytes)}, {place}: mean {point.seconds * 1e6:.4g} µs ({spread}), "
        f"algbw {algbw:.3g} GB/s, busbw {busbw:.3g} GB/s"
    )


def calibration_figure(calibration: Calibration, op: str) -> Any:
    """Return measured times of one op over those that the base cluster's file predicted, by message size.

    Raises:
        UsageError: the sweep has no times of the op.
    """
    import plotly.graph_objects as go

    sweep, here = calibration.sweep, calibration.sweep.conditions
    points = sweep.points_of(op)
    if not points:
        raise UsageError(f"op {op!r} was not measured: choose one of {', '.join(sweep.ops)}")
    sizes = [point.message_bytes for point in points]
    predicted = [collective_time(op, size, here.ranks, here.ranks_per_node, calibration.base) for size in sizes]
    figure = go.Figure()
    figure.add_scatter(
        x=sizes + sizes[::-1],
        y=[seconds.high * 1e6 for seconds in predicted] + [seconds.low * 1e6 for seconds in predicted[::-1]],
        fill="toself",
        mode="lines",
        line={"width": 0, "color": FIGURE_TEXT},
        opacity=0.25,
        name=f"range by {calibration.base.name}",
        hoverinfo="skip",
    )
    figure.add_scatter(
        x=sizes,
        y=[seconds.expected * 1e6 for seconds in predicted],
        mode="lines",
        line={"color": FIGURE_TEXT, "dash": "dash"},
        name=f"predicted by {calibration.base.name}",
        customdata=[f"{op} of {format_bytes(size)}: {seconds}" for size, seconds in zip(sizes, predicted, strict=True)],
        hovertemplate="%{customdata}<extra></extra>",
    )
    measured = {
        **_line(sweep, points, "time", SHADE, in_place=False),
        "y": [point.quiet_seconds * 1e6 for point in points],
        "name": f"{op}, measured",
        "mode": "markers",
    }
    figure.add_scatter(**measured)
    return _message_bytes_axis(figure, "time", sweep)


def _message_bytes_axis(figure: Any, kind: str, sweep: CommSweep) -> Any:
    """Set the axes of a figure to message bytes and to the quantity ``kind``, and return the figure."""
    every = sorted({point.message_bytes for point in sweep.points})
    ticks = every[:: max(1, math.ceil(len(every) / _MOST_TICKS))]
    figure.update_xaxes(
        title="message bytes", type="log", tickvals=ticks, ticktext=[format_bytes(size) for size in ticks]
    )
    figure.update_yaxes(title=_AXES[kind], type="log" if kind == "time" else "linear")
    return themed(figure)
