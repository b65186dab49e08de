"""The explorer of a prediction: what if the cluster, node, overlap, compilation, kernels or batch were others."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, get_args

from dsexplore.cost.cluster import known_clusters
from dsexplore.cost.compute import Attention
from dsexplore.cost.prediction import Prediction
from dsexplore.errors import UsageError
from dsexplore.units import format_change
from dsexplore.views.cost import prediction_figures
from dsexplore.views.page import html
from dsexplore.views.widgets.plot_widget import PlotWidget

_AS_TRACED = {"as the program asked": None, "eager": False, "compiled": True}
_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
_ROWS = (
    ("cluster", "ranks_per_node", "picture"),
    ("compiled", "attention", "overlap", "async_tp"),
    ("batch", "sequence"),
)


def explorer(prediction: Prediction, kinds: Sequence[str], tables_of: Callable[[Prediction], str]) -> Any:
    """Controls above a picture and the tables; ``explorer.prediction`` is what is shown.

    Args:
        prediction: what is shown first.
        kinds: of pictures.
        tables_of: makes the HTML below the picture.
    """
    import ipywidgets

    box = ipywidgets.VBox()
    conditions = _conditions(prediction)
    kind = ipywidgets.Dropdown(options=kinds, description="picture")
    message, tables = ipywidgets.HTML(), ipywidgets.HTML()
    picture = PlotWidget(on_event=lambda _event: None)

    def draw(_: Any = None) -> None:
        figure = getattr(prediction_figures, kind.value)(box.prediction)
        picture.show(json.loads(figure.to_json()), f"{kind.value}, predicted")

    def predict(_: Any = None) -> None:
        chosen = {name: control.value for name, control in conditions.items()}
        if chosen["cluster"] == prediction.cluster.name:
            chosen["cluster"] = prediction.cluster
        try:
            box.prediction = prediction.what_if(**chosen)
        except UsageError as error:
            message.value = f'<span class="dsx">{html.escape(error, 400)}</span>'
            return
        change = box.prediction.step.expected / prediction.step.expected - 1
        message.value = html.prose(f"{box.prediction.step} per step, {format_change(change)}, without a new trace", 0)
        tables.value = tables_of(box.prediction)
        draw()

    for control in conditions.values():
        control.observe(predict, "value")
    kind.observe(draw, "value")
    box.controls = {**conditions, "picture": kind}
    box.message = message
    box.prediction = prediction
    rows = (ipywidgets.HBox([box.controls[name] for name in row]) for row in _ROWS)
    box.children = [*rows, message, picture, tables]
    predict()
    return box


def _conditions(prediction: Prediction) -> dict[str, Any]:
    """A control for each argument of `Prediction.what_if`, by its name, with the prediction's own values."""
    from ipywidgets import BoundedIntText, Checkbox, Dropdown

    own, options = prediction.cluster.name, prediction.options
    clusters = [own, *(name for name in known_clusters() if name != own)]
    return {
        "cluster": Dropdown(options=clusters, description="cluster"),
        "ranks_per_node": BoundedIntText(
            value=options.ranks_per_node or 0, min=0, max=1024, description="ranks/node", tooltip="0: its own"
        ),
        "overlap": Checkbox(value=options.overlap, description="overlap"),
        "compiled": Dropdown(options=_AS_TRACED, value=options.compiled, description="modules"),
        "async_tp": Checkbox(
            value=options.async_tp,
            description="async TP",
            tooltip="collectives of tensor parallelism in pieces beside their products",
        ),
        "attention": Dropdown(options=get_args(Attention), value=options.attention, description="attention"),
        "batch": Dropdown(options=_FACTORS, value=1.0, description="batch ×"),
        "sequence": Dropdown(options=_FACTORS, value=1.0, description="sequence ×"),
    }
