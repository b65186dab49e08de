"""A sweep to click on: a point gives the ``"aio"`` block of its setting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dsexplore.aio.config import AioConfig
from dsexplore.aio.result import SweepResult
from dsexplore.views import html
from dsexplore.views.sweep_figures import KINDS
from dsexplore.views.sweep_points import directions


def explorer(result: SweepResult) -> Any:
    """Dropdowns for picture and direction, the picture, and the block of the point last clicked.

    ``explorer.selection`` is the `AioConfig` shown.
    """
    import ipywidgets

    box = ipywidgets.VBox()
    first = result.best().config if result.rounds else result.control
    kind = ipywidgets.Dropdown(options=list(KINDS), description="picture")
    operation = ipywidgets.Dropdown(options=directions(result), value=directions(result)[-1], description="direction")
    block = ipywidgets.Textarea(layout=ipywidgets.Layout(width="26em", height="14em"), disabled=False)
    told = ipywidgets.HTML()
    picture = ipywidgets.VBox()

    def select(config: AioConfig) -> None:
        box.selection = config
        block.value = config.to_json()
        told.value = html.escape(str(config))

    def draw(_: Any = None) -> None:
        picture.children = [_clickable(KINDS[kind.value](result, operation.value), result, select)]

    kind.observe(draw, "value")
    operation.observe(draw, "value")
    box.children = [
        ipywidgets.HBox([kind, operation]),
        picture,
        ipywidgets.HBox([block, ipywidgets.VBox([told, ipywidgets.HTML("A click on a point shows its block.")])]),
    ]
    box.select, box.draw = select, draw
    select(first)
    draw()
    return box


def _clickable(figure: Any, result: SweepResult, select: Callable[[AioConfig], None]) -> Any:
    import plotly.graph_objects as go

    by_name = {str(m.sample.config): m.sample.config for m in result.measured}
    widget = go.FigureWidget(figure)

    def clicked(trace: Any, places: Any, _: Any) -> None:
        for place in places.point_inds[:1]:
            data = trace.customdata
            name = data[place[0]][place[1]] if isinstance(place, (list, tuple)) else data[place]
            if name in by_name:
                select(by_name[name])

    for trace in widget.data:
        if trace.type != "parcoords":
            trace.on_click(clicked)
    return widget
