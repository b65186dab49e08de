"""The view of a sweep of a disk: the setting to take, heatmaps, and how it was measured."""

from __future__ import annotations

from typing import Any

from dsexplore._internal.aio.aio_config import AioConfig
from dsexplore._internal.aio.sweeps import result_text
from dsexplore._internal.aio.sweeps.result import SweepResult
from dsexplore._internal.aio.sweeps.statistics import Interval, ratio_interval
from dsexplore._internal.errors import UsageError
from dsexplore._internal.units import format_bytes, format_count, format_rate, format_share
from dsexplore._internal.views.aio.sweep_figures import FIGURES
from dsexplore._internal.views.aio.sweep_points import Point, cells, directions, points, thread_counts
from dsexplore._internal.views.page import html
from dsexplore._internal.views.page.html_table import Column, prose, table, text
from dsexplore._internal.views.page.still_figure import still_figure
from dsexplore._internal.views.page.style import heat
from dsexplore._internal.views.page.theme import SHADE
from dsexplore._internal.views.view import ResultView

_CLICK = "A click on a point shows its block."

_STYLE = (
    """
.dsx pre.block{background:var(--dsx-shade);padding:8px 10px;margin:6px 0;width:max-content;max-width:100%;
overflow-x:auto;font-family:var(--dsx-mono);font-size:var(--dsx-small);user-select:all;color:inherit}
.dsx .sweep td{padding:2px 8px;border:1px solid var(--dsx-line);text-align:right}
.dsx .sweep th{padding:2px 8px;font-weight:400}
.dsx .sweep tbody th{text-align:right;border:0}
.dsx.dsx .sweep tbody th.group{text-align:left;color:var(--dsx-dim);padding:6px 0 1px}
.dsx .sweep td.best{outline:2px solid var(--dsx-fg);outline-offset:-2px;font-weight:600}
.dsx details>summary{font-weight:600;padding:3px 0}
.dsx .interval{display:inline-block;position:relative;width:120px;height:9px;margin-right:8px;
background:var(--dsx-shade);forced-color-adjust:none}
.dsx .interval .range{position:absolute;top:3px;height:3px;min-width:2px;background:var(--dsx-dim)}
.dsx .interval .mean{position:absolute;top:0;height:9px;width:3px;margin-left:-1px;background:"""
    + SHADE
    + """}
"""
)


