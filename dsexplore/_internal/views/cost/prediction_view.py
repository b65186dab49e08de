"""The static view of a prediction: the step and its parts, time by module, communication by axis, and memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from dsexplore._internal.cost.step.beside_measured import beside, measured_sentence
from dsexplore._internal.cost.step.predicted_timeline import stream_timeline, timeline_of_stages
from dsexplore._internal.cost.step.prediction import Prediction
from dsexplore._internal.errors import UsageError
from dsexplore._internal.trace.numbered_modules import OUTSIDE
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.units import format_bytes, format_count, format_seconds, format_share
from dsexplore._internal.views.cost.module_seconds import module_seconds
from dsexplore._internal.views.page import html
from dsexplore._internal.views.page.still_figure import still_figure
from dsexplore._internal.views.page.theme import ALARM, SERIES, WAITING
from dsexplore._internal.views.timeline import timeline_drawing
from dsexplore._internal.views.timeline.timeline_drawing import timeline_html
from dsexplore._internal.views.trace import outline
from dsexplore._internal.views.view import View

KINDS = ("timeline", "memory", "stages")
PARTS = {"compute": SERIES[2], "exposed": ALARM, "idle": WAITING}
"""Parts of a step, with their colors."""
_WORDS = {"compute": "compute", "exposed": "exposed communication", "idle": "idle"}
_PARTS = ("compute", "communication", "exposed", "idle")
_MOST_ROWS, _MOST_ROWS_OF_PAGE = 40, 2_000
STYLE = """
.dsx-beside-controls .widget-html-content{min-width:0;overflow:auto}
.dsx .prediction .sum{color:var(--dsx-dim);font-size:var(--dsx-tiny)}
.dsx .prediction td{vertical-align:middle}
.dsx .prediction .bar{width:min(220px,15vw);display:flex;height:14px}
.dsx .prediction .bar span{display:block;height:14px}
.dsx .prediction .part{display:inline-block;width:14px;height:11px;margin-right:5px;vertical-align:-1px}
"""


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
            *(f"  {html.plain(line, 400)}" for line in why_wide(prediction)),
            f"  memory {memory}, most {prediction.peak.where}",
            *(f"  {html.plain(note, 400)}" for note in prediction.notes),
        ]
        if prediction.memory.verdict != "fits":
            lines += [f"  to need less: {html.plain(str(saving), 200)}" for saving in prediction.memory.savings[:3]]
        return "\n".join(lines)

    def html(self, most: int = _MOST_ROWS, drawn: bool = True, measured: Trace | None = None) -> str:
        """Return the headline, bars, the streams in time, tables by module and by axis, and memory over the step.

        Args:
            most: maximal number of modules in the table.
            drawn: whether streams and memory are drawn, too.
            measured: see `page`.
        """
        prediction = self._prediction
        head = f'<p>A step on {html.escape(prediction.cluster.title)} <span class="tag">predicted</span></p>'
        notes = "".join(f'<p class="dim">{html.escape(note, 400)}</p>' for note in prediction.notes)
        body = [
            head,
            html.verdict(self._verdict),
            html.sentences(why_wide(prediction), 400),
            _beside(prediction, measured) if measured is not None else "",
            _totals(prediction),
            timeline_drawing.drawing(stream_timeline(prediction)) if drawn else "",
            html.details(
                "By module (predicted; with the modules inside, Σ: the sum over repeated modules)",
                _modules(prediction, most),
                opened=True,
            ),
            html.details("Communication by mesh axis (predicted)", _axes(prediction)),
            html.details("What makes the range of the step wide", _causes(prediction)),
            html.details("Memory over the step (predicted)", _memory(prediction, drawn), opened=drawn),
            notes,
        ]
        return html.fragment(f'<div class="prediction">{"".join(body)}</div>', STYLE + timeline_drawing.STYLE)

    @property
    def _verdict(self) -> str:
        """Step's time with its range, what most of it is, and whether its memory fits."""
        prediction = self._prediction
        parts = {name: getattr(prediction, name).expected for name in PARTS}
        largest = max(parts, key=lambda name: parts[name])
        share = (
            f", {format_share(parts[largest], prediction.step.expected)} of it {_WORDS[largest]}"
            if prediction.step.expected
            else ""
        )
        size = int(prediction.cluster.memory.size)
        fits = {"fits": "fit in", "fits barely": "barely fit in"}.get(prediction.memory.verdict, "do not fit in")
        memory = f"{format_bytes(prediction.memory)} {fits} {format_bytes(size)} of memory"
        return f"A step takes {prediction.step}{share}; {memory}."

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


def why_wide(prediction: Prediction) -> list[str]:
    """Return a sentence on the widest part of the range of the step; none if the range has no width."""
    why = prediction.step.why
    return [f"Widest part of the range: {why}."] if why else []


def bar(parts: Mapping[str, float], whole: float) -> str:
    """Return a bar of compute, exposed and idle seconds; ``whole``: seconds of a full-length bar."""
    spans = "".join(
        f'<span style="width:{100 * parts[name] / whole:.2f}%;background:{color}" '
        f'title="{name} {format_seconds(parts[name])}"></span>'
        for name, color in PARTS.items()
        if parts[name] > 0
    )
    return f'<div class="bar">{spans}</div>' if whole > 0 else ""


def _key(name: str) -> str:
    """Return the color of a part in the bars; empty for the whole step."""
    return f'<span class="part" style="background:{PARTS[name]}"></span>' if name in PARTS else ""


