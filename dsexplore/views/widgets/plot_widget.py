"""A plotly figure in a page, without sending plotly.js with every figure.

JupyterLab has plotly.js through plotly's own extension, and the widget uses that; elsewhere the browser requests it
once, compressed, from the installed ``plotly`` package. Nothing is fetched from a network.

JupyterLab has plotly.js already, through plotly's own extension, and the widget takes it from there; elsewhere
the browser asks for it once, and it comes compressed from the installed ``plotly`` package. Nothing is fetched
from a network.
"""

from __future__ import annotations

import gzip
from typing import Any

import traitlets

from dsexplore.views.widgets import script, style
from dsexplore.views.widgets.answering_widget import AnsweringWidget


class PlotWidget(AnsweringWidget):
    """Shows one figure; calls ``on_event`` with clicked marks and with the range that was zoomed to."""

    _esm = script("follow.js", "dom.js", "marks.js", "heat_grid.js", "plot.js", render="alone(plot)")
    _css = style("plot.css")
    spec = traitlets.Dict().tag(sync=True)
    """The figure as plotly's JSON."""
    spoken = traitlets.Unicode("").tag(sync=True)
    """Name of the figure for screen readers."""

    def show(self, spec: dict[str, Any], spoken: str = "") -> None:
        """Draw this figure, given as plotly's JSON, in place of the previous one."""
        with self.hold_sync():
            self.spec, self.spoken = spec, spoken

    def _receive(self, content: dict[str, Any]) -> None:
        if content.get("type") == "library":
            from plotly.offline import get_plotlyjs

            self.send({"type": "library"}, [gzip.compress(get_plotlyjs().encode(), 6)])
        else:
            super()._receive(content)
