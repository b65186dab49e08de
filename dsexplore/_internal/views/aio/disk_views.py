"""Views of results about disks: checkpoints, states on a disk, data loaders and sustained writes."""

from __future__ import annotations

from typing import Any, NamedTuple

from dsexplore._internal.aio.checkpoints.loading_result import CheckpointTimes, LoaderTimes, LoadingResult
from dsexplore._internal.aio.checkpoints.predict_checkpoint import CheckpointCost
from dsexplore._internal.aio.data_loaders.feeding_result import FeedingResult
from dsexplore._internal.aio.offload import OffloadCost
from dsexplore._internal.aio.sustained import SustainedWrites
from dsexplore._internal.units import format_bytes, format_count, format_number, format_rate, format_seconds
from dsexplore._internal.views.page import html
from dsexplore._internal.views.page.charts import stacked_bars, themed
from dsexplore._internal.views.page.theme import GREY, SHADE, tint
from dsexplore._internal.views.view import ResultView

_WIDTH_OF_NAMES = 210
"""Pixels left of a figure for names of methods with their writers."""


class CheckpointCostView(ResultView[CheckpointCost]):
    """The view of a `CheckpointCost`."""

    title = "Checkpoints"
    tag = "predicted"
    HEAD = ("saved with", "by", "a step waits", "on the disk after", "load, cold", "affordable every")
    LEFT = (0, 1)

    def what(self) -> str:
        """Return the model, its size and the disk, in one line."""
        cost = self.result
        size, ranks = format_bytes(cost.nbytes), format_count(cost.ranks, "rank")
        return f"checkpoints of {cost.title}, {size} on {ranks}, to {cost.disk.label}"

    def notes(self) -> tuple[str, ...]:
        """Return the assumptions, and what was not measured."""
        return self.result.notes

    def rows(self) -> list[tuple[str, ...]]:
        """Return a row per method with its seconds: how long a step waits, until the disk has it, and to load it."""
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
        """Return a plotly figure: a bar per method with the seconds that a step waits, and those in the background."""
        methods = self.result.methods
        names = [html.escape(f"{method.name}, {method.writers}", longest=60) for method in methods]
        waiting = [method.stall for method in methods]
        in_background = [max(method.save - method.stall, 0.0) for method in methods]
        parts = [
            ("a step waits", waiting, SHADE),
            ("written while steps go on", in_background, tint(SHADE, 0.45)),
        ]
        return stacked_bars(names, parts, "of one checkpoint, predicted", left=_WIDTH_OF_NAMES)


_LIMIT = "the disk alone"
_FOOT = (
    "Medians, until the parameters hold the values: the call, and copying what it returns into them. Cold: the files "
    "were dropped from the page cache. Disk alone: the files read with direct I/O, no tensors made."
)


class _LoadBar(NamedTuple):
    """A bar of the figure of a load, and the seconds of its parts."""

    name: str
    in_memory: float
    """Seconds that the load takes if the file is in the page cache."""
    waiting: float
    """Seconds that the load waits for the disk."""
    disk: float
    """Seconds to read the file without a loader."""


class LoadingView(ResultView[LoadingResult]):
    """The view of a `LoadingResult`."""

    title = "Loading a checkpoint"
    HEAD = ("loaded with", "cold", "warm", "of it copying", "rate, cold", "disk alone")

    def what(self) -> str:
        """Return the checkpoints that were loaded, and the disk, in one line."""
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
        """Return a row per call with its seconds and its rate."""
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
        """Return the name of a call, after its format if several formats were measured."""
        return f"{times.checkpoint.kind}: {loader.name}" if len(self.result.measured) > 1 else loader.name

    def figure(self) -> Any:
        """Return a plotly figure: a bar per cold load with the seconds of a warm load, and the wait for the disk."""
        several, bars = len(self.result.measured) > 1, list[_LoadBar]()
        for times in self.result.measured:
            for loader in times.loaders:
                in_memory = min(loader.warm_seconds, loader.cold_seconds)
                bars.append(_LoadBar(self._call(times, loader), in_memory, loader.waiting, 0.0))
            limit = f"{_LIMIT}: {times.checkpoint.kind}" if several else _LIMIT
            bars.append(_LoadBar(limit, 0.0, 0.0, times.disk_seconds))
        series = (
            ("remains when the file is in memory", [bar.in_memory for bar in bars], tint(SHADE, 0.45)),
            ("waiting for the disk", [bar.waiting for bar in bars], SHADE),
            ("the disk alone, at its limit", [bar.disk for bar in bars], GREY),
        )
        figure = stacked_bars([html.escape(bar.name, longest=60) for bar in bars], series, "of a cold load", left=260)
        texts = [format_seconds(bar.in_memory + bar.waiting + bar.disk) for bar in bars]
        return figure.update_traces({"text": texts, "textposition": "none"}, 0)


