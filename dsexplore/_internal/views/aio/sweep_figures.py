"""A sweep of a disk as plotly figures: heatmaps, rate by depth, latency by rate, parallel coordinates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dsexplore._internal.aio.sweeps.result import SweepResult
from dsexplore._internal.units import format_bytes, format_count
from dsexplore._internal.views.aio.sweep_points import Point, cells, limit_of, points, thread_counts
from dsexplore._internal.views.page import html
from dsexplore._internal.views.page.charts import DASHES, color_scale, themed
from dsexplore._internal.views.page.theme import FIGURE_TEXT, SERIES

_LINE_COLORS = SERIES[:5]


def _heatmaps(result: SweepResult, direction: str) -> Any:
    """Return GB/s by block size and queue depth, a heatmap per thread count."""
    from plotly.subplots import make_subplots

    counts = thread_counts(result, direction)
    titles = [format_count(count, "thread") for count in counts]
    figure = make_subplots(cols=len(counts), shared_yaxes=True, subplot_titles=titles, horizontal_spacing=0.03)
    every = points(result, direction)
    blocks = sorted({p.config.block_size for p in every})
    depths = sorted({p.config.queue_depth for p in every})
    for column, count in enumerate(counts, 1):
        by_cell = cells(result, direction, count)
        grid = [[by_cell.get((block, depth)) for depth in depths] for block in blocks]
        figure.add_heatmap(
            x=[str(depth) for depth in depths],
            y=[format_bytes(block) for block in blocks],
            z=[[p.rate / 1e9 if p else None for p in row] for row in grid],
            customdata=[[str(p.config) if p else "" for p in row] for row in grid],
            hovertemplate="%{customdata}<br>%{z:.2f} GB/s<extra></extra>",
            coloraxis="coloraxis",
            texttemplate="%{z:.1f}",
            row=1,
            col=column,
        )
    figure.update_layout(coloraxis={"colorscale": color_scale(0.1), "colorbar": {"title": "GB/s"}, "cmin": 0})
    figure.update_xaxes(title="queue depth", type="category", categoryorder="array")
    figure.update_xaxes(categoryarray=[str(depth) for depth in depths])
    return _titled(figure, result, direction)


def _along_depth(result: SweepResult, direction: str, threads: int) -> list[Point]:
    """Return the point of the fastest block size at each queue depth, for one thread count."""
    best: dict[int, Point] = {}
    for (_, depth), point in cells(result, direction, threads).items():
        if depth not in best or point.rate > best[depth].rate:
            best[depth] = point
    return [best[depth] for depth in sorted(best)]


def _depth_curves(result: SweepResult, direction: str) -> Any:
    """Return GB/s by queue depth with the fastest block size, a line per thread count, and the disk's limit."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for at, count in enumerate(thread_counts(result, direction)):
        ordered = _along_depth(result, direction, count)
        figure.add_scatter(
            x=[p.config.queue_depth for p in ordered],
            y=[p.rate / 1e9 for p in ordered],
            customdata=[str(p.config) for p in ordered],
            hovertemplate="%{customdata}<br>%{y:.2f} GB/s<extra></extra>",
            mode="lines+markers",
            name=format_count(count, "thread"),
            line={"color": _LINE_COLORS[at % len(_LINE_COLORS)], "dash": DASHES[at % len(DASHES)]},
        )
    if (limit := limit_of(result, direction)) is not None:
        figure.add_hline(limit[0] / 1e9, line_dash="dot", line_color=FIGURE_TEXT, annotation_text=limit[1])
    depths = sorted({point.config.queue_depth for point in points(result, direction)})
    figure.update_xaxes(type="log", title="queue depth", tickvals=depths, ticktext=list(map(str, depths)))
    figure.update_yaxes(title="GB/s, best block size", rangemode="tozero")
    return _titled(figure, result, direction)


