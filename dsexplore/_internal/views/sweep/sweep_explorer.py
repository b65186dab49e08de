"""The explorer of a disk sweep: a click on a point of the figure shows the ``"aio"`` block of its setting."""

from __future__ import annotations

from typing import Any

import ipywidgets

from dsexplore._internal.aio.aio_config import AioConfig
from dsexplore._internal.aio.sweeps.result import SweepResult
from dsexplore._internal.views.page import html
from dsexplore._internal.views.sweep.sweep_figures import KINDS
from dsexplore._internal.views.sweep.sweep_points import directions
from dsexplore._internal.views.view import View
from dsexplore._internal.views.widgets.live import LiveBox
from dsexplore._internal.views.widgets.part_widgets import PlotWidget


def explorer(result: SweepResult, twin: View) -> LiveBox:
    """Return dropdowns for figure and direction, the figure, and the block of the point last clicked.

    ``explorer.selection`` is the `AioConfig` shown.

    Args:
        result: the sweep.
        twin: its static view.
    """
    box = LiveBox(twin)
    first = result.best().config if result.rounds else result.control
    kind = ipywidgets.Dropdown(options=list(KINDS), description="picture")
    operation = ipywidgets.Dropdown(options=directions(result), value=directions(result)[-1], description="direction")
    block = ipywidgets.Textarea(layout=ipywidgets.Layout(width="26em", height="14em"), disabled=False)
    setting = ipywidgets.HTML()
    by_name = {str(m.sample.config): m.sample.config for m in result.measured}

    def select(config: AioConfig) -> None:
        box.selection = config
        block.value = config.to_json()
        setting.value = html.escape(str(config))

    def clicked(event: dict[str, Any]) -> None:
        if event["type"] == "click" and event["customdata"] in by_name:
            select(by_name[event["customdata"]])

    picture = PlotWidget(on_event=clicked)

    def draw(_: Any = None) -> None:
        figure = KINDS[kind.value](result, operation.value)
        picture.show_figure(figure, f"{kind.value} of {operation.value}")

    kind.observe(draw, "value")
    operation.observe(draw, "value")
    box.children = [
        ipywidgets.HBox([kind, operation]),
        picture,
        ipywidgets.HBox([block, ipywidgets.VBox([setting, ipywidgets.HTML("A click on a point shows its block.")])]),
    ]
    select(first)
    draw()
    return box
