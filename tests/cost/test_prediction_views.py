"""What a prediction looks like: everything says that it is predicted, and controls answer without a new trace.

Modules: ``views/cost/prediction_view.py``, ``views/cost/prediction_tables.py``, ``views/cost/prediction_explorer.py``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from dsexplore._internal.cost.memory.peak_memory import USES
from dsexplore._internal.cost.step.prediction import Prediction
from dsexplore._internal.errors import UsageError
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.units import format_bytes
from dsexplore._internal.views import view_of
from dsexplore._internal.views.cost.prediction_tables import SECONDS, module_rows


@pytest.fixture(scope="module")
def prediction(traced_llama: Callable[..., Trace]) -> Prediction:
    return traced_llama("dp=2,tp=2", layers=2).predict()


def test_text_and_page_say_that_they_are_predicted(prediction: Prediction, tmp_path: Path) -> None:
    shown = prediction._repr_mimebundle_()
    assert shown["text/plain"].startswith("predicted on DGX H100: ")
    assert "predicted" in shown["text/html"]
    assert "layers" in shown["text/html"]
    page = prediction.to_html(tmp_path / "step.html").read_text()
    assert not re.search(r"<script|https?://", page)


def test_rows_hold_the_modules_inside_and_their_sums_are_the_step(prediction: Prediction) -> None:
    rows = module_rows(prediction)
    frame = prediction.by_module()
    for part in SECONDS:
        outermost = sum(row.parts[part] for row in rows if row.depth == 0)
        assert outermost == pytest.approx(frame[part].sum())
    of_layers = next(row for row in rows if row.fold.label == "layers")
    inside = frame.filter(pl.col("module").str.starts_with("Llama.layers"))
    assert of_layers.parts["compute"] == pytest.approx(inside["compute"].sum())


def test_alike_layers_are_one_row_with_their_sum(traced_llama: Callable[..., Trace]) -> None:
    prediction = traced_llama("dp=2,tp=2", layers=4).predict()
    rows = module_rows(prediction)
    folded = next(row for row in rows if len(row.fold.rows) > 1)
    frame = prediction.by_module()
    names = [f"Llama.layers.{number}" for number in range(4)]
    each = [frame.filter(pl.col("module").str.starts_with(name))["compute"].sum() for name in names]
    assert len(folded.fold.rows) == folded.times == 4
    assert folded.parts["compute"] == pytest.approx(sum(each))
    below = [row for row in rows if row.place > folded.place and row.depth > folded.depth]
    assert {row.times for row in below} == {4}
    html = prediction._repr_mimebundle_()["text/html"]
    assert '<bdi>[0–3]</bdi> <span class="times">×4</span>' in html
    assert 'the sum of 4 modules">Σ 4</span>' in html
    assert "<bdi>1</bdi>" not in html


def test_the_timeline_has_a_row_for_each_stream(prediction: Prediction) -> None:
    figure = prediction.figure()
    rows = {row for bars in figure.data for row in bars.y}
    assert {"compute stream", "FSDP all_gather", "FSDP reduce_scatter"} <= rows
    assert "predicted" in figure.layout.title.text
    kernels = [bars for bars in figure.data if "waiting" not in bars.name]
    busy = sum(x for bars in kernels for x, row in zip(bars.x, bars.y, strict=True) if row == "compute stream")
    assert busy == pytest.approx(prediction.compute.expected * 1e3, rel=1e-4)  # bars end on whole nanoseconds


def test_memory_is_stacked_to_the_peak(prediction: Prediction) -> None:
    figure = prediction.figure(kind="memory")
    tops = [sum(values) for values in zip(*(trace.y for trace in figure.data), strict=True)]
    assert figure.layout.yaxis.title.text == "MiB, predicted"
    assert max(tops) == pytest.approx(prediction.peak.tensors / 2**20)
    assert [trace.name for trace in figure.data] == [use for use in USES if prediction.peak.curve[use].max()]


def test_a_saved_notebook_has_the_streams_and_the_memory_as_drawings(prediction: Prediction) -> None:
    view = view_of(prediction)
    streams, memory = (view.still(view.figure(kind=kind), kind=kind) for kind in ("timeline", "memory"))
    assert 'aria-label="compute stream: ' in streams
    assert "tp collectives" in streams
    assert "predicted on DGX H100, rank 0" in streams
    assert '<svg class="still"' in memory
    assert all((f"{use}</span>" in memory) == bool(prediction.peak.curve[use].max()) for use in USES)
    size = int(prediction.cluster.memory.size)
    assert f"of {format_bytes(size)} on rank 0" in memory
    assert ("memory of the GPU" in memory) == (size <= 2 * prediction.peak.tensors), "drawn where it is near"
    assert "MiB, predicted by program order" in memory


def test_figures_that_cannot_be_are_refused(prediction: Prediction) -> None:
    for options, message in (
        ({"kind": "pie"}, "kind 'pie' is unknown"),
        ({"kind": "stages"}, "no pipeline"),
        ({"color": 1}, "no argument 'color'"),
    ):
        with pytest.raises(UsageError, match=message):
            prediction.figure(**options)


def test_controls_begin_with_what_the_prediction_was_asked_for(prediction: Prediction) -> None:
    box = prediction.what_if(async_tp=True, attention="cudnn").explore()
    assert (box.controls["async_tp"].value, box.controls["attention"].value) == (True, "cudnn")
    assert box.prediction.step == prediction.what_if(async_tp=True, attention="cudnn").step


def test_what_looks_alike_in_the_streams_is_one_entry_of_the_legend(prediction: Prediction) -> None:
    bars = prediction.figure().data
    assert len({bar.marker.color for bar in bars}) == len(bars)
    assert {"F forward", "B backward", "– waiting"} <= {bar.name for bar in bars}


def test_controls_show_what_the_program_asked(prediction: Prediction) -> None:
    box = prediction.explore()
    assert box.controls["compiled"].value == "as in the program"
    assert "as it was traced" in box.message.value
    box.controls["compiled"].value = "compiled"
    assert box.prediction.step == prediction.what_if(compiled=True).step
    compiled = prediction.what_if(compiled=True).explore()
    assert compiled.controls["compiled"].value == "compiled"


def test_controls_answer_and_say_when_a_new_trace_is_needed(prediction: Prediction) -> None:
    box = prediction.explore()
    box.controls["overlap"].value = False
    assert box.prediction.step == prediction.what_if(overlap=False).step
    box.controls["overlap"].value = True
    box.controls["async_tp"].value = True
    assert box.prediction.options.async_tp
    assert box.prediction.step == prediction.what_if(async_tp=True).step
    box.controls["async_tp"].value = False
    box.controls["attention"].value = "cudnn"
    assert box.prediction.options.attention == "cudnn"
    assert box.prediction.compute.expected == prediction.what_if(attention="cudnn").compute.expected
    assert "without a new trace" in box.message.value
    box.controls["sequence"].value = 2.0
    assert "new trace" in box.message.value
    box.controls["sequence"].value = 1.0
    box.controls["hardware"].value = "dgx-a100"
    assert box.prediction.cluster.name == "dgx-a100"
