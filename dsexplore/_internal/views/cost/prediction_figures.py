"""A prediction as plotly figures: the streams of one rank, its memory, and the stages of a pipeline."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
import polars as pl

from dsexplore._internal.analysis.step_timeline import Timeline
from dsexplore._internal.cost.memory.peak_memory import USES
from dsexplore._internal.cost.step.predicted_timeline import stream_timeline, timeline_of_stages
from dsexplore._internal.cost.step.prediction import Prediction
from dsexplore._internal.errors import UsageError
from dsexplore._internal.units import format_bytes
from dsexplore._internal.views.page import html
from dsexplore._internal.views.page.charts import LEGEND_ABOVE, themed
from dsexplore._internal.views.page.theme import MEMORY
from dsexplore._internal.views.timeline.timeline_figure import FIGURE_LANES, columns_of, timeline_spec
from dsexplore._internal.views.timeline.timeline_state import TimelineState
from dsexplore._internal.views.trace.figure_spec import finished

_MOST_SPANS = 6_000
"""Maximal number of spans that are drawn one by one."""


def timeline(prediction: Prediction) -> Any:
    """Return the streams of one rank, colored by phase; tooltips show module and op."""
    return _lanes(prediction, stream_timeline(prediction), f"rank {prediction.rank}")


def memory(prediction: Prediction) -> Any:
    """Return stacked bytes by use through the step, with the memory of the GPU as a line."""
    curve = prediction.peak.curve
    figure = go.Figure()
    most = max(curve.select(pl.sum_horizontal(*USES)).to_series(), default=0)
    scale, unit = (2**30, "GiB") if most >= 2**30 else (2**20, "MiB")
    where = [f"{html.printable(module)} {phase}" for module, phase in curve.select("module", "phase").iter_rows()]
    for use in (use for use in USES if curve[use].max()):
        figure.add_scatter(
            x=curve["segment"].to_list(),
            y=(curve[use] / scale).to_list(),
            name=use,
            mode="lines",
            stackgroup="uses",
            line={"color": MEMORY[use].color, "width": 0.5},
            customdata=where,
            hovertemplate=f"%{{customdata}}<br>%{{y:.3g}} {unit}<extra>{use}</extra>",
        )
    size = int(prediction.cluster.memory.size)
    if size <= 2 * most:
        figure.add_hline(size / scale, line_dash="dot", annotation_text="memory of the GPU")
    figure.update_xaxes(title="program order, in parts between collectives")
    figure.update_yaxes(title=f"{unit}, predicted", rangemode="tozero")
    figure.update_layout(legend=LEGEND_ABOVE)
    held = f"{format_bytes(prediction.memory)} of {format_bytes(size)} on rank {prediction.peak.rank}"
    return _titled(figure, prediction, f"{held}, most {prediction.peak.where}", height=360)


def stages(prediction: Prediction) -> Any:
    """Return a lane per stage of a pipeline, with the microbatches that it computes over time.

    Raises:
        UsageError: The step has no pipeline.
    """
    if prediction.schedule is None:
        raise UsageError("this step has no pipeline, so it has no stages to draw: draw kind='timeline'")
    timeline = timeline_of_stages(prediction.schedule, prediction.stages(), "predicted", prediction.tables)
    return _lanes(prediction, timeline, "stages of the pipeline")


def _lanes(prediction: Prediction, timeline: Timeline, what: str) -> Any:
    """Return the figure of a timeline; ``what`` ends its title."""
    columns = columns_of(len(timeline.lanes))
    state = TimelineState(timeline, columns, most=_MOST_SPANS, most_lanes=FIGURE_LANES)
    spec = timeline_spec(state)
    figure = go.Figure(finished({**spec, "layout": {**spec["layout"], "legend": LEGEND_ABOVE}}))
    return _titled(figure, prediction, what, height=spec["layout"]["height"])


def _titled(figure: Any, prediction: Prediction, what: str, height: int) -> Any:
    title = html.escape(f"predicted on {prediction.cluster.title}: {what}", longest=160)
    margin = {"l": 130, "r": 30, "t": 90, "b": 50}
    above_legend = {"y": 1.0, "yref": "container", "yanchor": "top", "pad": {"t": 8}}
    return themed(figure, title={"text": title, "font": {"size": 14}, **above_legend}, height=height, margin=margin)
