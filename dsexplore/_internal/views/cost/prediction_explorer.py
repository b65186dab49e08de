"""The explorer of a prediction: controls for hardware, node size, overlap, compilation, kernels and batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, get_args

import ipywidgets
from ipywidgets import BoundedIntText, Checkbox, Dropdown

from dsexplore._internal.cost.cluster import known_clusters
from dsexplore._internal.cost.kernels.compute import Attention
from dsexplore._internal.cost.step.prediction import Prediction
from dsexplore._internal.errors import UsageError
from dsexplore._internal.units import format_change
from dsexplore._internal.views.cost import prediction_figures
from dsexplore._internal.views.page import html
from dsexplore._internal.views.view import View
from dsexplore._internal.views.widgets.live import LiveBox
from dsexplore._internal.views.widgets.part_widgets import PlotWidget

_COMPILED = {"as in the program": None, "eager": False, "compiled": True}
"""{choice: value of ``compiled``}."""
_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Factors by which batch and sequence can be scaled."""
_ORDER = ("hardware", "ranks_per_node", "picture", "compiled", "attention", "batch", "sequence", "overlap", "async_tp")


def explorer(prediction: Prediction, kinds: Sequence[str], twin: View, below: Callable[[Prediction], str]) -> LiveBox:
    """Return controls above a figure and the tables; ``explorer.prediction`` is the prediction shown.

    Args:
        prediction: Prediction to start with.
        kinds: Kinds of figures to choose from.
        twin: Static view of the prediction.
        below: Returns the HTML of a prediction's tables.
    """
    box = LiveBox(twin)
    conditions = _conditions(prediction)
    defaults = {name: control.value for name, control in conditions.items()}
    kind = ipywidgets.Dropdown(options=kinds, description="picture")
    message, tables = ipywidgets.HTML(), ipywidgets.HTML(layout={"width": "100%"})
    tables.add_class("dsx-beside-controls")
    picture = PlotWidget(on_event=lambda _event: None)

    def draw(_: Any = None) -> None:
        figure = getattr(prediction_figures, kind.value)(box.prediction)
        picture.show_figure(figure, f"{kind.value}, predicted")

    def predict(_: Any = None) -> None:
        chosen = {name: control.value for name, control in conditions.items()}
        chosen["compiled"] = _COMPILED[chosen["compiled"]]
        if chosen["hardware"] == prediction.cluster.name:
            chosen["hardware"] = prediction.cluster
        try:
            box.prediction = prediction.what_if(**chosen)
        except UsageError as error:
            message.value = f'<span class="dsx">{html.escape(error, longest=400)}</span>'
            return
        change = box.prediction.step.expected / prediction.step.expected - 1
        is_default = all(control.value == defaults[name] for name, control in conditions.items())
        beside = "as it was traced" if is_default else f"{format_change(change)}, without a new trace"
        message.value = html.prose(f"{box.prediction.step} per step, {beside}", longest=0)
        tables.value = below(box.prediction)
        draw()

    for control in conditions.values():
        control.observe(predict, "value")
    kind.observe(draw, "value")
    box.controls = {**conditions, "picture": kind}
    box.message = message
    box.prediction = prediction
    controls = ipywidgets.HBox([box.controls[name] for name in _ORDER], layout={"flex_flow": "row wrap"})
    box.children = [controls, message, picture, tables]
    predict()
    return box


def _conditions(prediction: Prediction) -> dict[str, Any]:
    """Return {argument of `Prediction.what_if`: control}, set to the values of the prediction."""
    cluster, options = prediction.cluster.name, prediction.options
    narrow = {"width": "auto", "margin": "2px 16px"}
    asked = next(words for words, value in _COMPILED.items() if value == options.compiled)
    clusters = [cluster, *(name for name in known_clusters() if name != cluster)]
    return {
        "hardware": Dropdown(options=clusters, description="hardware"),
        "ranks_per_node": BoundedIntText(
            value=options.ranks_per_node or 0,
            min=0,
            max=1024,
            description="ranks/node (0: default)",
            style={"description_width": "initial"},
        ),
        "overlap": Checkbox(value=options.overlap, description="overlap", indent=False, layout=narrow),
        "compiled": Dropdown(options=list(_COMPILED), value=asked, description="modules"),
        "async_tp": Checkbox(
            value=options.async_tp,
            description="async TP",
            indent=False,
            layout=narrow,
            tooltip="collectives of tensor parallelism in pieces beside their products",
        ),
        "attention": Dropdown(options=get_args(Attention), value=options.attention, description="attention"),
        "batch": Dropdown(options=_FACTORS, value=1.0, description="batch ×"),
        "sequence": Dropdown(options=_FACTORS, value=1.0, description="sequence ×"),
    }
