"""The view of `SustainedWrites`: the rate over the bytes written."""

from __future__ import annotations

from typing import Any

from dsexplore._internal.aio.sustained_result import SustainedWrites
from dsexplore._internal.units import format_bytes
from dsexplore._internal.views.page.charts import themed
from dsexplore._internal.views.page.theme import SHADE
from dsexplore._internal.views.view import ResultView


class SustainedWritesView(ResultView[SustainedWrites]):
    """The view of `SustainedWrites`."""

    title = "Sustained writes"

    def what(self) -> str:
        """Return what was written where, in one line."""
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
