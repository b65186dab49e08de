"""The view of a `FeedingResult`: samples per second beside what processors could prepare and what steps need."""

from __future__ import annotations

from typing import Any

from dsexplore._internal.aio.data_loaders.feeding_result import FeedingResult
from dsexplore._internal.units import format_count, format_number, format_seconds
from dsexplore._internal.views.page import html
from dsexplore._internal.views.page.still_figure import still_figure
from dsexplore._internal.views.page.theme import GREY, SHADE, themed
from dsexplore._internal.views.view import PlottedView


class FeedingView(PlottedView):
    """The view of a `FeedingResult`."""

    title = "Data loader"

    def __init__(self, feeding: FeedingResult) -> None:
        self._feeding = feeding

    @property
    def _what(self) -> str:
        """What was measured for how long, in one line."""
        feeding = self._feeding
        workers = format_count(feeding.workers, "worker")
        return f"a data loader with {workers}, {feeding.batches:,} batches in {format_seconds(feeding.seconds)}"

    def text(self) -> str:
        """Return the verdict, what was used, and what to change."""
        return "\n".join([f"{self._what}, measured", *self._feeding.lines()])

    def html(self) -> str:
        """Return the verdict, the bars, and the sentences."""
        verdict, *more = self._feeding.lines()
        head = html.conclusion(self._what, "measured", verdict)
        return html.fragment(f"{head}{still_figure(self.figure())}{html.sentences(more)}")

    def figure(self) -> Any:
        """Return a plotly figure: a bar of samples per second, as measured, as possible and as needed."""
        import plotly.graph_objects as go

        feeding = self._feeding
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
