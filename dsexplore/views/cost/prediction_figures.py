"""A prediction as plotly figures: the streams of one rank, its memory, and the stages of a pipeline."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
import polars as pl

from dsexplore.cost.peak_memory import USES
from dsexplore.cost.prediction import Prediction
from dsexplore.errors import UsageError
from dsexplore.views.page import html
from dsexplore.views.page.theme import BLUE, GREEN, LEGEND_ABOVE, ORANGE, PURPLE, SKY, phase_mark, themed

_MOST_SPANS = 6_000
_COLOURS = dict(zip(USES, (BLUE, ORANGE, GREEN, SKY, PURPLE), strict=True))


def timeline(one: Prediction) -> Any:
    """A chart of one rank's streams, coloured by phase, gaps left open; what is pointed at says module and op."""
    spans = one.timeline().filter(pl.col("kind") != "idle")
    shown = _joined(spans) if spans.height > _MOST_SPANS else spans
    streams = ["compute", *sorted(set(shown["stream"]) - {"compute"})]
    figure = go.Figure()
    for (label, colour, pattern), part in _by_look(shown):
        figure.add_bar(
            base=(part["start"] * 1e3).to_list(),
            x=((part["end"] - part["start"]) * 1e3).to_list(),
            y=part["stream"].to_list(),
            orientation="h",
            name=label,
            marker={"color": colour, "pattern": {"shape": pattern}, "line": {"width": 0}},
            customdata=[f"{html.printable(m)} {p} {o}" for m, p, o in part.select("module", "phase", "op").iter_rows()],
            hovertemplate="%{customdata}<br>from %{base:.3f} ms for %{x:.3f} ms<extra></extra>",
        )
    figure.update_layout(barmode="overlay", bargap=0.25, legend=LEGEND_ABOVE)
    figure.update_yaxes(categoryorder="array", categoryarray=list(reversed(streams)))
    figure.update_xaxes(title="ms from the start of the step, predicted")
    return _titled(figure, one, f"rank {one.rank}", 140 + 44 * len(streams))


def _by_look(spans: pl.DataFrame) -> list[tuple[tuple[str, str, str], pl.DataFrame]]:
    """The spans that look alike, with their name in the legend, colour and pattern."""
    looks = []
    waits = pl.when(pl.col("kind") == "exposed").then(pl.lit("waiting for a collective"))
    labels = spans.with_columns(look=waits.otherwise("phase"))
    for key, part in labels.group_by("look", maintain_order=True):
        label = str(key[0])
        if label == "waiting for a collective":
            look = (label, "rgba(128,128,128,0.35)", "x")
        else:
            look = (label, phase_mark(label).colour, phase_mark(label).pattern)
        looks.append((look, part))
    return looks


def _joined(spans: pl.DataFrame) -> pl.DataFrame:
    """Neighbours of one stream, phase and kind as one span, so that a figure stays quick."""
    kind = pl.when(pl.col("stream") == "compute").then(pl.col("phase") + pl.col("kind")).otherwise(pl.col("op"))
    runs = spans.sort("stream", "start").with_columns(run=pl.concat_str("stream", kind).rle_id())
    first = [pl.col(name).first() for name in ("stream", "kind", "phase", "op", "axis")]
    return (
        runs.group_by("run", maintain_order=True)
        .agg(*first, pl.col("start").min(), pl.col("end").max(), module=pl.col("module").first())
        .select(spans.columns)
    )


def memory(one: Prediction) -> Any:
    """Bytes by use through the step, stacked, with the memory of the GPU as a line."""
    curve = one.peak.curve
    figure = go.Figure()
    where = [f"{html.printable(module)} {phase}" for module, phase in curve.select("module", "phase").iter_rows()]
    for use in USES:
        figure.add_scatter(
            x=curve["segment"].to_list(),
            y=(curve[use] / 2**30).to_list(),
            name=use,
            mode="lines",
            stackgroup="uses",
            line={"color": _COLOURS[use], "width": 0.5},
            customdata=where,
            hovertemplate="%{customdata}<br>%{y:.2f} GiB<extra>" + use + "</extra>",
        )
    figure.add_hline(one.cluster.memory.size / 2**30, line_dash="dot", annotation_text="memory of the GPU")
    figure.update_xaxes(title="program order, in parts between collectives")
    figure.update_yaxes(title="GiB, predicted", rangemode="tozero")
    figure.update_layout(legend=LEGEND_ABOVE)
    return _titled(figure, one, f"memory of rank {one.peak.rank}, most {one.peak.where}", 360)


def stages(one: Prediction) -> Any:
    """A chart of the microbatches that each rank of a pipeline computes when.

    Raises:
        UsageError: the step has no pipeline.
    """
    placed = one.stages()
    if not placed:
        raise UsageError("this step has no pipeline, so it has no stages to draw: draw kind='timeline'")
    figure = go.Figure()
    for kind, phase in (("F", "forward"), ("B", "backward"), ("I", "backward"), ("W", "recompute")):
        part = [each for each in placed if each.action.kind == kind]
        if part:
            figure.add_bar(
                base=[each.start * 1e3 for each in part],
                x=[(each.end - each.start) * 1e3 for each in part],
                y=[f"rank {each.rank}" for each in part],
                orientation="h",
                name={"F": "forward", "B": "backward", "I": "to inputs", "W": "to weights"}[kind],
                # Filled behind the hatch, so that the numbers can be read on any page.
                marker={
                    "color": phase_mark(phase).colour,
                    "pattern": {"shape": phase_mark(phase).pattern, "fillmode": "overlay", "fgopacity": 0.25},
                    "line": {"width": 0},
                },
                text=[str(each.action.microbatch) for each in part],
                textposition="inside",
                insidetextanchor="middle",
                customdata=[f"stage {each.action.stage}, microbatch {each.action.microbatch}" for each in part],
                hovertemplate="%{customdata}<br>from %{base:.1f} ms for %{x:.1f} ms<extra></extra>",
            )
    ranks = sorted({each.rank for each in placed})
    figure.update_layout(barmode="overlay", bargap=0.15, legend=LEGEND_ABOVE)
    figure.update_yaxes(categoryorder="array", categoryarray=[f"rank {rank}" for rank in reversed(ranks)])
    figure.update_xaxes(title="ms from the first forward, predicted")
    return _titled(figure, one, "stages of the pipeline", 140 + 30 * len(ranks))


def _titled(figure: Any, one: Prediction, what: str, height: int) -> Any:
    title = html.escape(f"predicted on {one.cluster.title}: {what}", 160)
    margin = {"l": 130, "r": 30, "t": 90, "b": 50}
    above_legend = {"y": 1.0, "yref": "container", "yanchor": "top", "pad": {"t": 8}}
    return themed(figure, title={"text": title, "font": {"size": 14}, **above_legend}, height=height, margin=margin)