class SweepView(ResultView[SweepResult]):
    """The view of a `SweepResult`."""

    title = "Disk throughput"
    STYLE = _STYLE
    MOST_ROWS = 24

    def what(self) -> str:
        """Return the disk that was measured, and how, in one line."""
        return result_text.what(self.result)

    def body(self, most: int) -> str:
        """Return the settings compared, the block to paste, heatmaps, and how it was measured, as HTML."""
        result = self.result
        parts = [html.sentences(result_text.remarks(result))]
        parts.append(html.details("Settings compared", _settings_table(result, most), opened=True))
        if result.rounds:
            parts.append(f'<pre class="block">{html.escape(result.best().config.to_json(), longest=0)}</pre>')
        parts.append(html.details("Rates and latencies", html.sentences(result_text.rate_lines(result))))
        for direction in reversed(directions(result)):
            grid = _heat_table(result, direction)
            parts.append(html.details(f"{direction}: GB/s by block size and queue depth", grid))
        parts.append(html.details("Other limits", _references_table(result)))
        parts.append(html.details("How it was measured", _conditions_table(result)))
        return "".join(parts)

    def figure(self, kind: str = "heatmap", operation: str | None = None) -> Any:
        """Return a plotly figure.

        Args:
            kind: ``"heatmap"`` (one per thread count), ``"depth"`` (rate by queue depth, with the disk's limit),
                ``"latency"`` (latency by rate, with the disk's limit) or ``"parallel"`` (parallel coordinates).
            operation: ``"read"``, ``"write"`` or ``"mix"``; None for the mix, or for the only direction measured.

        Raises:
            UsageError: The kind is unknown, or the direction was not measured.
        """
        if kind not in FIGURES:
            raise UsageError(f"kind {kind!r} is unknown: it is one of {', '.join(FIGURES)}")
        chosen = operation or directions(self.result)[-1]
        if chosen not in directions(self.result):
            raise UsageError(f"operation {chosen!r} was not measured: there is {', '.join(directions(self.result))}")
        return FIGURES[kind](self.result, chosen)

    def still(self, figure: Any, kind: str = "heatmap", operation: str | None = None, **options: Any) -> str:
        """Return the lines as SVG, or a table of rates for heatmaps and parallel coordinates."""
        if kind not in ("heatmap", "parallel"):
            return still_figure(figure)
        chosen = operation or directions(self.result)[-1]
        title = f"<p>{html.escape(chosen)}: GB/s by block size and queue depth</p>"
        return html.fragment(title + _heat_table(self.result, chosen), self.STYLE)

    def explore(self) -> Any:
        """Return a choice of figures; a click on a point shows the ``"aio"`` block of its setting, to copy."""
        import ipywidgets

        from dsexplore._internal.views.widgets.chart_explorer import ChartExplorer

        result, choices = self.result, directions(self.result)
        by_name = {str(m.sample.config): m.sample.config for m in result.measured}
        block = ipywidgets.Textarea(layout=ipywidgets.Layout(width="26em", height="14em"), disabled=False)
        setting = ipywidgets.HTML()

        def show(config: AioConfig) -> None:
            explorer.selection = config
            block.value, setting.value = config.to_json(), html.escape(config)

        def select(name: Any) -> None:
            if name in by_name:
                show(by_name[name])

        explorer = ChartExplorer(
            self,
            draw=lambda kind, operation: (FIGURES[kind](result, operation), f"{kind} of {operation}"),
            select=select,
            controls={
                "kind": ipywidgets.Dropdown(options=list(FIGURES), description="picture"),
                "operation": ipywidgets.Dropdown(options=choices, value=choices[-1], description="direction"),
            },
            below=[ipywidgets.HBox([block, ipywidgets.VBox([setting, ipywidgets.HTML(_CLICK)])])],
        )
        show(result.best().config if result.rounds else result.control)
        return explorer


def _heat_table(result: SweepResult, direction: str) -> str:
    """Return a heatmap of GB/s by block size and queue depth, with a group of rows per thread count."""
    every = points(result, direction)
    if not every:
        return ""
    depths = sorted({point.config.queue_depth for point in every})
    top = max(point.rate for point in every)
    chosen = result.best().config if result.rounds else None
    head = "".join(f'<th scope="col">{"depth " if depth == depths[0] else ""}{depth}</th>' for depth in depths)
    groups = ""
    for threads in thread_counts(result, direction):
        by_cell = cells(result, direction, threads)
        title = format_count(threads, "thread")
        groups += f'<tbody><tr><th scope="rowgroup" class="group" colspan="{len(depths) + 1}">{title}</th></tr>'
        for block in sorted({size for size, _ in by_cell}):
            line = "".join(_heat_cell(by_cell.get((block, depth)), top, chosen) for depth in depths)
            groups += f'<tr><th scope="row">{format_bytes(block)}</th>{line}</tr>'
        groups += "</tbody>"
    table = f'<table class="sweep"><thead><tr><th scope="col">block</th>{head}</tr></thead>{groups}</table>'
    return f'<div class="scroll" tabindex="0">{table}</div>{_scale(top)}'


def _scale(top: float) -> str:
    """Return the color bar, from 0 to the rate of the fastest setting."""
    cells = "".join(f'<span style="{heat(round(50 * i / 6))}"></span>' for i in range(7))
    return f'<p class="dim scale">0<span>{cells}</span>{top / 1e9:.2f} GB/s</p>'


def _heat_cell(point: Point | None, top: float, chosen: AioConfig | None) -> str:
    """Return the cell of a setting; ``top``: rate of the darkest shade; ``chosen``: setting that is outlined."""
    if point is None:
        return '<td class="dim">–</td>'
    shade = round(50 * point.rate / top) if top else 0
    mark = ' class="best"' if chosen is not None and _place(point.config) == _place(chosen) else ""
    setting = html.escape(str(point.config))
    return f'<td{mark} title="{setting}" style="{heat(shade)}">{point.rate / 1e9:.2f}</td>'


