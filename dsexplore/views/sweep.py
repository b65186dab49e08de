"""A sweep of a disk: the block to paste, the heatmaps behind it, and an explorer that gives any point's block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dsexplore.aio.config import AioConfig
from dsexplore.aio.result import SweepResult, mix
from dsexplore.aio.statistics import median, ratio_interval
from dsexplore.display import View
from dsexplore.errors import UsageError
from dsexplore.units import format_bytes, format_rate
from dsexplore.views import html
from dsexplore.views.palette import BLUE, GREEN, ORANGE, PURPLE, VERMILION

KINDS = ("heatmap", "depth", "latency", "parallel")
_MOST_ROWS = 24
_LINES = (BLUE, ORANGE, GREEN, PURPLE, VERMILION)
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")

STYLE = """
.dsx pre.block{background:var(--dsx-shade);padding:8px 10px;margin:6px 0;width:max-content;max-width:100%;
overflow-x:auto;font-family:var(--dsx-mono);font-size:12px;user-select:all;color:inherit}
.dsx .sweep td{padding:2px 8px;border:1px solid var(--dsx-line);text-align:right}
.dsx .sweep th{padding:2px 8px;font-weight:400}
.dsx .sweep tbody th{text-align:right;border:0}
.dsx .sweep td.best{outline:2px solid var(--dsx-fg);outline-offset:-2px;font-weight:600}
.dsx details>summary{font-weight:600;padding:3px 0}
"""


@dataclass(frozen=True)
class Point:
    """One setting in one direction, or in the user's mix of both."""

    config: AioConfig
    rate: float
    """Bytes per second."""
    p50: float
    p99: float
    """Seconds."""


class SweepView(View):
    """How a `SweepResult` is shown."""

    title = "Disk throughput"

    def __init__(self, result: SweepResult) -> None:
        self._result = result

    def text(self) -> str:
        """What to take and what it gives: half a dozen lines."""
        return "\n".join(html.plain(line, 200) for line in self._result.lines())

    def html(self) -> str:
        """The verdict, the block to paste, heatmaps, the finalists, and how it was measured."""
        result = self._result
        body = [f"<p>{html.escape(line, 300)}</p>" for line in result.lines()]
        if result.rounds:
            body.append(f'<pre class="block">{html.escape(result.best().config.to_json(), 0)}</pre>')
        for at, direction in enumerate(reversed(directions(result))):
            grids = "".join(_heat_table(result, direction, threads) for threads in thread_counts(result, direction))
            body.append(_section(f"{direction}: GB/s by block size and queue depth", grids, opened=at == 0))
        body.append(_section("Settings compared", _settings_table(result)))
        body.append(_section("Other limits", _references_table(result)))
        body.append(_section("How it was measured", _conditions_table(result)))
        return html.fragment("".join(body), STYLE)

    def figure(self, kind: str = "heatmap", operation: str | None = None, **options: Any) -> Any:
        """A plotly figure.

        Args:
            kind: ``"heatmap"`` (one per thread count), ``"depth"`` (rate by queue depth, with the disk's limit),
                ``"latency"`` (latency by rate, with the disk's limit) or ``"parallel"`` (parallel coordinates).
            operation: ``"read"``, ``"write"`` or ``"mix"``; None takes the mix, or the only direction measured.

        Raises:
            UsageError: an unknown kind, direction or option.
        """
        if options:
            raise UsageError(f"figure() of a sweep has no option {next(iter(options))!r}: it takes kind and operation")
        if kind not in KINDS:
            raise UsageError(f"kind {kind!r} is unknown: it is one of {', '.join(KINDS)}")
        chosen = operation or directions(self._result)[-1]
        if chosen not in directions(self._result):
            raise UsageError(f"operation {chosen!r} was not measured: there is {', '.join(directions(self._result))}")
        draw: dict[str, Callable[[SweepResult, str], Any]] = {
            "heatmap": _heatmaps,
            "depth": _depth_curves,
            "latency": _latency_curves,
            "parallel": _parallel,
        }
        return draw[kind](self._result, chosen)

    def explore(self, **options: Any) -> Any:
        """Pictures to choose from; a click on a point shows the ``"aio"`` block of its setting, to copy."""
        if options:
            raise UsageError(f"explore() of a sweep has no option {next(iter(options))!r}: it takes none")
        return explorer(self._result)


