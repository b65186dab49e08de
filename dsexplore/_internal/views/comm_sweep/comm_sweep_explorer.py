"""The explorer of a sweep of collectives: choose ops and quantity, see the figure and the point last clicked."""

from __future__ import annotations

from typing import Any

import ipywidgets

from dsexplore._internal.comm.sweeps.sweep_result import CommSweep
from dsexplore._internal.views.comm_sweep.comm_sweep_figures import KINDS, point_text, sweep_figure
from dsexplore._internal.views.page import html
from dsexplore._internal.views.view import View
from dsexplore._internal.views.widgets.live import LiveBox
from dsexplore._internal.views.widgets.part_widgets import PlotWidget


def explorer(sweep: CommSweep, twin: View) -> LiveBox:
    """Return choices of ops and quantity, and the figure.

    ``explorer.selection`` is the `SweepPoint` last clicked, None before the first click.

    Args:
        sweep: the sweep to explore.
        twin: its static view.
    """
    box = LiveBox(twin)
    kind = ipywidgets.Dropdown(options=list(KINDS), description="shows")
    ops = ipywidgets.SelectMultiple(options=sweep.ops, value=tuple(sweep.ops), rows=min(9, len(sweep.ops)))
    clicked_point = ipywidgets.HTML("A click on a point shows it here.")
    by_text = {point_text(sweep, point): point for point in sweep.points}
    box.selection = None

    def clicked(event: dict[str, Any]) -> None:
        if event["type"] == "click" and event["customdata"] in by_text:
            box.selection = by_text[event["customdata"]]
            clicked_point.value = html.escape(event["customdata"], 300)

    picture = PlotWidget(on_event=clicked)

    def draw(_: Any = None) -> None:
        chosen = list(ops.value) or sweep.ops
        figure = sweep_figure(sweep, kind.value, chosen)
        picture.show_figure(figure, f"{kind.value} of {', '.join(chosen)}")

    kind.observe(draw, "value")
    ops.observe(draw, "value")
    box.children = [ipywidgets.HBox([kind, ops]), picture, clicked_point]
    draw()
    return box
