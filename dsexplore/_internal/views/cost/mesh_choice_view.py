"""The view of a comparison of meshes: time and memory of each mesh as a table and as a figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from dsexplore._internal.cost.meshes.mesh_comparison import MeshCandidate, MeshComparison
from dsexplore._internal.cost.step.prediction import Prediction
from dsexplore._internal.units import format_bytes, format_seconds, unit_of_seconds
from dsexplore._internal.views.cost.prediction_tables import PART_COLORS, STYLE, bar, parts_key
from dsexplore._internal.views.cost.prediction_view import PredictionView
from dsexplore._internal.views.page import html
from dsexplore._internal.views.page.charts import LEGEND_ABOVE, themed
from dsexplore._internal.views.page.html_table import Column, prose, table, text
from dsexplore._internal.views.page.still_figure import still_figure
from dsexplore._internal.views.page.theme import ALARM, GREY, SHADE
from dsexplore._internal.views.view import ResultView

_MOST_OPEN = 8
"""Maximal number of dropped meshes that are listed at once."""


class MeshComparisonView(ResultView[MeshComparison]):
    """The view of a `MeshComparison`."""

    title = "Choice of a mesh"
    tag = "predicted"
    STYLE = STYLE

    def what(self) -> str:
        """Return the cluster on which the meshes are compared, in one line."""
        return f"Meshes on {self.result.cluster.title}"

    def text(self) -> str:
        """Return the fastest meshes, ties, and how many meshes were dropped."""
        comparison = self.result
        lines = [f"predicted on {comparison.cluster.title}, the fastest first:"]
        for candidate in comparison.ranking[:8]:
            assert candidate.prediction is not None
            memory = format_bytes(candidate.prediction.memory)
            price = f", {candidate.prediction.expense()}" if comparison.cluster.price is not None else ""
            lines.append(f"  {candidate.mesh}: {candidate.prediction.step}, {memory}{price}")
        dropped = len(comparison.candidates) - len(comparison.ranking)
        count = f"{dropped} of {len(comparison.candidates)} meshes {'is' if dropped == 1 else 'are'} dropped"
        verdict, *reasons = comparison.lines()
        remarks = (verdict, *([count] if dropped else []), *reasons)
        lines += [f"  {html.plain(line, longest=400)}" for line in remarks]
        return "\n".join(lines)

    def body(self, most: int) -> str:
        """Return the figure, a row per mesh with the parts of its step and its memory, and the dropped meshes."""
        comparison = self.result
        figure = still_figure(self.figure().update_layout(title=None)) if len(comparison.ranking) > 1 else ""
        ranking = parts_key() + _ranking_table(comparison.ranking, most)
        remarks = html.sentences(self.sentences(), longest=400)
        dropped = [candidate for candidate in comparison.candidates if candidate.dropped]
        title = f"Dropped: {len(dropped):,} of {len(comparison.candidates):,}"
        drops = html.details(title, table(_DROPPED, dropped), opened=len(dropped) <= _MOST_OPEN) if dropped else ""
        return f'<div class="prediction">{figure}{ranking}{remarks}{drops}</div>'

    def figure(self) -> Any:
        """Return a plotly figure: step time with its range against memory, one mark per mesh."""
        import plotly.graph_objects as go

        comparison, figure = self.result, go.Figure()
        predicted = [candidate for candidate in comparison.candidates if candidate.prediction is not None]
        predictions = [candidate.prediction for candidate in predicted if candidate.prediction is not None]
        unit, scale = unit_of_seconds(prediction.step.expected for prediction in predictions)
        for name, is_dropped, color, symbol in (("fits", False, SHADE, "circle"), ("does not fit", True, GREY, "x")):
            marks = _marks([candidate for candidate in predicted if bool(candidate.dropped) == is_dropped], scale)
            hover = f"%{{customdata}}<br>%{{y:.3g}} {unit}, %{{x:.1f}} GiB<extra></extra>"
            look = {"color": color, "symbol": symbol, "size": 10}
            figure.add_scatter(**marks, mode="markers+text", name=name, marker=look, hovertemplate=hover)
        size = int(comparison.cluster.memory.size)
        if size <= 2 * max((prediction.memory for prediction in predictions), default=0):
            figure.add_vline(size / 2**30, line_dash="dot", line_color=ALARM, annotation_text="memory")
        figure.update_xaxes(title=f"GiB of one GPU, predicted, of {format_bytes(size)}", rangemode="tozero")
        figure.update_yaxes(title=f"{unit} per step, predicted (log)", type="log")
        title = html.escape(f"meshes on {comparison.cluster.title}, predicted", longest=120)
        figure.update_layout(legend=LEGEND_ABOVE)
        margin = {"l": 80, "r": 40, "t": 90, "b": 50}
        return themed(figure, title={"text": title, "font": {"size": 14}}, height=420, margin=margin)

    def explore(self) -> Any:
        """Return the figure; a click on a mesh opens the explorer of its prediction below."""
        import ipywidgets

        from dsexplore._internal.views.widgets.chart_explorer import ChartExplorer

        comparison, below = self.result, ipywidgets.VBox()
        predicted = [candidate.mesh for candidate in comparison.candidates if candidate.prediction is not None]

        def select(mesh: Any) -> None:
            if mesh in predicted:
                explorer.selection, title = mesh, ipywidgets.HTML(f"<b>{html.escape(mesh)}</b>")
                below.children = [title, PredictionView(comparison[mesh]).explore()]

        drawn = self.figure(), "meshes by time and memory, predicted"
        explorer = ChartExplorer(self, draw=lambda: drawn, select=select, controls={}, below=[below])
        for mesh in predicted[:1]:
            select(mesh)
        return explorer


def _marks(candidates: Sequence[MeshCandidate], scale: float) -> dict[str, Any]:
    """Return the marks of a figure: memory in GiB, and the step with its range in units of ``scale`` seconds."""
    predictions = [candidate.prediction for candidate in candidates if candidate.prediction is not None]
    steps = [prediction.step for prediction in predictions]
    return {
        "x": [prediction.memory / 2**30 for prediction in predictions],
        "y": [step.expected / scale for step in steps],
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [(step.high - step.expected) / scale for step in steps],
            "arrayminus": [(step.expected - step.low) / scale for step in steps],
        },
        "text": [html.escape(candidate.mesh, longest=30) for candidate in candidates],
        "textposition": "middle right",
        "customdata": [candidate.mesh for candidate in candidates],
    }


class _RankedMesh(NamedTuple):
    """A row of the table of meshes."""

    mesh: str
    prediction: Prediction

    @property
    def step_range(self) -> str:
        """Range of the step: ``80 ms to 120 ms``."""
        return f"{format_seconds(self.prediction.step.low)} to {format_seconds(self.prediction.step.high)}"

    @property
    def parts(self) -> dict[str, float]:
        """{part of the step: expected seconds}."""
        return {name: getattr(self.prediction, name).expected for name in PART_COLORS}


def _ranking_table(ranking: Sequence[MeshCandidate], most: int) -> str:
    """Return a row for each of the fastest ``most`` meshes; the longest bar is that of the slowest mesh."""
    rows = [_RankedMesh(mesh.mesh, mesh.prediction) for mesh in ranking if mesh.prediction is not None]
    slowest = max((row.prediction.step.expected for row in rows), default=0.0)
    columns = (
        text("mesh", lambda row: html.name(row.mesh)),
        text("", lambda row: bar(row.parts, slowest)),
        Column("step", lambda row: format_seconds(row.prediction.step.expected)),
        Column("low to high", lambda row: row.step_range),
        text("widest part", lambda row: _widest_part(row.prediction)),
        *map(_part_column, PART_COLORS),
        Column("memory", lambda row: format_bytes(row.prediction.memory)),
    )
    return table(columns, rows[:most])


def _part_column(part: str) -> Column:
    return Column(part, lambda row: format_seconds(row.parts[part]))


def _widest_part(prediction: Prediction) -> str:
    return f'<span title="{html.escape(prediction.step.why, longest=300)}">{html.escape(prediction.widest_part)}</span>'


_DROPPED = (
    text("mesh", lambda candidate: html.name(candidate.mesh)),
    prose("why", lambda candidate: html.escape(candidate.dropped, longest=300)),
)
