"""The views of a sweep of collectives and of a calibration: figures, and tables as nccl-tests prints them."""

from __future__ import annotations

from typing import Any

from dsexplore._internal.comm.sweeps.sweep_result import CommSweep
from dsexplore._internal.cost.collectives.calibrate import Calibration
from dsexplore._internal.errors import UsageError
from dsexplore._internal.units import format_bytes, format_seconds
from dsexplore._internal.views.comm.comm_sweep_figures import KINDS, calibration_figure, point_text, sweep_figure
from dsexplore._internal.views.page import html
from dsexplore._internal.views.page.html_table import Column, table, text
from dsexplore._internal.views.page.still_figure import still_figure
from dsexplore._internal.views.view import ResultView

_STYLE = """
.dsx pre.rows{background:var(--dsx-shade);padding:8px 10px;margin:6px 0;max-width:100%;overflow-x:auto;
font-family:var(--dsx-mono);font-size:var(--dsx-tiny);color:inherit}
.dsx details>summary{font-weight:600;padding:3px 0}
"""


class CommSweepView(ResultView[CommSweep]):
    """The view of a `CommSweep`."""

    title = "Collectives"
    STYLE = _STYLE

    def what(self) -> str:
        """Return the backend, ranks and dtype that were measured, in one line."""
        return f"Sweep of collectives: {self.result.what()}"

    def text(self) -> str:
        """Return what was measured, where bandwidth saturates, and the best bandwidth of each op."""
        return "\n".join(html.plain(line, longest=300) for line in (self.result.what(), *self.result.lines()))

    def body(self, most: int) -> str:
        """Return bus bandwidth by message size with a line per op, and a table per op, as HTML."""
        sweep, lines = self.result, self.result.lines()[1:]
        per_op, remarks = lines[: len(sweep.ops)], lines[len(sweep.ops) :]
        parts = [still_figure(sweep_figure(sweep, "busbw", sweep.ops, places=(False,)))] if sweep.ops else []
        parts.append(html.details("The best of each op", html.sentences(per_op)))
        for op in sweep.ops:
            rows = html.escape(sweep.to_nccl_tests(op), longest=0)
            parts.append(html.details(op, f'<pre class="rows" tabindex="0">{rows}</pre>'))
        return "".join([*parts, html.notes(remarks, longest=300)])

    def figure(self, kind: str = "busbw", ops: list[str] | None = None) -> Any:
        """Return a line per op by message size.

        Args:
            kind: ``"busbw"``, ``"algbw"`` (GB/s) or ``"time"`` (µs).
            ops: names of the ops to draw; None for all.

        Raises:
            UsageError: The kind is unknown, or an op was not measured.
        """
        if kind not in KINDS:
            raise UsageError(f"kind {kind!r} is unknown: it is one of {', '.join(KINDS)}")
        return sweep_figure(self.result, kind, self.result.ops if ops is None else ops)

    def explore(self) -> Any:
        """Return a choice of ops and quantity, and the figure; ``.selection`` is the `SweepPoint` last clicked."""
        import ipywidgets

        from dsexplore._internal.views.widgets.chart_explorer import ChartExplorer

        sweep = self.result
        by_text = {point_text(sweep, point): point for point in sweep.points}
        clicked = ipywidgets.HTML("A click on a point shows it here.")

        def draw(kind: str, ops: tuple[str, ...]) -> tuple[Any, str]:
            chosen = list(ops) or sweep.ops
            return sweep_figure(sweep, kind, chosen), f"{kind} of {', '.join(chosen)}"

        def select(text: Any) -> None:
            if text in by_text:
                explorer.selection, clicked.value = by_text[text], html.escape(text, longest=300)

        ops_list = ipywidgets.SelectMultiple(options=sweep.ops, value=tuple(sweep.ops), rows=min(9, len(sweep.ops)))
        controls = {"kind": ipywidgets.Dropdown(options=list(KINDS), description="shows"), "ops": ops_list}
        explorer = ChartExplorer(self, draw=draw, select=select, controls=controls, below=[clicked])
        return explorer


_COMPARED = (
    text("message", lambda row: format_bytes(row["message_bytes"])),
    Column("measured", lambda row: format_seconds(row["measured"])),
    Column("predicted", lambda row: format_seconds(row["predicted"])),
    Column("factor", lambda row: f"{row['factor']:.2f}"),
)
"""Columns of a table of `Calibration.to_frame`."""


class CalibrationView(ResultView[Calibration]):
    """The view of a `Calibration`."""

    title = "Calibration"
    STYLE = _STYLE

    def what(self) -> str:
        """Return which measured times were added to which cluster, in one line."""
        return f"{self.result.base.title} with the times of {self.result.sweep.what()}"

    def text(self) -> str:
        """Return which times were added to which cluster, and how far each op is from its prediction."""
        return "\n".join(html.plain(line, longest=300) for line in (self.what(), *self.result.lines()))

    def body(self, most: int) -> str:
        """Return a sentence and a table of measured and predicted times per op, as HTML."""
        points_of = self.result.to_frame().partition_by("op", as_dict=True, maintain_order=True)
        tables = [html.details(op, table(_COMPARED, rows.iter_rows(named=True))) for (op,), rows in points_of.items()]
        return "".join([html.sentences(self.sentences()), *tables])

    def figure(self, op: str | None = None) -> Any:
        """Return measured times of one op over those that the base cluster predicted.

        Args:
            op: name of the op; None for the first one.

        Raises:
            UsageError: The op was not measured.
        """
        return calibration_figure(self.result, op or self.result.sweep.ops[0])

    def explore(self) -> Any:
        """Return the explorer of the sweep."""
        return CommSweepView(self.result.sweep).explore()
