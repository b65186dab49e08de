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


class PredictionExplorer(LiveBox):
    """Controls above a figure and the tables of a prediction; `prediction` is the one that is shown.

    Args:
        prediction: prediction to start with.
        kinds: kinds of figures to choose from.
        twin: static view of the prediction.
        below: returns the HTML of a prediction's tables.
    """

    def __init__(
        self, prediction: Prediction, kinds: Sequence[str], twin: View, below: Callable[[Prediction], str]
    ) -> None:
        super().__init__(twin)
        self.prediction = self._traced = prediction
        self._below = below
        self._conditions = _conditions(prediction)
        self._defaults = {name: control.value for name, control in self._conditions.items()}
        self._kind = Dropdown(options=kinds, description="picture")
        self.controls = {**self._conditions, "picture": self._kind}
        self.message, self._tables = ipywidgets.HTML(), ipywidgets.HTML(layout={"width": "100%"})
        self._tables.add_class("dsx-beside-controls")
        self._picture = PlotWidget(on_event=lambda _event: None)
        for control in self._conditions.values():
            control.observe(lambda _: self._predict(), "value")
        self._kind.observe(lambda _: self._draw(), "value")
        controls = ipywidgets.HBox([self.controls[name] for name in _ORDER], layout={"flex_flow": "row wrap"})
        self.children = [controls, self.message, self._picture, self._tables]
        self._predict()

    def _draw(self) -> None:
        """Draw the figure of the prediction."""
        kind = self._kind.value
        self._picture.show_figure(getattr(prediction_figures, kind)(self.prediction), f"{kind}, predicted")

    def _predict(self) -> None:
        """Predict the step with the values of the controls, or show why that is impossible."""
        traced, chosen = self._traced, {name: control.value for name, control in self._conditions.items()}
        change_text = "as it was traced" if chosen == self._defaults else ""
        chosen["compiled"] = _COMPILED[chosen["compiled"]]
        if chosen["hardware"] == traced.cluster.name:
            chosen["hardware"] = traced.cluster
        try:
            self.prediction = traced.what_if(**chosen)
        except UsageError as error:
            self.message.value = f'<span class="dsx">{html.escape(error, longest=400)}</span>'
            return
        change = self.prediction.step.expected / traced.step.expected - 1
        change_text = change_text or f"{format_change(change)}, without a new trace"
        self.message.value = html.prose(f"{self.prediction.step} per step, {change_text}", longest=0)
        self._tables.value = self._below(self.prediction)
        self._draw()


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
