"""The view of a `LoadingResult`: what to load with, a bar per call beside what the disk needs, and a table."""

from __future__ import annotations

from typing import Any

from dsexplore._internal.aio.checkpoints.loading_result import CheckpointTimes, LoaderTimes, LoadingResult
from dsexplore._internal.units import format_bytes, format_count, format_rate, format_seconds
from dsexplore._internal.views.page import html
from dsexplore._internal.views.page.still_figure import still_figure
from dsexplore._internal.views.page.theme import GREY, SHADE, stacked_bars, tint
from dsexplore._internal.views.view import PlottedView

HEAD = ("loaded with", "cold", "warm", "of it copying", "rate, cold", "disk alone")
_LIMIT = "the disk alone"


class LoadingView(PlottedView):
    """The view of a `LoadingResult`."""

    title = "Loading a checkpoint"

    def __init__(self, loading: LoadingResult) -> None:
        self._loading = loading

    def text(self) -> str:
        """Return the verdict, a line per call, and what to change."""
        verdict, *more = self._loading.lines()
        rows = [(HEAD[0], HEAD[1], HEAD[2], HEAD[5])]
        for times in self._loading.measured:
            rows += [(*_named(times, loader, self._loading), *_seconds(times, loader)) for loader in times.loaders]
        width = max(len(row[0]) for row in rows)
        table = [f"  {row[0]:<{width}}{row[1]:>10}{row[2]:>10}{row[3]:>12}" for row in rows]
        return "\n".join(
            html.plain(line, 400) if line in more else line for line in (self._what, verdict, *table, *more)
        )

    @property
    def _what(self) -> str:
        """What was loaded from where, in one line."""
        loading = self._loading
        kinds = ", ".join(
            f"{times.checkpoint.kind} ({format_count(len(times.checkpoint.files), 'file')}, "
            f"{format_bytes(times.checkpoint.nbytes)})"
            for times in loading.measured
        )
        return html.plain(f"{loading.title}: {kinds}, on {loading.disk.label}", 300)

    def html(self) -> str:
        """Return the verdict, the bars, what to change, and a table of seconds."""
        verdict, *more = self._loading.lines()
        head = html.conclusion(self._what, "measured", verdict)
        sentences = html.sentences(more, 400)
        body = f"{head}{still_figure(self.figure())}{sentences}{self._table()}"
        foot = (
            "Medians, until the parameters hold the values: the call, and copying what it returns into them. Cold: the "
            "files were dropped from the page cache. Disk alone: the files read with direct I/O, no tensors made."
        )
        return html.fragment(f'{body}<p class="dim">{foot}</p>')

    def _table(self) -> str:
        rows = []
        for times in self._loading.measured:
            for loader in times.loaders:
                cold, warm, alone = _seconds(times, loader)
                copying = sum(load.fill for load in loader.warm) / len(loader.warm)
                rate = format_rate(times.checkpoint.nbytes / loader.cold_seconds)
                (name,) = _named(times, loader, self._loading)
                rows.append((html.name(name), cold, warm, format_seconds(copying), html.escape(rate), alone))
        return f"<details><summary>Seconds</summary>{html.table(HEAD, rows)}</details>"

    def figure(self) -> Any:
        """Return a plotly figure: a bar of seconds per cold load: what is left when warm, and the wait for the disk."""
        names: list[str] = []
        warm: list[float] = []
        waiting: list[float] = []
        disk: list[float] = []
        for times in self._loading.measured:
            for loader in times.loaders:
                names.append(_named(times, loader, self._loading)[0])
                warm.append(min(loader.warm_seconds, loader.cold_seconds))
                waiting.append(loader.waiting)
                disk.append(0.0)
            names.append(f"{_LIMIT}: {times.checkpoint.kind}" if len(self._loading.measured) > 1 else _LIMIT)
            warm.append(0.0)
            waiting.append(0.0)
            disk.append(times.disk_seconds)
        series = (
            ("remains when the file is in memory", warm, tint(SHADE, 0.45)),
            ("waiting for the disk", waiting, SHADE),
            ("the disk alone, at its limit", disk, GREY),
        )
        figure = stacked_bars([html.escape(name, 60) for name in names], series, "seconds, cold", 260)
        texts = [format_seconds(sum(parts)) for parts in zip(warm, waiting, disk, strict=True)]
        return figure.update_traces({"text": texts, "textposition": "none"}, 0)


def _named(times: CheckpointTimes, loader: LoaderTimes, loading: LoadingResult) -> tuple[str]:
    """Return the name of a call; with its format where several were measured."""
    return (f"{times.checkpoint.kind}: {loader.name}" if len(loading.measured) > 1 else loader.name,)


def _seconds(times: CheckpointTimes, loader: LoaderTimes) -> tuple[str, str, str]:
    return format_seconds(loader.cold_seconds), format_seconds(loader.warm_seconds), format_seconds(times.disk_seconds)
