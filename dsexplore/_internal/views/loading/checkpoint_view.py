"""The view of a `CheckpointCost`: what to save with, a bar per method in what a step feels and what it does not."""

from __future__ import annotations

from typing import Any

from dsexplore._internal.aio.checkpoints.checkpoint_result import CheckpointCost
from dsexplore._internal.units import format_bytes, format_count, format_seconds
from dsexplore._internal.views.page import html
from dsexplore._internal.views.page.theme import SHADE, stacked_bars, tint
from dsexplore._internal.views.view import ResultView


class CheckpointCostView(ResultView[CheckpointCost]):
    """The view of a `CheckpointCost`."""

    title = "Checkpoints"
    tag = "predicted"
    HEAD = ("saved with", "by", "a step waits", "on the disk after", "load, cold", "affordable every")
    LEFT = (0, 1)

    def what(self) -> str:
        """Return what is saved where, in one line."""
        cost = self.result
        size, ranks = format_bytes(cost.nbytes), format_count(cost.ranks, "rank")
        return f"checkpoints of {cost.title}, {size} on {ranks}, to {cost.disk.label}"

    def notes(self) -> tuple[str, ...]:
        """Return the assumptions, and what was not measured."""
        return self.result.notes

    def rows(self) -> list[tuple[str, ...]]:
        """Return the seconds of each method."""
        cost = self.result
        return [
            (
                method.name,
                method.writers,
                *(format_seconds(value) for value in (method.stall, method.save, method.load)),
                cost.interval(method),
            )
            for method in cost.methods
        ]

    def figure(self) -> Any:
        """Return a plotly figure: a bar of seconds per method, in what a step waits for and the rest."""
        methods = self.result.methods
        names = [html.escape(f"{method.name}, {method.writers}", 60) for method in methods]
        stalls = [method.stall for method in methods]
        rest = [max(method.save - method.stall, 0.0) for method in methods]
        series = (("a step waits", stalls, SHADE), ("written while steps go on", rest, tint(SHADE, 0.45)))
        return stacked_bars(names, series, "seconds of one checkpoint, predicted", 210)
