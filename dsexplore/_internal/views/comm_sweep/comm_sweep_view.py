"""The static views of a sweep of collectives and of a calibration: tables as nccl-tests prints them."""

from __future__ import annotations

from typing import Any

from dsexplore._internal.comm.sweeps.sweep_result import CommSweep
from dsexplore._internal.cost.collectives.calibrate import Calibration
from dsexplore._internal.cost.collectives.collective_duration import collective_time
from dsexplore._internal.errors import UsageError
from dsexplore._internal.units import format_bytes, format_seconds, format_share
from dsexplore._internal.views.comm_sweep.comm_sweep_figures import KINDS, calibration_figure, sweep_figure, value
from dsexplore._internal.views.page import html
from dsexplore._internal.views.page.still_figure import still_figure
from dsexplore._internal.views.view import PlottedView

_LEVEL = 0.9
"""Fraction of an op's best bandwidth that counts as level."""
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
        what, *lines = self._sweep.lines()
        return "\n".join(html.plain(line, 300) for line in (what, *filter(None, [self._verdict]), *lines))

    def html(self) -> str:
        """Return where bandwidth saturates, bus bandwidth by size with a line per op, and a table per op."""
        what, *lines = self._sweep.lines()
        per_op, remarks = lines[: len(self._sweep.ops)], lines[len(self._sweep.ops) :]
        body = [html.conclusion(f"Sweep of collectives: {what}", "measured", self._verdict)]
        if self._sweep.ops:
            body.append(still_figure(sweep_figure(self._sweep, "busbw", self._sweep.ops, places=(False,))))
        body.append(html.details("The best of each op", html.sentences(per_op)))
        body += [
            html.details(op, f'<pre class="rows" tabindex="0">{html.escape(self._sweep.table(op), 0)}</pre>')
            for op in self._sweep.ops
        ]
        body += [f'<p class="dim">{html.escape(line, 300)}</p>' for line in remarks]
        return html.fragment("".join(body), STYLE)

    @property
    def _verdict(self) -> str:
        """Where the bus bandwidth of the first op saturates, and the fastest and slowest ops."""
        rates = {
            op: [(point.message_bytes, value(self._sweep, point, "busbw")) for point in self._sweep.of(op)]
            for op in self._sweep.ops
        }
        best = {op: max(rate for _, rate in points) for op, points in rates.items() if points}
        if not best:
            return "Nothing was measured."
        first, top = next(iter(best.items()))
        low = max((size for size, rate in rates[first] if rate < _LEVEL * top), default=0)
        level = [size for size, _ in rates[first] if size > low]
        reached = f"{first} reaches {top:.3g} GB/s of bus bandwidth"
        if len(level) > 1:
            reached += f", and keeps {format_share(_LEVEL, 1)} of it from {format_bytes(min(level))} on"
        else:
            reached += f", which is not level yet at {format_bytes(max(size for size, _ in rates[first]))}"
        ranked = sorted(best, key=lambda op: -best[op])
        if len(ranked) == 1:
            return f"{reached}."
        fastest, slowest = (f"{op} ({best[op]:.3g} GB/s)" for op in (ranked[0], ranked[-1]))
        return f"{reached}; fastest is {fastest}, slowest {slowest}."

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
        """Return a choice of ops and quantity, the figure, and the point last clicked."""
        from dsexplore._internal.views.comm_sweep.comm_sweep_explorer import explorer

        return explorer(self._sweep, self)


class CalibrationView(PlottedView):
    """The view of a `Calibration`."""

    title = "Calibration"

    def __init__(self, calibration: Calibration) -> None:
        self._calibration = calibration

    def text(self) -> str:
        """Return a line per op on how far the base cluster's prediction was from the measurement."""
        base = self._calibration.base
        lines = [f"{base.title} with the times of {self._calibration.sweep.lines()[0]}"]
        for op in self._calibration.sweep.ops:
            factors = sorted(measured / expected for _, measured, expected in self._compared(op))
            lines.append(
                f"{op}: {len(factors)} points, {factors[0]:.2g} to {factors[-1]:.2g} times what {base.name} predicted"
            )
        return "\n".join(html.plain(line, 300) for line in lines)

    def _compared(self, op: str) -> list[tuple[int, float, float]]:
        """Return (message bytes, measured seconds, predicted seconds) of each point."""
        here = self._calibration.sweep.conditions
        base = self._calibration.base
        return [
            (
                p.message_bytes,
                p.quiet_seconds,
                collective_time(op, p.message_bytes, here.ranks, here.ranks_per_node, base).expected,
            )
            for p in self._calibration.sweep.of(op)
        ]

    def html(self) -> str:
        """Return the lines of `text`, and a table per op."""
        body = [f"<p>{html.escape(line, 300)}</p>" for line in self.text().splitlines()]
        for op in self._calibration.sweep.ops:
            rows = [
                (format_bytes(size), format_seconds(measured), format_seconds(expected), f"{measured / expected:.2f}")
                for size, measured, expected in self._compared(op)
            ]
            body.append(html.details(op, html.table(("message", "measured", "predicted", "factor"), rows)))
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
