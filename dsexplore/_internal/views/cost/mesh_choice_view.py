"""The view of a comparison of meshes: a table with time and memory, and the same as a figure."""

from __future__ import annotations

from typing import Any

from dsexplore._internal.cost.meshes.mesh_comparison import MeshCandidate, MeshComparison
from dsexplore._internal.units import format_bytes, format_seconds, unit_of_seconds
from dsexplore._internal.views.cost.prediction_tables import PARTS, STYLE, bar, parts_key
from dsexplore._internal.views.cost.prediction_view import PredictionView
from dsexplore._internal.views.page import html
from dsexplore._internal.views.page.charts import LEGEND_ABOVE, themed
from dsexplore._internal.views.page.still_figure import still_figure
from dsexplore._internal.views.page.theme import ALARM, GREY, SHADE
from dsexplore._internal.views.view import PlottedView

HEAD = ("mesh", "", "step", "low to high", "widest part", "compute", "exposed", "idle", "memory")
_MOST_ROWS = 200
_MOST_OPEN = 8
"""Maximal number of dropped meshes that are listed at once."""


class MeshComparisonView(PlottedView):
    """The view of a `MeshComparison`."""

    title = "Choice of a mesh"

    def __init__(self, comparison: MeshComparison) -> None:
        self._comparison = comparison

    def text(self) -> str:
        """Return the fastest meshes, ties, and how many meshes were dropped."""
        comparison = self._comparison
        lines = [f"predicted on {comparison.cluster.title}, the fastest first:"]
        for candidate in comparison.ranking[:8]:
            assert candidate.prediction is not None
            memory = format_bytes(candidate.prediction.memory)
            spent = f", {candidate.prediction.expense()}" if comparison.cluster.price is not None else ""
            lines.append(f"  {candidate.mesh}: {candidate.prediction.step}, {memory}{spent}")
        dropped = len(comparison.candidates) - len(comparison.ranking)
        out = f"{dropped} of {len(comparison.candidates)} meshes {'is' if dropped == 1 else 'are'} dropped"
        verdict, *reasons = comparison.lines()
        remarks = (verdict, *([out] if dropped else []), *reasons)
        lines += [f"  {html.plain(line, 400)}" for line in remarks]
        return "\n".join(lines)

    def html(self) -> str:
        """Return a row per mesh: a bar of the step's parts, times with ranges, memory; then those dropped."""
        comparison = self._comparison
        predictions = [candidate.prediction for candidate in comparison.ranking]
        slowest = max((prediction.step.expected for prediction in predictions if prediction is not None), default=0.0)
        rows = [_row(candidate, slowest) for candidate in comparison.ranking[:_MOST_ROWS]]
        out = [
            (html.name(candidate.mesh), html.escape(candidate.dropped, 300))
            for candidate in comparison.candidates
            if candidate.dropped
        ]
        remarks = html.sentences(comparison.lines()[1:], 400)
        opened = " open" if len(out) <= _MOST_OPEN else ""
        title = f"Dropped: {len(out):,} of {len(comparison.candidates):,}"
        why = html.table(("mesh", "why"), out, left=(0,), wrap=(1,))
        dropped = f"<details{opened}><summary>{title}</summary>{why}</details>" if out else ""
        drawn = still_figure(self.figure().update_layout(title=None)) if len(rows) > 1 else ""
        head = f'<p>Meshes on {html.escape(comparison.cluster.title)} <span class="tag">predicted</span></p>'
        head += html.verdict(comparison.verdict())
        table = html.table(HEAD, rows, left=(0, 1, 4))
        return html.fragment(
            f'<div class="prediction">{head}{drawn}{parts_key()}{table}{remarks}{dropped}</div>', STYLE
        )

    def figure(self) -> Any:
        """Return a plotly figure: step time with its range against memory, one mark per mesh."""
        import plotly.graph_objects as go

        comparison = self._comparison
        figure = go.Figure()
        fits = [
            candidate
            for candidate in comparison.candidates
            if candidate.prediction is not None and not candidate.dropped
        ]
        out = [
            candidate for candidate in comparison.candidates if candidate.prediction is not None and candidate.dropped
        ]
        predicted = [candidate.prediction for candidate in (*fits, *out) if candidate.prediction is not None]
        unit, scale = unit_of_seconds(prediction.step.expected for prediction in predicted)
        for name, part, color, symbol in (("fits", fits, SHADE, "circle"), ("does not fit", out, GREY, "x")):
            predictions = [candidate.prediction for candidate in part if candidate.prediction is not None]
            figure.add_scatter(
                x=[prediction.memory / 2**30 for prediction in predictions],
                y=[prediction.step.expected / scale for prediction in predictions],
                error_y={
                    "type": "data",
                    "symmetric": False,
                    "array": [(prediction.step.high - prediction.step.expected) / scale for prediction in predictions],
                    "arrayminus": [
                        (prediction.step.expected - prediction.step.low) / scale for prediction in predictions
                    ],
                },
                mode="markers+text",
                text=[html.escape(candidate.mesh, 30) for candidate in part],
                textposition="middle right",
                name=name,
                marker={"color": color, "symbol": symbol, "size": 10},
                customdata=[candidate.mesh for candidate in part],
                hovertemplate=f"%{{customdata}}<br>%{{y:.3g}} {unit}, %{{x:.1f}} GiB<extra></extra>",
            )
        size = int(comparison.cluster.memory.size)
        if size <= 2 * max((prediction.memory for prediction in predicted), default=0):
            figure.add_vline(size / 2**30, line_dash="dot", line_color=ALARM, annotation_text="memory")
        figure.update_xaxes(title=f"GiB of one GPU, predicted, of {format_bytes(size)}", rangemode="tozero")
        figure.update_yaxes(title=f"{unit} per step, predicted (log)", type="log")
        title = html.escape(f"meshes on {comparison.cluster.title}, predicted", 120)
        figure.update_layout(legend=LEGEND_ABOVE)
        margin = {"l": 80, "r": 40, "t": 90, "b": 50}
        return themed(figure, title={"text": title, "font": {"size": 14}}, height=420, margin=margin)

    def explore(self) -> Any:
        """Return the figure; a click on a mesh opens the explorer of its prediction below."""
        return _explorer(self._comparison, self)


