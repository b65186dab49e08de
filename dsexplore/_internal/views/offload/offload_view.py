"""The view of an `OffloadCost`: what the disk takes of a step, as one bar, and what is moved."""

from __future__ import annotations

from typing import Any

from dsexplore._internal.aio.offload.offload_cost import OffloadCost
from dsexplore._internal.units import format_bytes, format_count, format_seconds
from dsexplore._internal.views.page import html
from dsexplore._internal.views.page.still_figure import still_figure
from dsexplore._internal.views.page.theme import GREY, SHADE, stacked_bars, tint
from dsexplore._internal.views.view import PlottedView

HEAD = ("swapped", "read", "written", "reading", "writing", "longer step")


class OffloadCostView(PlottedView):
    """The view of an `OffloadCost`."""

    title = "States on a disk"

    def __init__(self, cost: OffloadCost) -> None:
        self._cost = cost

    @property
    def _what(self) -> str:
        """What is swapped where, in one line."""
        cost = self._cost
        size = format_count(cost.node_parameters, "parameter")
        return html.plain(f"{cost.title}, {size} per node, states on {cost.disk.label}", 300)

    def text(self) -> str:
        """Return the verdict, what is moved, and the assumptions."""
        return "\n".join([f"{self._what}, predicted", *(html.plain(line, 400) for line in self._cost.lines())])

    def html(self) -> str:
        """Return the verdict, a bar of the step, a table of what is moved, and the assumptions."""
        cost = self._cost
        verdict, *more = cost.lines()
        head = html.conclusion(self._what, "predicted", verdict)
        rows = [
            (
                html.escape(swap.what),
                format_bytes(swap.read),
                format_bytes(swap.written),
                *(format_seconds(value) for value in (swap.read_seconds, swap.write_seconds, swap.exposed)),
            )
            for swap in cost.swaps
        ]
        said = html.sentences((line for line in more if line not in cost.notes), 400)
        notes = "".join(f'<p class="dim">{html.prose(line, 400)}</p>' for line in cost.notes)
        return html.fragment(f"{head}{still_figure(self.figure())}{html.table(HEAD, rows)}{said}{notes}")

    def figure(self) -> Any:
        """Return a plotly figure: the seconds of a step, in its own time and what each swap adds."""
        cost = self._cost
        series = [("the step without a disk", [cost.step_seconds or 0.0], GREY)]
        series += [
            (f"waiting for {swap.what}", [swap.exposed], color)
            for swap, color in zip(cost.swaps, (SHADE, tint(SHADE, 0.45)), strict=False)
        ]
        return stacked_bars(["a step"], [part for part in series if part[1][0]], "seconds per step, predicted", 80)
