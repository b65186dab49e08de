"""The view of a `CheckpointCost`: what to save with, a bar per method in what a step feels and what it does not."""

from __future__ import annotations

from typing import Any

from dsexplore._internal.aio.checkpoints.checkpoint_result import CheckpointCost
from dsexplore._internal.units import format_bytes, format_count, format_seconds
from dsexplore._internal.views.page import html
from dsexplore._internal.views.page.still_figure import still_figure
from dsexplore._internal.views.page.theme import SHADE, stacked_bars, tint
from dsexplore._internal.views.view import PlottedView

HEAD = ("saved with", "by", "a step waits", "on the disk after", "load, cold", "affordable every")


class CheckpointCostView(PlottedView):
    """The view of a `CheckpointCost`."""

    title = "Checkpoints"

    def __init__(self, cost: CheckpointCost) -> None:
        self._cost = cost

    @property
    def _what(self) -> str:
        """What is saved where, in one line."""
        cost = self._cost
        size, ranks = format_bytes(cost.nbytes), format_count(cost.ranks, "rank")
        return html.plain(f"checkpoints of {cost.title}, {size} on {ranks}, to {cost.disk.label}", 300)

    def text(self) -> str:
        """Return the verdict, a line per method, and the assumptions."""
        verdict, *more = self._cost.lines()
        rows = [(HEAD[0], *HEAD[2:]), *((name, *rest) for name, _, *rest in self._rows())]
        width = max(len(row[0]) for row in rows)
        table = [
            f"  {row[0]:<{width}}" + "".join(f"{cell:>20}" for cell in row[1:-1]) + f"{row[-1]:>28}" for row in rows
        ]
        return "\n".join([f"{self._what}, predicted", verdict, *table, *(html.plain(line, 400) for line in more)])

    def _rows(self) -> list[tuple[str, ...]]:
        cost = self._cost
        return [
            (
                method.name,
                method.writers,
                *(format_seconds(value) for value in (method.stall, method.save, method.load)),
                cost.interval(method),
            )
            for method in cost.methods
        ]

    def html(self) -> str:
        """Return the verdict, the bars, a table of seconds, and the assumptions."""
        verdict, size = self._cost.lines()[:2]
        head = html.conclusion(self._what, "predicted", verdict)
        rows = [tuple(html.escape(cell) for cell in row) for row in self._rows()]
        notes = "".join(f'<p class="dim">{html.prose(line, 400)}</p>' for line in self._cost.notes)
        table = html.table(HEAD, rows, left=(0, 1))
        return html.fragment(f"{head}{still_figure(self.figure())}<p>{html.prose(size, 400)}</p>{table}{notes}")

    def figure(self) -> Any:
        """Return a plotly figure: a bar of seconds per method, in what a step waits for and the rest."""
        methods = self._cost.methods
        names = [html.escape(f"{method.name}, {method.writers}", 60) for method in methods]
        stalls = [method.stall for method in methods]
        rest = [max(method.save - method.stall, 0.0) for method in methods]
        series = (("a step waits", stalls, SHADE), ("written while steps go on", rest, tint(SHADE, 0.45)))
        return stacked_bars(names, series, "seconds of one checkpoint, predicted", 210)
