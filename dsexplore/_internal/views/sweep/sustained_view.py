"""The view of `SustainedWrites`: the rate over the bytes written."""

from __future__ import annotations

from typing import Any

from dsexplore._internal.aio.sustained_result import SustainedWrites
from dsexplore._internal.units import format_bytes
from dsexplore._internal.views.page import html
from dsexplore._internal.views.page.still_figure import still_figure
from dsexplore._internal.views.page.theme import SHADE, themed
from dsexplore._internal.views.view import PlottedView


class SustainedWritesView(PlottedView):
    """The view of `SustainedWrites`."""

    title = "Sustained writes"

    def __init__(self, writes: SustainedWrites) -> None:
        self._writes = writes

    @property
    def _what(self) -> str:
        """What was written where, in one line."""
        return html.plain(f"{format_bytes(self._writes.nbytes)} written to {self._writes.disk.label}", 300)

    def text(self) -> str:
        """Return the verdict and the remarks."""
        return "\n".join([f"{self._what}, measured", *self._writes.lines()])

    def html(self) -> str:
        """Return the verdict, the line of rates, and the remarks."""
        verdict, *more = self._writes.lines()
        head = html.conclusion(self._what, "measured", verdict)
        return html.fragment(f"{head}{still_figure(self.figure())}{html.sentences(more)}")

    def figure(self) -> Any:
        """Return a plotly figure: GB/s of each piece over the GiB written."""
        import plotly.graph_objects as go

        frame = self._writes.to_frame()
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
