"""The static views of a sweep of collectives and of a calibration: tables as nccl-tests prints them."""

from __future__ import annotations

from typing import Any

from dsexplore._internal.comm.sweeps.sweep_result import CommSweep
from dsexplore._internal.cost.collectives.calibrate import Calibration
from dsexplore._internal.errors import UsageError
from dsexplore._internal.units import format_bytes, format_seconds
from dsexplore._internal.views.comm_sweep.comm_sweep_figures import KINDS, calibration_figure, point_text, sweep_figure
from dsexplore._internal.views.page import html
from dsexplore._internal.views.page.html_table import Column, table, text
from dsexplore._internal.views.page.still_figure import still_figure
from dsexplore._internal.views.view import PlottedView

STYLE = """
.dsx pre.rows{background:var(--dsx-shade);padding:8px 10px;margin:6px 0;max-width:100%;overflow-x:auto;
font-family:var(--dsx-mono);font-size:var(--dsx-tiny);color:inherit}
.dsx details>summary{font-weight:600;padding:3px 0}
"""


class CommSweepView(PlottedView):
    """The view of a `CommSweep`."""

    title = "Collectives"

    def __init__(self, sweep: CommSweep) -> None:
        self._sweep = sweep

    def text(self) -> str:
        """Return what was measured, where bandwidth saturates, and the best bandwidth of each op."""
        return "\n".join(html.plain(line, longest=300) for line in (self._sweep.what(), *self._sweep.lines()))

    def html(self) -> str:
        """Return where bandwidth saturates, bus bandwidth by size with a line per op, and a table per op."""
        verdict, *lines = self._sweep.lines()
        per_op, remarks = lines[: len(self._sweep.ops)], lines[len(self._sweep.ops) :]
        body = [html.conclusion(f"Sweep of collectives: {self._sweep.what()}", "measured", verdict)]
        if self._sweep.ops:
            body.append(still_figure(sweep_figure(self._sweep, "busbw", self._sweep.ops, places=(False,))))
        body.append(html.details("The best of each op", html.sentences(per_op)))
        body += [
            html.details(
                op, f'<pre class="rows" tabindex="0">{html.escape(self._sweep.to_nccl_tests(op), longest=0)}</pre>'
            )
            for op in self._sweep.ops
        ]
        body.append(html.notes(remarks, longest=300))
        return html.fragment("".join(body), STYLE)

    def figure(self, kind: str = "busbw", ops: list[str] | None = None) -> Any:
        """Return a line per op by message size.

        Args:
            kind: ``"busbw"``, ``"algbw"`` (GB/s) or ``"time"`` (µs).
            ops: names of ops; None for all.

        Raises:
            UsageError: an unknown kind or op.
        """
        if kind not in KINDS:
            raise UsageError(f"kind {kind!r} is unknown: it is one of {', '.join(KINDS)}")
        return sweep_figure(self._sweep, kind, self._sweep.ops if ops is None else ops)

    def explore(self) -> Any:
        """Return a choice of ops and quantity, and the figure; ``.selection`` is the `SweepPoint` last clicked."""
        import ipywidgets

        from dsexplore._internal.views.widgets.chart_explorer import ChartExplorer

        sweep = self._sweep
        by_text = {point_text(sweep, point): point for point in sweep.points}
        clicked = ipywidgets.HTML("A click on a point shows it here.")

        def draw(kind: str, ops: tuple[str, ...]) -> tuple[Any, str]:
            chosen = list(ops) or sweep.ops
            return sweep_figure(sweep, kind, chosen), f"{kind} of {', '.join(chosen)}"

        def select(text: Any) -> None:
            if text in by_text:
                explorer.selection, clicked.value = by_text[text], html.escape(text, longest=300)

        several = ipywidgets.SelectMultiple(options=sweep.ops, value=tuple(sweep.ops), rows=min(9, len(sweep.ops)))
        controls = {"kind": ipywidgets.Dropdown(options=list(KINDS), description="shows"), "ops": several}
        explorer = ChartExplorer(self, draw, select, controls, [clicked])
        return explorer


_COMPARED = (
    text("message", lambda row: format_bytes(row["message_bytes"])),
    Column("measured", lambda row: format_seconds(row["measured"])),
    Column("predicted", lambda row: format_seconds(row["predicted"])),
    Column("factor", lambda row: f"{row['factor']:.2f}"),
)
"""Columns of a table of `Calibration.to_frame`."""


class CalibrationView(PlottedView):
    """The view of a `Calibration`."""

    title = "Calibration"

    def __init__(self, calibration: Calibration) -> None:
        self._calibration = calibration

    def text(self) -> str:
        """Return which times were added to which cluster, and how far each op is from its prediction."""
        return "\n".join(html.plain(line, longest=300) for line in (self._what(), *self._calibration.lines()))

    def _what(self) -> str:
        return f"{self._calibration.base.title} with the times of {self._calibration.sweep.what()}"

    def html(self) -> str:
        """Return the lines of `text`, and a table per op."""
        verdict, *lines = self._calibration.lines()
        body = [html.conclusion(self._what(), "measured", verdict), html.sentences(lines)]
        for (op,), points in self._calibration.to_frame().partition_by("op", as_dict=True, maintain_order=True).items():
            body.append(html.details(op, table(_COMPARED, points.iter_rows(named=True))))
        return html.fragment("".join(body), STYLE)

    def figure(self, op: str | None = None) -> Any:
        """Return measured times of one op over those that the base cluster predicted.

        Args:
            op: name of the op; None for the first one.

        Raises:
            UsageError: the op was not measured.
        """
        return calibration_figure(self._calibration, op or self._calibration.sweep.ops[0])

    def explore(self) -> Any:
        """Return the explorer of the sweep."""
        return CommSweepView(self._calibration.sweep).explore()
