"""The view of a `CheckpointCost`: what to save with, a bar per method in what a step feels and what it does not."""

from __future__ import annotations

from typing import Any

from dsexplore._internal.aio.checkpoints.checkpoint_result import CheckpointCost
from dsexplore._internal.units import format_bytes, format_count, format_seconds
from dsexplore._internal.views.page import html
from dsexplore._internal.views.page.charts import stacked_bars
from dsexplore._internal.views.page.theme import SHADE, tint
from dsexplore._internal.views.view import ResultView

_WIDTH_OF_NAMES = 210
"""Pixels beside the figure for the longest name of a method and its writers."""


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
        """Return a row per method: seconds in which a step waits, until the disk has it, and to load it again."""
        cost = self.result
        return [
            (
                method.name,
                method.writers,
                format_seconds(method.stall),
                format_seconds(method.save),
                format_seconds(method.load),
                cost.interval(method),
            )
            for method in cost.methods
        ]

    def figure(self) -> Any:
        """Return a plotly figure: a bar of seconds per method, in what a step waits for and the rest."""
        methods = self.result.methods
        names = [html.escape(f"{method.name}, {method.writers}", 60) for method in methods]
        waiting = [method.stall for method in methods]
        in_background = [max(method.save - method.stall, 0.0) for method in methods]
        parts = [
            ("a step waits", waiting, SHADE),
            ("written while steps go on", in_background, tint(SHADE, 0.45)),
        ]
        return stacked_bars(names, parts, "of one checkpoint, predicted", left=_WIDTH_OF_NAMES)