def directions(result: SweepResult) -> list[str]:
    """What can be drawn: each direction measured, and their mix if there are both."""
    return [*result.operations, *(["mix"] if len(result.operations) == 2 else [])]


def points(result: SweepResult, direction: str) -> list[Point]:
    """Each setting's medians in one direction; for the mix, the latencies are the slower direction's."""
    by_config: dict[AioConfig, dict[str, list[Any]]] = {}
    for m in result.measured:
        by_config.setdefault(m.sample.config, {}).setdefault(m.sample.operation, []).append(m.sample)
    found = []
    for config, samples in sorted(by_config.items()):
        wanted = result.operations if direction == "mix" else [direction]
        if not all(operation in samples for operation in wanted):
            continue
        rates = {operation: median([s.rate for s in samples[operation]]) for operation in wanted}
        p50 = max(median([s.p50 for s in samples[operation]]) for operation in wanted)
        p99 = max(median([s.p99 for s in samples[operation]]) for operation in wanted)
        found.append(Point(config, mix(rates, result.conditions.read_share), p50, p99))
    return found


def thread_counts(result: SweepResult, direction: str) -> list[int]:
    """The thread counts that were measured, in order."""
    return sorted({point.config.thread_count for point in points(result, direction)})


def cells(result: SweepResult, direction: str, threads: int) -> dict[tuple[int, int], Point]:
    """The fastest way of submitting and reaping for each (block size, queue depth) at one thread count."""
    best: dict[tuple[int, int], Point] = {}
    for point in points(result, direction):
        key = point.config.block_size, point.config.queue_depth
        if point.config.thread_count == threads and (key not in best or point.rate > best[key].rate):
            best[key] = point
    return best


def limit_of(result: SweepResult, direction: str) -> tuple[float, str] | None:
    """The most that a reference reached in a direction, or in the mix of both: (bytes per second, what it was)."""
    most: dict[str, float] = {}
    for reference in result.references:
        most[reference.operation] = max(most.get(reference.operation, 0.0), reference.rate)
    wanted = result.operations if direction == "mix" else [direction]
    if not all(operation in most for operation in wanted):
        return None
    rate = mix({operation: most[operation] for operation in wanted}, result.conditions.read_share)
    return rate, f"the disk's limit, {format_rate(rate)}"


def _section(title: str, body: str, *, opened: bool = False) -> str:
    if not body:
        return ""
    return f"<details{' open' if opened else ''}><summary>{html.escape(title)}</summary>{body}</details>"


