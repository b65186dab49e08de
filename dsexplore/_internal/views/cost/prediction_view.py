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
from dsexplore._internal.views.view import View

KINDS = ("timeline", "memory", "stages")
_MOST_ROWS, _MOST_ROWS_OF_PAGE = 40, 2_000
_BESIDE_CONTROLS = ".dsx-beside-controls .widget-html-content{min-width:0;overflow:auto}\n"


class PredictionView(View):
    """The view of a `Prediction`."""

    title = "Predicted step"

    def __init__(self, prediction: Prediction) -> None:
        self._prediction = prediction

    def text(self) -> str:
        """Return the step, its parts and memory, in about five lines."""
        prediction = self._prediction
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

    def html(self, most: int = _MOST_ROWS, drawn: bool = True, measured: Trace | None = None) -> str:
        """Return the headline, bars, the streams in time, tables by module and by axis, and memory over the step.

        Args:
            most: maximal number of modules in the table.
            drawn: whether streams and memory are drawn, too.
            measured: see `page`.
        """
        prediction = self._prediction
        compared = ""
        if measured is not None:
            title = "Predicted beside measured, largest differences first"
            compared = html.verdict(measured_sentence(prediction, measured))
            compared += html.details(title, tables.beside_table(prediction, measured), opened=True)
        body = [
            html.conclusion(f"A step on {prediction.cluster.title}", "predicted", prediction.verdict()),
            html.sentences(prediction.why_wide(), longest=400),
            compared,
            tables.parts_table(prediction),
            timeline_drawing.drawing(stream_timeline(prediction)) if drawn else "",
            html.details(
                "By module (predicted; with the modules inside, Σ: the sum over repeated modules)",
                tables.modules_table(prediction, most),
                opened=True,
            ),
            html.details("Communication by mesh axis (predicted)", tables.axes_table(prediction)),
            html.details("What makes the range of the step wide", tables.causes_table(prediction)),
            html.details("Memory over the step (predicted)", self._memory(drawn), opened=drawn),
            html.notes(prediction.notes, longest=400),
        ]
        style = _BESIDE_CONTROLS + tables.STYLE + timeline_drawing.STYLE
        return html.fragment(f'<div class="prediction">{"".join(body)}</div>', style)

    def _memory(self, drawn: bool) -> str:
        """Return the peak, the memory over the step as areas where asked for, and its table."""
        from dsexplore._internal.views.cost import prediction_figures  # plotly is loaded when a figure is drawn

        prediction = self._prediction
        over_step = still_figure(prediction_figures.memory(prediction).update_layout(title=None)) if drawn else ""
        held = f"{format_bytes(prediction.memory)} of {format_bytes(int(prediction.cluster.memory.size))}"
        peak = f"Peak: {held}, {prediction.peak.where}, of rank {prediction.peak.rank}"
        return f"<p>{html.prose(peak, longest=300)}</p>{over_step}{tables.memory_table(prediction)}"

    def page(self, measured: Trace | None = None) -> str:
        """Return a document with many more modules than a notebook's output holds.

        Args:
            measured: a trace of the same program on real ranks; adds where prediction and measurement differ, per
                module.
        """
        return html.page(self.title, self.html(_MOST_ROWS_OF_PAGE, measured=measured))

    def figure(self, kind: str = "timeline") -> Any:
        """Return a plotly figure.

        Args:
            kind: ``"timeline"``, the streams of one rank; ``"memory"``, bytes by use through the step; ``"stages"``,
                which microbatch each stage of a pipeline computes when. All of them are predicted.

        Raises:
            UsageError: an unknown kind, or stages of a step without a pipeline.
        """
        from dsexplore._internal.views.cost import prediction_figures  # plotly is loaded when a figure is drawn

        if kind not in KINDS:
            raise UsageError(f"kind {kind!r} is unknown: it is one of {', '.join(KINDS)}")
        return getattr(prediction_figures, kind)(self._prediction)

    def still(self, figure: Any, kind: str = "timeline", **options: Any) -> str:
        """Return the streams or the stages in lanes, or the memory as areas, as static HTML."""
        prediction = self._prediction
        if kind == "memory":
            return still_figure(figure)
        if kind == "timeline" or prediction.schedule is None:
            return timeline_html(stream_timeline(prediction))
        return timeline_html(
            timeline_of_stages(prediction.schedule, prediction.stages(), "predicted", prediction.tables)
        )

    def explore(self) -> Any:
        """Return controls for the arguments of `Prediction.what_if`: cluster, overlap, kernels, batch and so on."""
        from dsexplore._internal.views.cost.prediction_explorer import explorer

        kinds = [kind for kind in KINDS if kind != "stages" or self._prediction.schedule is not None]
        return explorer(self._prediction, kinds, self, lambda prediction: PredictionView(prediction).html(drawn=False))
