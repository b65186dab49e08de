"""`ChartExplorer`: a plotly figure below controls; a click on a mark selects it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ipywidgets

from dsexplore._internal.views.view import View
from dsexplore._internal.views.widgets.live import LiveBox
from dsexplore._internal.views.widgets.part_widgets import PlotWidget


class ChartExplorer(LiveBox):
    """A figure that is redrawn whenever a control above it changes.

    Args:
        twin: static view of the same object.
        draw: returns the figure and its name for screen readers; its arguments are the values of the controls by name.
        select: called with the ``customdata`` of a clicked mark.
        controls: {argument of ``draw``: control}.
        below: widgets below the figure.
    """

    def __init__(
        self,
        twin: View,
        *,
        draw: Callable[..., tuple[Any, str]],
        select: Callable[[Any], None],
        controls: Mapping[str, Any],
        below: Sequence[Any],
    ) -> None:
        super().__init__(twin)
        self.controls, self.select = controls, select
        self.selection: Any = None
        """What was selected last; ``select`` sets it."""
        self._figure_of = draw
        self.picture = PlotWidget(on_event=self._on_event)
        for control in controls.values():
            control.observe(self.draw, "value")
        above = [ipywidgets.HBox(list(controls.values()))] if controls else []
        self.children = [*above, self.picture, *below]
        self.draw()

    def draw(self, _change: Any = None) -> None:
        """Draw the figure with the present values of the controls."""
        figure, spoken = self._figure_of(**{name: control.value for name, control in self.controls.items()})
        self.picture.show_figure(figure, spoken)

    def _on_event(self, event: dict[str, Any]) -> None:
        if event["type"] == "click":
            self.select(event["customdata"])