def _heat_table(result: SweepResult, direction: str, threads: int) -> str:
    found = cells(result, direction, threads)
    blocks, depths = sorted({b for b, _ in found}), sorted({d for _, d in found})
    rates = [point.rate for point in points(result, direction)]
    scale = min(rates), max(rates)
    chosen = result.best().config if result.rounds else None
    head = "".join(f'<th scope="col">{depth}</th>' for depth in depths)
    rows = ""
    for block in blocks:
        line = "".join(_heat_cell(found.get((block, depth)), scale, chosen) for depth in depths)
        rows += f'<tr><th scope="row">{format_bytes(block)}</th>{line}</tr>'
    corner = f"{threads} thread{'s' if threads > 1 else ''}, depth"
    return (
        f'<div class="scroll"><table class="sweep"><thead><tr><th>{corner}</th>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _heat_cell(point: Point | None, scale: tuple[float, float], chosen: AioConfig | None) -> str:
    if point is None:
        return '<td class="dim">–</td>'
    low, high = scale
    shade = round(5 + 45 * (point.rate - low) / (high - low)) if high > low else 25
    mark = ' class="best"' if chosen is not None and _place(point.config) == _place(chosen) else ""
    told = html.escape(str(point.config))
    return (
        f'<td{mark} title="{told}" style="background:color-mix(in srgb,{BLUE} {shade}%,transparent)">'
        f"{point.rate / 1e9:.2f}</td>"
    )


def _place(config: AioConfig) -> tuple[int, int, int]:
    return config.thread_count, config.block_size, config.queue_depth


def _settings_table(result: SweepResult) -> str:
    """The settings that the verdict rests on, fastest first."""
    means = {config: ratio_interval(list(ratios.values())) for config, ratios in result.rounds.items()}
    ranked = sorted(means, key=lambda config: -means[config].value)[:_MOST_ROWS]
    by_config = {point.config: point for point in points(result, directions(result)[-1])}
    rows = [
        [
            html.escape(str(config)) + (" (default)" if config == result.control else ""),
            f"{result.mixed_rate(config) / 1e9:.2f}",
            f"{result.mixed_rate(config) / 2**30:.2f}",
            html.escape(str(means[config])),
            f"{by_config[config].p50 * 1e3:.2f}",
            f"{by_config[config].p99 * 1e3:.2f}",
        ]
        for config in ranked
    ]
    return html.table(["setting", "GB/s", "GiB/s", "× default", "p50 ms", "p99 ms"], rows) if rows else ""


def _references_table(result: SweepResult) -> str:
    rows = [[html.escape(r.name), r.operation, format_rate(r.rate), html.escape(r.note)] for r in result.references]
    return html.table(["by", "direction", "rate", "how"], rows, left=(0, 1, 3)) if rows else ""


def _conditions_table(result: SweepResult) -> str:
    disk, how = result.disk, result.conditions

    def share(value: float | None) -> str:
        return "unknown" if value is None else f"{value:.0%}"

    facts = {
        "disk": f"{disk.label} {disk.model}",
        "path": disk.path,
        "why not direct": disk.why_buffered or "",
        "engine": how.backend,
        **{f"not {name}": reason for name, reason in sorted(how.unavailable.items())},
        "mode": f"{how.mode}; writes: {how.write_mode}; {how.read_share:.0%} reads",
        "size": format_bytes(how.size),
        "huge pages": share(how.huge_share),
        "in the page cache before": share(how.cached_share),
        "slices": f"{len(result.measured)} of {how.slice_seconds:.2f} s, {result.elapsed:.0f} s in all",
        "written": format_bytes(result.bytes_written),
        "system": how.system,
        "started": how.started,
    }
    return html.table(["", ""], [[html.escape(k), html.name(v, 300)] for k, v in facts.items() if v], left=(0, 1))


def _heatmaps(result: SweepResult, direction: str) -> Any:
    from plotly.subplots import make_subplots

    counts = thread_counts(result, direction)
    titles = [f"{count} thread{'s' if count > 1 else ''}" for count in counts]
    figure = make_subplots(cols=len(counts), shared_yaxes=True, subplot_titles=titles, horizontal_spacing=0.03)
    every = points(result, direction)
    blocks = sorted({p.config.block_size for p in every})
    depths = sorted({p.config.queue_depth for p in every})
    for column, count in enumerate(counts, 1):
        found = cells(result, direction, count)
        grid = [[found.get((block, depth)) for depth in depths] for block in blocks]
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
    figure.update_layout(coloraxis={"colorscale": "Viridis", "colorbar": {"title": "GB/s"}, "cmin": 0})
    figure.update_xaxes(title="queue depth", type="category", categoryorder="array")
    figure.update_xaxes(categoryarray=[str(depth) for depth in depths])
    return _titled(figure, result, direction)


def _along_depth(result: SweepResult, direction: str, threads: int) -> list[Point]:
    """The fastest block size at each queue depth, for one thread count."""
    best: dict[int, Point] = {}
    for (_, depth), point in cells(result, direction, threads).items():
        if depth not in best or point.rate > best[depth].rate:
            best[depth] = point
    return [best[depth] for depth in sorted(best)]


def _depth_curves(result: SweepResult, direction: str) -> Any:
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
            name=f"{count} thread{'s' if count > 1 else ''}",
            line={"color": _LINES[at % len(_LINES)], "dash": _DASHES[at % len(_DASHES)]},
        )
    if (limit := limit_of(result, direction)) is not None:
        figure.add_hline(limit[0] / 1e9, line_dash="dot", annotation_text=limit[1])
    figure.update_xaxes(type="log", title="queue depth")
    figure.update_yaxes(title="GB/s, best block size", rangemode="tozero")
    return _titled(figure, result, direction)


