"""The static view of a prediction: the step and its parts, time by module, communication by axis, and memory."""

from __future__ import annotations

from typing import Any

from dsexplore._internal.cost.step.beside_measured import measured_sentence
from dsexplore._internal.cost.step.predicted_timeline import stream_timeline, timeline_of_stages
from dsexplore._internal.cost.step.prediction import Prediction
from dsexplore._internal.errors import UsageError
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.units import format_bytes
from dsexplore._internal.views.cost import prediction_tables as tables
from dsexplore._internal.views.page import html
from dsexplore._internal.views.page.still_figure import still_figure
from dsexplore._internal.views.timeline import timeline_drawing
from dsexplore._internal.views.timeline.timeline_drawing import timeline_html
from dsexplore._internal.views.view import ResultView

KINDS = ("timeline", "memory", "stages")
"""Kinds of figure."""
_BESIDE_CONTROLS = ".dsx-beside-controls .widget-html-content{min-width:0;overflow:auto}\n"


class PredictionView(ResultView[Prediction]):
    """The view of a `Prediction`."""

    title = "Predicted step"
    tag = "predicted"
    STYLE = _BESIDE_CONTROLS + tables.STYLE + timeline_drawing.STYLE
    MOST_ROWS = 40

    def what(self) -> str:
        """Return the cluster that the step is predicted for, in one line."""
        return f"A step on {self.result.cluster.title}"

    def text(self) -> str:
        """Return the step, its parts and memory, in about five lines."""
        prediction = self.result
        memory = f"{format_bytes(prediction.memory)} of {format_bytes(int(prediction.cluster.memory.size))}"
        lines = [
            f"predicted on {prediction.cluster.title}: {prediction.step} per step",
            f"  compute {prediction.compute}; exposed communication {prediction.exposed}; idle {prediction.idle}",
            *(f"  {html.plain(line, longest=400)}" for line in prediction.why_wide()),
            f"  memory {memory}, most {prediction.peak.where}",
            *(f"  {html.plain(note, longest=400)}" for note in prediction.notes),
        ]
        if prediction.memory.fit != "fits":
            lines += [
                f"  to need less: {html.plain(str(saving), longest=200)}" for saving in prediction.memory.savings[:3]
            ]
        return "\n".join(lines)

    def html_below_controls(self) -> str:
        """Return the view without streams and memory, which the explorer draws as figures."""
        return html.fragment(self.head() + self.body(self.MOST_ROWS, with_pictures=False), self.STYLE)

    def body(self, most: int, with_pictures: bool = True, measured: Trace | None = None) -> str:
        """Return bars, the streams over time, tables by module and by axis, and memory over the step, as HTML.

        Args:
            most: maximal number of modules in the table.
            with_pictures: whether to draw the streams and the memory.
            measured: trace of the same program on real ranks; None for no comparison.
        """
        prediction = self.result
        compared = ""
        if measured is not None:
            title = "Predicted beside measured, largest differences first"
            compared = html.verdict(measured_sentence(prediction, measured))
            compared += html.details(title, tables.beside_table(prediction, measured), opened=True)
        parts = [
            html.sentences(prediction.why_wide(), longest=400),
            compared,
            tables.parts_table(prediction),
            timeline_drawing.drawing(stream_timeline(prediction)) if with_pictures else "",
            html.details(
                "By module (predicted; with the modules inside, Σ: the sum over repeated modules)",
                tables.modules_table(prediction, most),
                opened=True,
            ),
            html.details("Communication by mesh axis (predicted)", tables.axes_table(prediction)),
            html.details("Causes of the range of the step", tables.causes_table(prediction)),
            html.details("Memory over the step (predicted)", self._memory(with_pictures), opened=with_pictures),
            html.notes(prediction.notes, longest=400),
        ]
        return f'<div class="prediction">{"".join(parts)}</div>'

    def _memory(self, with_picture: bool) -> str:
        """Return the peak, the memory over the step as areas if ``with_picture``, and its table."""
        from dsexplore._internal.views.cost import prediction_figures  # plotly is loaded when a figure is drawn

        prediction, over_step = self.result, ""
        if with_picture:
            over_step = still_figure(prediction_figures.memory(prediction).update_layout(title=None))
        held = f"{format_bytes(prediction.memory)} of {format_bytes(int(prediction.cluster.memory.size))}"
        peak = f"Peak: {held}, {prediction.peak.where}, of rank {prediction.peak.rank}"
        return f"<p>{html.prose(peak, longest=300)}</p>{over_step}{tables.memory_table(prediction)}"

    def page(self, measured: Trace | None = None) -> str:
        """Return a document with many more modules than a notebook's output holds.

        Args:
            measured: trace of the same program on real ranks. Adds a table of the modules in which prediction and
                measurement differ most.
        """
        body = self.body(self.MOST_ROWS_OF_PAGE, measured=measured)
        return html.page(self.title, html.fragment(self.head() + body, self.STYLE))

    def figure(self, kind: str = "timeline") -> Any:
        """Return a plotly figure.

        Args:
            kind: ``"timeline"`` draws the streams of one rank, ``"memory"`` the bytes by use over the step, and
                ``"stages"`` which microbatch each stage of a pipeline computes when.

        Raises:
            UsageError: The kind is unknown, or the step has no pipeline whose stages could be drawn.
        """
        from dsexplore._internal.views.cost import prediction_figures  # plotly is loaded when a figure is drawn

        if kind not in KINDS:
            raise UsageError(f"kind {kind!r} is unknown: it is one of {', '.join(KINDS)}")
        return getattr(prediction_figures, kind)(self.result)

    def still(self, figure: Any, kind: str = "timeline", **options: Any) -> str:
        """Return the streams or the stages in lanes, or the memory as areas, as static HTML."""
        prediction = self.result
        if kind == "memory":
            return still_figure(figure)
        if kind == "timeline" or prediction.schedule is None:
            return timeline_html(stream_timeline(prediction))
        return timeline_html(
            timeline_of_stages(prediction.schedule, prediction.stages(), "predicted", prediction.tables)
        )

    def explore(self) -> Any:
        """Return controls for the arguments of `Prediction.what_if`: cluster, overlap, kernels, batch and so on."""
        from dsexplore._internal.views.cost.prediction_explorer import PredictionExplorer

        kinds = [kind for kind in KINDS if kind != "stages" or self.result.schedule is not None]
        return PredictionExplorer(
            self.result, kinds, twin=self, below=lambda prediction: PredictionView(prediction).html_below_controls()
        )
