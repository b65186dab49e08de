"""The view of a `LoadingResult`: what to load with, a bar per call beside what the disk needs, and a table."""

from __future__ import annotations

from typing import Any

from dsexplore._internal.aio.checkpoints.loading_result import CheckpointTimes, LoaderTimes, LoadingResult
from dsexplore._internal.units import format_bytes, format_count, format_rate, format_seconds
from dsexplore._internal.views.page import html
from dsexplore._internal.views.page.charts import stacked_bars
from dsexplore._internal.views.page.theme import GREY, SHADE, tint
from dsexplore._internal.views.view import ResultView

_LIMIT = "the disk alone"
_FOOT = (
    "Medians, until the parameters hold the values: the call, and copying what it returns into them. Cold: the files "
    "were dropped from the page cache. Disk alone: the files read with direct I/O, no tensors made."
)


class LoadingView(ResultView[LoadingResult]):
    """The view of a `LoadingResult`."""

    title = "Loading a checkpoint"
    HEAD = ("loaded with", "cold", "warm", "of it copying", "rate, cold", "disk alone")

    def what(self) -> str:
        """Return what was loaded from where, in one line."""
        loading = self.result
        kinds = ", ".join(
            f"{times.checkpoint.kind} ({format_count(len(times.checkpoint.files), 'file')}, "
            f"{format_bytes(times.checkpoint.nbytes)})"
            for times in loading.measured
        )
        return f"{loading.title}: {kinds}, on {loading.disk.label}"

    def notes(self) -> tuple[str, ...]:
        """Return how the seconds were measured."""
        return (_FOOT,)

    def rows(self) -> list[tuple[str, ...]]:
        """Return the seconds of each call."""
        return [
            (
                self._call(times, loader),
                format_seconds(loader.cold_seconds),
                format_seconds(loader.warm_seconds),
                format_seconds(sum(load.fill for load in loader.warm) / len(loader.warm)),
                format_rate(times.checkpoint.nbytes / loader.cold_seconds),
                format_seconds(times.disk_seconds),
            )
            for times in self.result.measured
            for loader in times.loaders
        ]

    def _call(self, times: CheckpointTimes, loader: LoaderTimes) -> str:
        """Return the name of a call; with its format where several were measured."""
        return f"{times.checkpoint.kind}: {loader.name}" if len(self.result.measured) > 1 else loader.name

    def figure(self) -> Any:
        """Return a plotly figure: a bar of seconds per cold load: what is left when warm, and the wait for the disk."""
        names: list[str] = []
        warm: list[float] = []
        waiting: list[float] = []
        disk: list[float] = []
        for times in self.result.measured:
            for loader in times.loaders:
                names.append(self._call(times, loader))
                warm.append(min(loader.warm_seconds, loader.cold_seconds))
                waiting.append(loader.waiting)
                disk.append(0.0)
            names.append(f"{_LIMIT}: {times.checkpoint.kind}" if len(self.result.measured) > 1 else _LIMIT)
            warm.append(0.0)
            waiting.append(0.0)
            disk.append(times.disk_seconds)
        series = (
            ("remains when the file is in memory", warm, tint(SHADE, 0.45)),
            ("waiting for the disk", waiting, SHADE),
            ("the disk alone, at its limit", disk, GREY),
        )
        figure = stacked_bars([html.escape(name, 60) for name in names], series, "of a cold load", 260)
        texts = [format_seconds(sum(parts)) for parts in zip(warm, waiting, disk, strict=True)]
        return figure.update_traces({"text": texts, "textposition": "none"}, 0)