def _totals(prediction: Prediction) -> str:
    """Return a bar of the step, and a table with one row per part and its range."""
    ranges = {
        "step": prediction.step,
        "compute": prediction.compute,
        "exposed": prediction.exposed,
        "idle": prediction.idle,
    }
    rows = [
        (
            f"{_key(name)}{name}",
            format_seconds(value.expected),
            format_seconds(value.low),
            format_seconds(value.high),
            html.prose(format_share(value.expected, prediction.step.expected), 0) if prediction.step.expected else "",
        )
        for name, value in ranges.items()
    ]
    parts = {name: ranges[name].expected for name in PARTS}
    return bar(parts, sum(parts.values())) + html.table(("", "expected", "low", "high", "of the step"), rows)


def _modules(prediction: Prediction, most: int) -> str:
    """Return a row per module, with identical ones folded as in a trace's tree; numbers are sums."""
    rows = module_seconds(prediction)
    largest = max((_busy(row.parts) for row in rows), default=0.0)
    chosen = {row.place for row in sorted(rows, key=lambda row: -_busy(row.parts))[:most]}
    cells = [
        (
            f"{'&nbsp;' * 2 * row.depth}{html.name(row.fold.label or OUTSIDE)}{outline.many(row.fold, row.times)}",
            bar(row.parts, largest),
            *(format_seconds(row.parts[part]) for part in _PARTS),
        )
        for row in rows
        if row.place in chosen
    ]
    left = len(rows) - len(cells)
    more = f'<p class="dim">… and {left:,} shorter rows: <code>by_module()</code> has all modules</p>' if left else ""
    return html.table(("module", "", *_PARTS), cells, left=(0, 1)) + more


def _beside(prediction: Prediction, measured: Trace) -> str:
    """Return how long a step took where it was measured, and the modules and phases that differ most."""
    columns = pl.col("communication_measured", "exposed_measured", "between_measured")
    frame = beside(prediction, measured).with_columns(is_measured=pl.any_horizontal(columns > 0).fill_null(False))
    left_out = frame.filter(~pl.col("is_measured")).height
    frame = frame.filter("is_measured").head(_MOST_ROWS)
    shown = ("exposed", "exposed_measured", "compute", "between_measured", "communication", "communication_measured")
    rows = []
    for row in frame.iter_rows(named=True):
        seconds = ["unknown" if row[name] is None else format_seconds(row[name]) for name in shown]
        off = "–" if row["off"] is None else f"{'+' if row['off'] >= 0 else '−'}{format_seconds(abs(row['off']))}"
        rows.append((html.name(row["module"] or "(outside modules)"), html.escape(row["phase"]), *seconds, off))
    measures = ("exposed", "compute", "communication")
    head = ("module", "phase", *(f"{name}, {how}" for name in measures for how in ("predicted", "measured")))
    waits = (
        " Unknown: the trace saw no wait for these collectives, so what is exposed counts as compute of what follows."
        if frame["exposed_measured"].null_count()
        else ""
    )
    hidden = f" {format_count(left_out, 'row')} of modules that call none are left out." if left_out else ""
    said = (
        '<p class="dim">Times are measured at collectives: what a rank computes between two of them counts as compute '
        f"of the module that calls the second one.{waits}{hidden}</p>"
    )
    body = html.table((*head, "predicted − measured"), rows, left=(0, 1)) + said
    said = html.verdict(measured_sentence(prediction, measured))
    return said + html.details("Predicted beside measured, largest differences first", body, opened=True)


def _busy(parts: Mapping[str, float]) -> float:
    return parts["compute"] + parts["exposed"] + parts["idle"]


def _axes(prediction: Prediction) -> str:
    rows = [
        (
            html.name(row["axis"] or "–"),
            html.escape(row["op"]),
            f"{row['count']:,}",
            format_seconds(row["communication"]),
            format_seconds(row["exposed"]),
        )
        for row in prediction.by_axis().iter_rows(named=True)
    ]
    return html.table(("axis", "op", "count", "time", "exposed"), rows, left=(0, 1)) if rows else "<p>none</p>"


def _causes(prediction: Prediction) -> str:
    rows = [
        (
            html.escape(row["what"]),
            *(format_seconds(row[end]) for end in ("low", "expected", "high")),
            format_share(row["share"], 1.0),
            html.escape(row["why"]),
        )
        for row in prediction.by_cause().iter_rows(named=True)
    ]
    head = ("what", "low", "expected", "high", "of the width", "why it is not known better")
    return html.table(head, rows, left=(0, 5), wrap=(5,)) if rows else "<p>The range has no width.</p>"


def _memory(prediction: Prediction, drawn: bool) -> str:
    from dsexplore._internal.views.cost import prediction_figures  # plotly is loaded when a figure is drawn

    over_step = still_figure(prediction_figures.memory(prediction).update_layout(title=None)) if drawn else ""
    rows = [(html.escape(use), format_bytes(size)) for use, size in prediction.peak.parts.items()]
    rows.append(("tensors together", format_bytes(prediction.peak.tensors)))
    rows.append(("held by the allocator", format_bytes(prediction.memory)))
    rows.append(("outside the allocator", format_bytes(prediction.memory.outside)))
    size = format_bytes(int(prediction.cluster.memory.size))
    peak = f"Peak: {format_bytes(prediction.memory)} of {size}, {prediction.peak.where}, of rank {prediction.peak.rank}"
    head = f"<p>{html.prose(peak, 300)}</p>{over_step}"
    return head + html.table(("", "bytes"), rows) + _savings(prediction)


def _savings(prediction: Prediction) -> str:
    """Return a table of what would need less memory: each at most so many bytes, for at most so many seconds."""
    rows = [
        (html.escape(saving.what, 120), format_bytes(saving.frees), format_seconds(saving.seconds))
        for saving in prediction.memory.savings
    ]
    return html.table(("to need less", "frees up to", "a step longer by up to"), rows) if rows else ""
