"""The straggler report: a table with the worst ops first, and who kept the others waiting, as a plotly figure."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from dsexplore.comm.straggler import StragglerReport, Straggling, bounded, worst_text
from dsexplore.errors import UsageError
from dsexplore.units import format_bytes, format_seconds
from dsexplore.views.page import html
from dsexplore.views.page.still_figure import still_figure
from dsexplore.views.page.theme import BLUE, GREEN, GREY, LEGEND_ABOVE, ORANGE, PURPLE, SKY, VERMILION, themed
from dsexplore.views.view import View

HEAD = ("op", "group", "ranks", "message", "calls", "communication", "waiting", "kept others waiting")
_MOST_ROWS, _MOST_ROWS_OF_PAGE = 40, 2_000
_MOST_RANKS, _MOST_SERIES = 24, 6
_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, GREY)
_PATTERNS = ("", "/", "x", ".", "\\", "-", "+")
_MARGIN = {"l": 8, "r": 8, "t": 24, "b": 8}


class StragglerView(View):
    """The view of a `StragglerReport`."""

    title = "Who waits for whom"

    def __init__(self, report: StragglerReport) -> None:
        self._report = report

    def text(self) -> str:
        """The straggler table as text."""
        return self._report.text()

    def html(self, most: int = _MOST_ROWS) -> str:
        """A table of what ranks waited for each other, one row per op, group and message size, the worst first.

        Args:
            most: rows.
        """
        ops = self._report.ops
        if not ops:
            return html.fragment(f"<p><b>{self.title}</b> nothing was timed on all ranks of a group</p>")
        worst = by_rank(self._report)
        last = f"; most was waited for rank {next(iter(worst))}" if worst else ""
        head = f"<p><b>{self.title}</b> {len(self._report.ranks):,} ranks{last}</p>"
        table = html.table(HEAD, [_row(op) for op in ops[:most]], left=(0, 1, 7))
        more = len(ops) - most
        rest = f'<p class="dim">… and {more:,} more lines: <code>to_frame()</code> has all</p>' if more > 0 else ""
        found = "".join(f"<p>difference: {html.escape(text, 400)}</p>" for text in bounded(self._report.differences))
        note = "communication: the rank that waited least; waiting: what ranks took beyond that; means of a call"
        return html.fragment(f'{head}{table}{rest}{found}<p class="dim">{note}</p>')

    def page(self, **options: Any) -> str:
        """A document with many more rows than a notebook's output holds."""
        self.refuse("to_html", options)
        return html.page(self.title, self.html(_MOST_ROWS_OF_PAGE))

    def figure(self, **options: Any) -> Any:
        """A plotly figure: how long the others waited for each rank, the worst ranks first, divided by op.

        Raises:
            UsageError: an option.
        """
        if options:
            raise UsageError(f"figure({', '.join(options)}): this figure has no options: call figure()")
        import plotly.graph_objects as go

        totals = by_rank(self._report)
        ranks = list(totals)[:_MOST_RANKS]
        shown = list(dict.fromkeys((op.name, op.message_bytes) for op in self._report.ops))
        series: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
        for op in self._report.ops:
            key = op.name, op.message_bytes
            name = _label(op) if key in shown[:_MOST_SERIES] else f"{len(shown) - _MOST_SERIES} more"
            for rank, ms in op.kept_waiting_ms.items():
                series[name][rank] += ms
        figure = go.Figure()
        for (name, of_ranks), colour, pattern in zip(series.items(), _COLOURS, _PATTERNS, strict=False):
            figure.add_bar(
                orientation="h",
                x=[of_ranks.get(rank, 0.0) for rank in ranks],
                y=[f"rank {rank}" for rank in ranks],
                name=name,
                marker={"color": colour, "pattern": {"shape": pattern}},
                hovertemplate="%{y}: the others waited %{x:.3f} ms on average<extra>%{fullData.name}</extra>",
            )
        more = len(totals) - len(ranks)
        rest = f", {len(ranks)} of {len(totals):,} ranks" if more > 0 else ""
        figure.update_layout(barmode="stack")
        figure.update_yaxes(autorange="reversed")
        figure.update_xaxes(title=f"what the others waited for a rank, ms{rest}", rangemode="tozero")
        height = 110 + 26 * max(1, len(ranks))
        return themed(figure, margin=_MARGIN, height=height, showlegend=True, legend=LEGEND_ABOVE)

    def still(self, figure: Any, **options: Any) -> str:
        """The bars as SVG."""
        return still_figure(figure)


def by_rank(report: StragglerReport) -> dict[int, float]:
    """Milliseconds that others waited for each rank in all ops, the worst first; without ranks nobody waited for."""
    totals: dict[int, float] = defaultdict(float)
    for op in report.ops:
        for rank, ms in op.kept_waiting_ms.items():
            totals[rank] += ms
    return {rank: ms for rank, ms in sorted(totals.items(), key=lambda item: (-item[1], item[0])) if ms > 0}


def _row(op: Straggling) -> list[str]:
    return [
        html.name(op.name),
        html.name(op.group),
        str(op.group_size),
        format_bytes(op.message_bytes) if op.message_bytes else "–",
        f"{op.count:,}",
        format_seconds(op.communication_ms / op.count / 1e3),
        format_seconds(float(op.waits.mean())),
        html.escape(worst_text(op), 200),
    ]


def _label(op: Straggling) -> str:
    size = f" · {format_bytes(op.message_bytes)}" if op.message_bytes else ""
    return html.escape(f"{op.name}{size}", 40)
