"""The view of the comms logger's summary: a table and plotly figures of its lines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dsexplore._internal.comm.logs.log_summary import WAITING_HEAD, CommsSummary, Line, shown_name, waiting_cells
from dsexplore._internal.comm.sweeps.bandwidth import rate_text
from dsexplore._internal.errors import UsageError
from dsexplore._internal.units import format_bytes, format_seconds
from dsexplore._internal.views.page import html, html_table
from dsexplore._internal.views.page.charts import DASHES, LEGEND_ABOVE, themed
from dsexplore._internal.views.page.html_table import Column, text
from dsexplore._internal.views.page.theme import SHADE, op_mark
from dsexplore._internal.views.view import ResultView

_STYLE = """
.dsx .log td{vertical-align:middle}
.dsx .log .bar{display:inline-block;height:9px;min-width:1px;vertical-align:baseline}
.dsx .log .track{display:inline-block;width:48px;text-align:left}
.dsx.dsx .log th,.dsx.dsx .log td{padding-right:8px}
"""
KINDS = ("time", "bandwidth")
"""Kinds of figure."""
_MARGIN = {"l": 8, "r": 8, "t": 24, "b": 8}
_WAITING_NOTE = "waiting: the part of the mean in which this rank waited for others"
_MOST_BARS = 200


class CommsSummaryView(ResultView[CommsSummary]):
    """The view of a `CommsSummary`."""

    title = "Comms log"
    STYLE = _STYLE
    MOST_ROWS = 80

    def text(self) -> str:
        """Return the table of the log's summary as text."""
        return self.result.table_text()

    def head(self) -> str:
        """Return the totals of the log, and its verdict, as HTML."""
        totals = f" {self.result.totals()}" if self.result.rows else ""
        return f"<p><b>Comms log</b>{totals}</p>{html.verdict(self.result.verdict())}"

    def body(self, most: int) -> str:
        """Return a table of what was sent and how long it took, one row per op, group and message size."""
        lines = self.result.rows
        if not lines:
            return ""
        columns, note = _columns(lines), "message: the whole buffer, as nccl-tests counts it; 1 GB = 1e9 bytes"
        if self.result.is_compared:
            columns, note = [*columns, *_WAITING], f"{note}; {_WAITING_NOTE}"
        more = "more lines: <code>to_frame()</code> has all, <code>to_html(path)</code> more"
        table = html_table.table(columns, lines[:most], hidden=len(lines) - most, more=more)
        return f'<div class="log">{table}</div>{html.note(note)}'

    def figure(self, kind: str = "time") -> Any:
        """Return a plotly figure.

        Args:
            kind: ``time``, a bar of milliseconds for each line; or ``bandwidth``, bus bandwidth by message size.

        Raises:
            UsageError: No such kind.
        """
        if kind not in KINDS:
            raise UsageError(f"figure(kind={kind!r}): no such figure; kinds are {', '.join(KINDS)}")
        return _time_figure(self.result.rows) if kind == "time" else _bandwidth_figure(self.result.rows)


def _columns(lines: list[Line]) -> list[Column]:
    """Return the columns of the table; bars are as long as their line's share of the longest time."""
    longest = max(line.total for line in lines)
    return [
        text("op", lambda line: html.name(shown_name(line))),
        replace(text("layer", lambda line: html.name(line.layer)), hides_if_constant=True),
        replace(text("group", lambda line: html.name(line.group.name)), hides_if_constant=True),
        Column("ranks", lambda line: str(line.group.size), hides_if_constant=True),
        Column("message", lambda line: format_bytes(line.message_bytes) if line.message_bytes else "–"),
        Column("calls", lambda line: f"{line.count:,}"),
        text("", lambda line: _bar(line.total / longest) if line.timed and longest else ""),
        _time("time", attribute="total"),
        *(_time(name, attribute=name) for name in ("mean", "fastest", "slowest")),
        Column("algbw", lambda line: rate_text(line.rates[0]) if line.rates else "–"),
        Column("busbw", lambda line: rate_text(line.rates[1]) if line.rates else "–"),
    ]


def _bar(share: float) -> str:
    """Return a bar that takes this share of its column."""
    return f'<span class="track"><span class="bar" style="width:{100 * share:.1f}%;background:{SHADE}"></span></span>'


def _time(title: str, attribute: str) -> Column:
    """Return a column of the seconds in an attribute of `Line`; a dash for lines without times."""
    return Column(title, lambda line: format_seconds(getattr(line, attribute)) if line.timed else "–")


_WAITING = (
    Column(WAITING_HEAD[0], lambda line: waiting_cells(line)[0]),
    text(WAITING_HEAD[1], lambda line: html.escape(waiting_cells(line)[1], longest=200)),
)


def _label(line: Line) -> str:
    """Return op, group and message size of a line: ``all_reduce · group dp (8) · 7.6 MiB``."""
    size = format_bytes(line.message_bytes)
    return html.escape(f"{shown_name(line)} · group {line.group.name} ({line.group.size}) · {size}", longest=60)


def _time_figure(lines: list[Line]) -> Any:
    """Return horizontal bars of the total milliseconds of the first lines."""
    import plotly.graph_objects as go

    timed = [line for line in lines if line.timed][:_MOST_BARS]
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
    """Return bus bandwidth by message size, a line per op and group."""
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
            name=html.escape(f"{op} · group {group} ({size})", longest=40),
            hovertemplate="%{x} B: %{y:.3g} GB/s<extra></extra>",
        )
    figure.update_xaxes(type="log", title="message size S, bytes")
    figure.update_yaxes(type="log", title="bus bandwidth, GB/s")
    return themed(figure, margin=_MARGIN, height=340, showlegend=True, legend=LEGEND_ABOVE)