def _explorer(comparison: MeshComparison, twin: MeshComparisonView) -> Any:
    import ipywidgets

    from dsexplore._internal.views.widgets.live import LiveBox
    from dsexplore._internal.views.widgets.part_widgets import PlotWidget

    box = LiveBox(twin)
    predicted = [candidate.mesh for candidate in comparison.candidates if candidate.prediction is not None]
    below = ipywidgets.VBox()

    def select(mesh: str) -> None:
        box.selection = mesh
        below.children = [ipywidgets.HTML(f"<b>{html.escape(mesh)}</b>"), PredictionView(comparison[mesh]).explore()]

    def clicked(event: dict[str, Any]) -> None:
        if event["type"] == "click" and event["customdata"] in predicted:
            select(event["customdata"])

    picture = PlotWidget(on_event=clicked)
    picture.show_figure(twin.figure(), "meshes by time and memory, predicted")
    box.children = [picture, below]
    box.select = select
    if predicted:
        select(predicted[0])
    return box


def _row(candidate: MeshCandidate, slowest: float) -> tuple[str, ...]:
    prediction = candidate.prediction
    assert prediction is not None
    parts = {name: getattr(prediction, name).expected for name in PARTS}
    step = prediction.step
    return (
        html.name(candidate.mesh),
        bar(parts, slowest),
        format_seconds(step.expected),
        f"{format_seconds(step.low)} to {format_seconds(step.high)}",
        f'<span title="{html.escape(step.why, 300)}">{html.escape(prediction.widest_part)}</span>',
        *(format_seconds(value) for value in parts.values()),
        format_bytes(prediction.memory),
    )
