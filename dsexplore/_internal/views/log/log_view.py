"""The comms logger's summary: a table with a bar for the time of each line, and the same as a plotly figure."""

from __future__ import annotations

from typing import Any

from dsexplore._internal.comm.logs.log_summary import WAITING_HEAD, CommsSummary, Line, shown_name, waiting_cells
from dsexplore._internal.comm.sweeps.bandwidth import rate_text
from dsexplore._internal.errors import UsageError
from dsexplore._internal.units import format_bytes, format_seconds
from dsexplore._internal.views.page import html
from dsexplore._internal.views.page.charts import DASHES, LEGEND_ABOVE, themed
from dsexplore._internal.views.page.theme import SHADE, op_mark
from dsexplore._internal.views.view import PlottedView

STYLE = """
.dsx .log td{vertical-align:middle}
.dsx .log .bar{display:inline-block;height:9px;min-width:1px;vertical-align:baseline}
.dsx .log .track{display:inline-block;width:48px;text-align:left}
.dsx.dsx .log th,.dsx.dsx .log td{padding-right:8px}
"""
HEAD = ("op", "layer", "group", "ranks", "message", "calls", "", "time", "mean", "fastest", "slowest", "algbw", "busbw")
KINDS = ("time", "bandwidth")
_MARGIN = {"l": 8, "r": 8, "t": 24, "b": 8}
_WAITING_NOTE = "waiting: the part of the mean in which this rank waited for others"
_MOST_LINES = 200
_MOST_ROWS, _MOST_ROWS_OF_PAGE = 80, 2_000


class CommsSummaryView(PlottedView):
    """The view of a `CommsSummary`."""

    title = "Comms log"

    def __init__(self, summary: CommsSummary) -> None:
        self._summary = summary
        self._lines = summary.rows
        self._is_compared = summary.is_compared

    def text(self) -> str:
        """Return the table of the log's summary as text."""
        return self._summary.table_text()

    def html(self, most: int = _MOST_ROWS) -> str:
        """Return a table of what was sent and how long it took, one row per op, group and message size.

        Args:
            most: maximal number of rows.
        """
        if not self._lines:
            return html.fragment(f"<p><b>Comms log</b></p>{html.verdict(self._summary.verdict())}")
        longest = max(line.total for line in self._lines)
        rows = [_row(line, longest) + self._waiting(line) for line in self._lines[:most]]
        more = len(self._lines) - len(rows)
        text = f"… and {more:,} more lines: <code>to_frame()</code> has all, <code>to_html(path)</code> more"
        rest = f'<p class="dim">{text}</p>' if more else ""
        note = '<p class="dim">message: the whole buffer, as nccl-tests counts it; 1 GB = 1e9 bytes</p>'
        if self._is_compared:
            note = note.replace("</p>", f"; {_WAITING_NOTE}</p>")
        head = HEAD + (WAITING_HEAD if self._is_compared else ())
        table = html.table(head, rows, left=(0, 1, 2, 6, 14))
        head_html = f"<p><b>Comms log</b> {self._summary.totals()}</p>{html.verdict(self._summary.verdict())}"
        return html.fragment(f'{head_html}<div class="log">{table}</div>{rest}{note}', STYLE)

    def _waiting(self, line: Line) -> list[str]:
        return [html.escape(cell, 200) for cell in waiting_cells(line)] if self._is_compared else []

    def page(self) -> str:
        """Return a document with many more rows than a notebook's output holds."""
        return html.page(self.title, self.html(_MOST_ROWS_OF_PAGE))

    def figure(self, kind: str = "time") -> Any:
        """Return a plotly figure.

        Args:
            kind: ``time``, a bar of milliseconds for each line; or ``bandwidth``, bus bandwidth by message size.

        Raises:
            UsageError: no such kind.
        """
        if kind not in KINDS:
            raise UsageError(f"figure(kind={kind!r}): no such figure; kinds are {', '.join(KINDS)}")
        return _time_figure(self._lines) if kind == "time" else _bandwidth_figure(self._lines)


def _row(line: Line, longest: float) -> list[str]:
    share = 100 * line.total / longest if longest else 0
    style = f"width:{share:.1f}%;background:{SHADE}"
    bar = f'<span class="track"><span class="bar" style="{style}"></span></span>'
    rates = map(rate_text, line.rates) if line.rates else ("–", "–")
    times = [line.total, line.mean, line.fastest, line.slowest] if line.timed else []
    return [
        html.name(shown_name(line)),
        html.name(line.layer),
        html.name(line.group.name),
        str(line.group.size),
        format_bytes(line.message_bytes) if line.message_bytes else "–",
        f"{line.count:,}",
        bar if times else "",
        *(map(format_seconds, times) if times else ("–",) * 4),
        *rates,
    ]


def _label(line: Line) -> str:
    size = format_bytes(line.message_bytes)
    return html.escape(f"{shown_name(line)} · group {line.group.name} ({line.group.size}) · {size}", 60)


def _time_figure(lines: list[Line]) -> Any:
    import plotly.graph_objects as go

    timed = [line for line in lines if line.timed][:_MOST_LINES]
    figure = go.Figure(
        go.Bar(
            orientation="h",
            x=[line.total * 1e3 for line in timed],
            y=[_label(line) for line in timed],
            marker={"color": SHADE},
            text=[f"{line.count:,} ×" for line in timed],
            customdata=[[rate_text(rate) for rate in line.rates or (0.0, 0.0)] for line in timed],
            hovertemplate="%{y}<br>%{x:.3f} ms, %{text}<br>algbw %{customdata[0]}, busbw %{customdata[1]}<extra/>",
        )
    )
    figure.update_yaxes(autorange="reversed")
    figure.update_xaxes(title="total time, ms", rangemode="tozero")
    return themed(figure, margin=_MARGIN, height=90 + 26 * max(1, len(timed)))


def _bandwidth_figure(lines: list[Line]) -> Any:
    import plotly.graph_objects as go

    figure = go.Figure()
    series: dict[tuple[str, str, int], list[Line]] = {}
    for line in lines:
        if line.rates:
            series.setdefault((line.op, line.group.name, line.group.size), []).append(line)
    groups = list(dict.fromkeys((group, size) for _, group, size in series))
    for (op, group, size), members in series.items():
        mark = op_mark(op)
        members.sort(key=lambda line: line.message_bytes)
        figure.add_scatter(
            x=[line.message_bytes for line in members],
            y=[line.rates[1] for line in members if line.rates],
            mode="lines+markers",
            marker={"color": mark.color, "symbol": mark.symbol},
            line={"dash": DASHES[groups.index((group, size)) % len(DASHES)]},
            name=html.escape(f"{op} · group {group} ({size})", 40),
            hovertemplate="%{x} B: %{y:.3g} GB/s<extra></extra>",
        )
    figure.update_xaxes(type="log", title="message size S, bytes")
    figure.update_yaxes(type="log", title="bus bandwidth, GB/s")
    return themed(figure, margin=_MARGIN, height=340, showlegend=True, legend=LEGEND_ABOVE)