def _place(config: AioConfig) -> tuple[int, int, int]:
    return config.thread_count, config.block_size, config.queue_depth


def _settings_table(result: SweepResult, most: int) -> str:
    """Return a table of the settings that the verdict compares: fastest first, those with too wide intervals last."""
    means = {config: ratio_interval(list(ratios.values())) for config, ratios in result.rounds.items()}
    ranked = sorted(means, key=lambda config: (not means[config].is_narrow, -means[config].value))[:most]
    by_config = {point.config: point for point in points(result, directions(result)[-1])}
    widest = max((mean.high for mean in means.values() if mean.is_narrow), default=0.0)
    columns = (
        prose("setting", lambda config: html.escape(config) + (" (default)" if config == result.control else "")),
        Column("GB/s", lambda config: f"{result.mixed_rate(config) / 1e9:.2f}"),
        Column("GiB/s", lambda config: f"{result.mixed_rate(config) / 2**30:.2f}"),
        Column("× default", lambda config: _interval(means[config], widest) + html.escape(means[config])),
        Column("p50 ms", lambda config: f"{by_config[config].p50 * 1e3:.2f}"),
        Column("p99 ms", lambda config: f"{by_config[config].p99 * 1e3:.2f}"),
    )
    return table(columns, ranked) if ranked else ""


def _interval(mean: Interval, widest: float) -> str:
    """Return a mark at the mean on its interval, on a scale from 0 to the highest end; nothing for a single round."""
    if not widest or not mean.is_narrow:
        return ""
    low, at, high = (100 * end / widest for end in (mean.low, mean.value, mean.high))
    return (
        f'<span class="interval" role="img" aria-label="from {mean.low:.2f} to {mean.high:.2f}">'
        f'<span class="range" style="left:{low:.1f}%;width:{high - low:.1f}%"></span>'
        f'<span class="mean" style="left:{at:.1f}%"></span></span>'
    )


def _references_table(result: SweepResult) -> str:
    """Return what other tools reached on the disk; empty if none were run."""
    columns = (
        text("by", lambda reference: html.escape(reference.name)),
        text("direction", lambda reference: reference.operation),
        Column("rate", lambda reference: format_rate(reference.rate)),
        prose("how", lambda reference: html.escape(reference.note)),
    )
    return table(columns, result.references) if result.references else ""


def _conditions_table(result: SweepResult) -> str:
    """Return a row per condition of the measurement; conditions without a value are omitted."""
    disk, how = result.disk, result.conditions

    def share(value: float | None) -> str:
        return "unknown" if value is None else format_share(value, 1)

    facts = {
        "disk": f"{disk.label} {disk.model}",
        "path": disk.path,
        "why not direct": disk.why_buffered or "",
        "engine": f"{how.backend} (loop in {how.loop})",
        **{f"not {name}": reason for name, reason in sorted(how.unavailable.items())},
        "mode": f"{how.mode}; writes: {how.write_mode}; {format_share(how.read_share, 1)} reads",
        "size": format_bytes(how.size),
        "memory": f"{how.memory} pages",
        "huge pages": share(how.huge_share),
        "left out": how.left_out,
        "in the page cache before": share(how.cached_share),
        "holes": "" if how.data_share == 1 else share(1 - how.data_share),
        "tensors": ", ".join(map(format_bytes, how.transfers)),
        "processes": str(how.processes) if how.processes > 1 else "",
        "together with": ", ".join(how.further_folders),
        "slices": f"{len(result.measured)} of {how.slice_seconds:.2f} s, {result.elapsed:.0f} s in all",
        "written": format_bytes(result.bytes_written)
        + ("" if how.most_written is None else f" of at most {format_bytes(how.most_written)}"),
        "system": how.system,
        "started": how.started,
    }
    columns = text("", lambda fact: html.escape(fact[0])), prose("", lambda fact: html.parted(fact[1], longest=300))
    return table(columns, [fact for fact in facts.items() if fact[1]])
