"""The explorer of a prediction: what if the cluster, node, overlap, compilation, kernels or batch were others."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, get_args

from dsexplore.cost.cluster import known_clusters
from dsexplore.cost.compute import Attention
from dsexplore.cost.prediction import Prediction
from dsexplore.errors import UsageError
from dsexplore.views.cost import prediction_figures
from dsexplore.views.page import html
from dsexplore.views.widgets.plot_widget import PlotWidget

_AS_TRACED = {"as the program asked": None, "eager": False, "compiled": True}
_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)


def explorer(prediction: Prediction, kinds: Sequence[str], tables_of: Callable[[Prediction], str]) -> Any:
    """Controls above a picture and the tables; ``explorer.prediction`` is what is shown.

    Args:
        prediction: what is shown first.
        kinds: of pictures.
        tables_of: makes the HTML below the picture.
    """
    import ipywidgets

    box = ipywidgets.VBox()
    own = prediction.cluster.name
    names = [own, *(name for name in known_clusters() if name != own)]
    cluster = ipywidgets.Dropdown(options=names, description="cluster")
    node = ipywidgets.BoundedIntText(
        value=prediction.options.ranks_per_node or 0, min=0, max=1024, description="ranks/node", tooltip="0: its own"
    )
    overlap = ipywidgets.Checkbox(value=prediction.options.overlap, description="overlap")
    compiled = ipywidgets.Dropdown(options=_AS_TRACED, value=prediction.options.compiled, description="modules")
    async_tp = ipywidgets.Checkbox(
        value=prediction.options.async_tp,
        description="async TP",
        tooltip="collectives of tensor parallelism in pieces beside their products",
    )
    attention = ipywidgets.Dropdown(
        options=get_args(Attention), value=prediction.options.attention, description="attention"
    )
    batch = ipywidgets.Dropdown(options=_FACTORS, value=1.0, description="batch ×")
    sequence = ipywidgets.Dropdown(options=_FACTORS, value=1.0, description="sequence ×")
    kind = ipywidgets.Dropdown(options=kinds, description="picture")
    message = ipywidgets.HTML()
    tables = ipywidgets.HTML()
    picture = PlotWidget(on_event=lambda _event: None)

    def draw(_: Any = None) -> None:
        figure = getattr(prediction_figures, kind.value)(box.prediction)
        picture.show(json.loads(figure.to_json()), f"{kind.value}, predicted")

    def ask(_: Any = None) -> None:
        try:
            box.prediction = prediction.what_if(
                cluster=prediction.cluster if cluster.value == own else cluster.value,
                ranks_per_node=node.value,
                overlap=overlap.value,
                compiled=compiled.value,
                async_tp=async_tp.value,
                attention=attention.value,
                batch=batch.value,
                sequence=sequence.value,
            )
        except UsageError as error:
            message.value = f'<span class="dsx">{html.escape(error, 400)}</span>'
            return
        change = box.prediction.step.expected / prediction.step.expected - 1
        message.value = f"{html.escape(str(box.prediction.step))} per step, {change:+.1%}, without a new trace"
        tables.value = tables_of(box.prediction)
        draw()

    for control in (cluster, node, overlap, compiled, async_tp, attention, batch, sequence):
        control.observe(ask, "value")
    kind.observe(draw, "value")
    box.controls = {
        "cluster": cluster,
        "ranks_per_node": node,
        "overlap": overlap,
        "compiled": compiled,
        "async_tp": async_tp,
        "attention": attention,
        "batch": batch,
        "sequence": sequence,
        "picture": kind,
    }
    box.message = message
    box.prediction = prediction
    rows = [[cluster, node, kind], [compiled, attention, overlap, async_tp], [batch, sequence]]
    box.children = [*(ipywidgets.HBox(row) for row in rows), message, picture, tables]
    ask()
    return box
