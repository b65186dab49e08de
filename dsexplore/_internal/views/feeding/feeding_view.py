"""The view of a `FeedingResult`: samples per second beside what processors could prepare and what steps need."""

from __future__ import annotations

from typing import Any

from dsexplore._internal.aio.data_loaders.feeding_result import FeedingResult
from dsexplore._internal.units import format_count, format_number, format_seconds
from dsexplore._internal.views.page.charts import themed
from dsexplore._internal.views.page.theme import GREY, SHADE
from dsexplore._internal.views.view import ResultView


class FeedingView(ResultView[FeedingResult]):
    """The view of a `FeedingResult`."""

    title = "Data loader"

    def what(self) -> str:
        """Return what was measured for how long, in one line."""
        feeding = self.result
        workers = format_count(feeding.workers, "worker")
        return f"a data loader with {workers}, {feeding.batches:,} batches in {format_seconds(feeding.seconds)}"

    def figure(self) -> Any:
        """Return a plotly figure: a bar of samples per second, as measured, as possible and as needed."""
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