class OffloadCostView(ResultView[OffloadCost]):
    """The view of an `OffloadCost`."""

    title = "States on a disk"
    tag = "predicted"
    HEAD = ("swapped", "read", "written", "reading", "writing", "longer step")

    def what(self) -> str:
        """Return the model, its parameters per node and the disk, in one line."""
        cost = self.result
        return f"{cost.title}, {format_count(cost.node_parameters, 'parameter')} per node, states on {cost.disk.label}"

    def notes(self) -> tuple[str, ...]:
        """Return the assumptions."""
        return self.result.notes

    def rows(self) -> list[tuple[str, ...]]:
        """Return a row per kind of state with the bytes and seconds that a step moves."""
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
        """Return a plotly figure: the seconds of a step without a disk, and those that each swap adds."""
        cost = self.result
        series = [("the step without a disk", [cost.step_seconds or 0.0], GREY)]
        series += [
            (f"waiting for {swap.what}", [swap.exposed], color)
            for swap, color in zip(cost.swaps, (SHADE, tint(SHADE, 0.45)), strict=False)
        ]
        return stacked_bars(
            ["a step"],
            [(name, seconds, color) for name, seconds, color in series if seconds[0]],
            "per step, predicted",
            left=80,
        )


class FeedingView(ResultView[FeedingResult]):
    """The view of a `FeedingResult`."""

    title = "Data loader"

    def what(self) -> str:
        """Return the workers of the loader, and how long it was measured, in one line."""
        feeding = self.result
        workers = format_count(feeding.workers, "worker")
        return f"a data loader with {workers}, {feeding.batches:,} batches in {format_seconds(feeding.seconds)}"

    def figure(self) -> Any:
        """Return a plotly figure: samples per second that the loader gives, steps take, and processors allow."""
        import plotly.graph_objects as go

        feeding = self.result
        bars = [("the loader gives", feeding.rate, SHADE)]
        if feeding.step_seconds:
            needed = feeding.samples / feeding.batches / feeding.step_seconds
            bars.append(("steps take", needed, GREY))
        if feeding.most_by_processors is not None:
            bars.append(("all processors could", feeding.most_by_processors, GREY))
        figure = go.Figure(
            go.Bar(
                orientation="h",
                x=[rate for _, rate, _ in bars],
                y=[name for name, _, _ in bars],
                marker={"color": [color for _, _, color in bars]},
                text=[format_number(rate) for _, rate, _ in bars],
                textposition="none",
                hovertemplate="%{y} %{x:.3g} samples/s<extra></extra>",
            )
        )
        figure.update_yaxes(autorange="reversed")
        figure.update_xaxes(title="samples per second", rangemode="tozero")
        return themed(figure, height=100 + 28 * len(bars), margin={"l": 160, "r": 40, "t": 30, "b": 50})


class SustainedWritesView(ResultView[SustainedWrites]):
    """The view of `SustainedWrites`."""

    title = "Sustained writes"

    def what(self) -> str:
        """Return the bytes that were written, and the disk, in one line."""
        return f"{format_bytes(self.result.nbytes)} written to {self.result.disk.label}"

    def figure(self) -> Any:
        """Return a plotly figure: GB/s of each piece over the GiB written."""
        import plotly.graph_objects as go

        frame = self.result.to_frame()
        figure = go.Figure(
            go.Scatter(
                x=(frame["end"] / 2**30).to_list(),
                y=(frame["rate"] / 1e9).to_list(),
                mode="lines",
                line={"color": SHADE},
                hovertemplate="%{x:.3g} GiB: %{y:.3g} GB/s<extra></extra>",
            )
        )
        figure.update_xaxes(title="GiB written", rangemode="tozero")
        figure.update_yaxes(title="GB/s", rangemode="tozero")
        return themed(figure, height=300, margin={"l": 60, "r": 30, "t": 30, "b": 50})