def _latency_curves(result: SweepResult, direction: str) -> Any:
    import plotly.graph_objects as go

    figure = go.Figure()
    for at, count in enumerate(thread_counts(result, direction)):
        ordered = _along_depth(result, direction, count)
        for quantile, dash, symbol in (("p50", "solid", "circle"), ("p99", "dot", "x")):
            figure.add_scatter(
                x=[p.rate / 1e9 for p in ordered],
                y=[getattr(p, quantile) * 1e3 for p in ordered],
                customdata=[str(p.config) for p in ordered],
                hovertemplate="%{customdata}<br>%{x:.2f} GB/s, %{y:.2f} ms<extra></extra>",
                mode="lines+markers",
                name=f"{quantile}, {count} thread{'s' if count > 1 else ''}",
                line={"color": _LINES[at % len(_LINES)], "dash": dash},
                marker={"symbol": symbol, "size": 8},
            )
    if (limit := limit_of(result, direction)) is not None:
        figure.add_vline(limit[0] / 1e9, line_dash="dot", annotation_text=limit[1])
    figure.update_xaxes(title="GB/s", rangemode="tozero")
    figure.update_yaxes(type="log", title="latency of a request, ms")
    return _titled(figure, result, direction)


def _parallel(result: SweepResult, direction: str) -> Any:
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
    line = {"color": rates, "colorscale": "Viridis", "showscale": True, "cmin": 0}
    return _titled(go.Figure(go.Parcoords(dimensions=dimensions, line=line)), result, direction)


def _steps(label: str, values: list[Any], steps: list[Any], write: Callable[[Any], str]) -> dict[str, Any]:
    """A coordinate whose values stand at equal distances, whatever their size."""
    place = {step: at for at, step in enumerate(steps)}
    return {
        "label": label,
        "values": [place[value] for value in values],
        "tickvals": list(range(len(steps))),
        "ticktext": [write(step) for step in steps],
        "range": [0, max(len(steps) - 1, 1)],
    }


def _titled(figure: Any, result: SweepResult, direction: str) -> Any:
    title = html.escape(f"{direction}: {result.disk.label}, {result.conditions.mode} mode", 120)
    figure.update_layout(title={"text": title, "font": {"size": 14}}, template="none", height=420)
    figure.update_layout(margin={"l": 90, "r": 40, "t": 80, "b": 50}, paper_bgcolor="rgba(0,0,0,0)")
    return figure


def explorer(result: SweepResult) -> Any:
    """Dropdowns for picture and direction, the picture, and the block of the point last clicked.

    ``explorer.selection`` is the `AioConfig` shown.
    """
    import ipywidgets

    box = ipywidgets.VBox()
    first = result.best().config if result.rounds else result.control
    kind = ipywidgets.Dropdown(options=KINDS, description="picture")
    operation = ipywidgets.Dropdown(options=directions(result), value=directions(result)[-1], description="direction")
    block = ipywidgets.Textarea(layout=ipywidgets.Layout(width="26em", height="14em"), disabled=False)
    told = ipywidgets.HTML()
    picture = ipywidgets.VBox()

    def select(config: AioConfig) -> None:
        box.selection = config
        block.value = config.to_json()
        told.value = html.escape(str(config))

    def draw(_: Any = None) -> None:
        picture.children = [_clickable(SweepView(result).figure(kind.value, operation.value), result, select)]

    kind.observe(draw, "value")
    operation.observe(draw, "value")
    box.children = [
        ipywidgets.HBox([kind, operation]),
        picture,
        ipywidgets.HBox([block, ipywidgets.VBox([told, ipywidgets.HTML("A click on a point shows its block.")])]),
    ]
    box.select, box.draw = select, draw
    select(first)
    draw()
    return box


def _clickable(figure: Any, result: SweepResult, select: Callable[[AioConfig], None]) -> Any:
    import plotly.graph_objects as go

    by_name = {str(m.sample.config): m.sample.config for m in result.measured}
    widget = go.FigureWidget(figure)

    def clicked(trace: Any, places: Any, _: Any) -> None:
        for place in places.point_inds[:1]:
            data = trace.customdata
            name = data[place[0]][place[1]] if isinstance(place, (list, tuple)) else data[place]
            if name in by_name:
                select(by_name[name])

    for trace in widget.data:
        if trace.type != "parcoords":
            trace.on_click(clicked)
    return widget
