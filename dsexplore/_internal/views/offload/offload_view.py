"""The view of an `OffloadCost`: what the disk takes of a step, as one bar, and what is moved."""

from __future__ import annotations

from typing import Any

from dsexplore._internal.aio.offload.offload_cost import OffloadCost
from dsexplore._internal.units import format_bytes, format_count, format_seconds
from dsexplore._internal.views.page.charts import stacked_bars
from dsexplore._internal.views.page.theme import GREY, SHADE, tint
from dsexplore._internal.views.view import ResultView


class OffloadCostView(ResultView[OffloadCost]):
    """The view of an `OffloadCost`."""

    title = "States on a disk"
    tag = "predicted"
    HEAD = ("swapped", "read", "written", "reading", "writing", "longer step")

    def what(self) -> str:
        """Return what is swapped where, in one line."""
        cost = self.result
        return f"{cost.title}, {format_count(cost.node_parameters, 'parameter')} per node, states on {cost.disk.label}"

    def notes(self) -> tuple[str, ...]:
        """Return the assumptions."""
        return self.result.notes

    def rows(self) -> list[tuple[str, ...]]:
        """Return what is moved in a step, by kind of state."""
        return [
            (
                swap.what,
                format_bytes(swap.read),
                format_bytes(swap.written),
                *(format_seconds(value) for value in (swap.read_seconds, swap.write_seconds, swap.exposed)),
            )
            for swap in self.result.swaps
        ]

    def figure(self) -> Any:
        """Return a plotly figure: the seconds of a step, in its own time and what each swap adds."""
        cost = self.result
        series = [("the step without a disk", [cost.step_seconds or 0.0], GREY)]
        series += [
            (f"waiting for {swap.what}", [swap.exposed], color)
            for swap, color in zip(cost.swaps, (SHADE, tint(SHADE, 0.45)), strict=False)
        ]
        return stacked_bars(["a step"], [part for part in series if part[1][0]], "per step, predicted", 80)