def _latency_curves(result: SweepResult, direction: str) -> Any:
    """Return the latency of a request by rate, two lines (p50, p99) per thread count, and the disk's limit."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for at, count in enumerate(thread_counts(result, direction)):
        ordered = _along_depth(result, direction, count)
        for quantile, dash, symbol in (("p50", "solid", "circle"), ("p99", "dash", "x")):
            figure.add_scatter(
                x=[p.rate / 1e9 for p in ordered],
                y=[getattr(p, quantile) * 1e3 for p in ordered],
                customdata=[str(p.config) for p in ordered],
                hovertemplate="%{customdata}<br>%{x:.2f} GB/s, %{y:.2f} ms<extra></extra>",
                mode="lines+markers",
                name=f"{quantile}, {format_count(count, 'thread')}",
                line={"color": _LINE_COLORS[at % len(_LINE_COLORS)], "dash": dash},
                marker={"symbol": symbol, "size": 8},
            )
    if (limit := limit_of(result, direction)) is not None:
        figure.add_vline(limit[0] / 1e9, line_dash="dot", line_color=FIGURE_TEXT, annotation_text=limit[1])
    figure.update_xaxes(title="GB/s", rangemode="tozero")
    figure.update_yaxes(type="log", title="latency of a request, ms")
    return _titled(figure, result, direction)


def _parallel(result: SweepResult, direction: str) -> Any:
    """Return all settings as parallel coordinates, with rate and latency."""
    import plotly.graph_objects as go

    every = points(result, direction)
    rates = [p.rate / 1e9 for p in every]
    blocks = sorted({p.config.block_size for p in every})
    depths = sorted({p.config.queue_depth for p in every})
    dimensions = [
        _steps("block size", [p.config.block_size for p in every], blocks, format_bytes),
        _steps("queue depth", [p.config.queue_depth for p in every], depths, str),
        _steps("threads", [p.config.thread_count for p in every], thread_counts(result, direction), str),
        _steps("submit", [p.config.single_submit for p in every], [False, True], lambda v: "single" if v else "block"),
        _steps(
            "events", [p.config.overlap_events for p in every], [False, True], lambda v: "overlap" if v else "batch"
        ),
        {"label": "GB/s", "values": rates},
        {"label": "p99 ms", "values": [p.p99 * 1e3 for p in every]},
    ]
    line = {"color": rates, "colorscale": color_scale(0.1), "showscale": True, "cmin": 0}
    plain = {"shadow": "none"}  # by default plotly surrounds letters with white, also on a dark page
    lines = go.Parcoords(dimensions=dimensions, line=line, labelfont=plain, tickfont=plain, rangefont=plain)
    figure = _titled(go.Figure(lines), result, direction)
    return figure.update_layout(margin_t=110)  # for the names of the coordinates


def _steps(label: str, values: list[Any], steps: list[Any], format_step: Callable[[Any], str]) -> dict[str, Any]:
    """Return a parallel coordinate whose ``steps`` are equally spaced.

    Args:
        label: name of the coordinate.
        values: value of each setting.
        steps: distinct values, in order.
        format_step: returns the text of a value.
    """
    place = {step: at for at, step in enumerate(steps)}
    return {
        "label": label,
        "values": [place[value] for value in values],
        "tickvals": list(range(len(steps))),
        "ticktext": [format_step(step) for step in steps],
        "range": [0, max(len(steps) - 1, 1)],
    }


def _titled(figure: Any, result: SweepResult, direction: str) -> Any:
    """Return the figure with the direction, the disk and the mode as its title."""
    title = html.escape(f"{direction}: {result.disk.label}, {result.conditions.mode} mode", longest=120)
    margin = {"l": 90, "r": 40, "t": 80, "b": 50}
    return themed(figure, title={"text": title, "font": {"size": 14}}, height=420, margin=margin)


FIGURES: dict[str, Callable[[SweepResult, str], Any]] = {
    "heatmap": _heatmaps,
    "depth": _depth_curves,
    "latency": _latency_curves,
    "parallel": _parallel,
}
"""{kind of figure: function that draws it in one direction}."""
