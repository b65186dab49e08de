"""Predicted steps as timelines: streams with their collectives, and a pipeline's stages with bubble and warm-up."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import polars as pl
import pytest

from docs import pictured_programs
from dsexplore._internal.analysis.step_timeline import SPANS, WAITING, Timeline
from dsexplore._internal.errors import UsageError
from dsexplore._internal.trace.tables import Tables, TraceInfo
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.units import format_seconds, format_share
from dsexplore._internal.views.timeline.boxes import Coded, boxes, extent
from dsexplore._internal.views.timeline.mark_colors import colors_of


@pytest.fixture(scope="module")
def llama(traced_llama: Callable[..., Trace]) -> Trace:
    return traced_llama("dp=4,tp=2")


def pipeline(name: str = "Schedule1F1B", stages: int = 4, microbatches: int = 8) -> Trace:
    schedule = {"schedule": name, "stages": stages, "microbatches": microbatches, "order": {}}
    return Trace(Tables(info=TraceInfo(world_size=stages, ranks=(0,), schedule=json.dumps(schedule))))


def test_a_stream_is_a_lane_and_spans_are_those_of_the_prediction(llama: Trace) -> None:
    timeline, predicted = llama.timeline(hardware="dgx-h100"), llama.predict("dgx-h100")
    assert timeline.order == "predicted"
    assert timeline.lanes[0] == "compute stream"
    assert set(timeline.lanes[1:]) == set(predicted.timeline().filter(kind="communication")["stream"])
    assert timeline.spans.height == predicted.timeline().height
    assert timeline.spans["end"].max() == predicted.timeline()["end"].max()
    assert str(predicted.step) in timeline.note
    gaps = timeline.spans.filter(mark=WAITING).with_columns(seconds=pl.col("end") - pl.col("begin"))
    idle = gaps.filter(pl.col("name").str.contains("CPU"))["seconds"].sum()
    assert (idle, gaps["seconds"].sum() - idle) == pytest.approx((predicted.idle.expected, predicted.exposed.expected))


@pytest.mark.parametrize("axes", ["dp=4,tp=2", "dp=2,tp=4"])
def test_it_says_the_same_shares_of_the_step_as_the_prediction(traced_llama: Callable[..., Trace], axes: str) -> None:
    trace = traced_llama(axes)
    predicted = trace.predict("dgx-h100")
    verdict = trace.timeline(hardware="dgx-h100").verdict()
    assert verdict.startswith(f"In a step of {format_seconds(predicted.step.expected)} the GPU ")
    for word, part in (("is idle", predicted.idle), ("exposed communication", predicted.exposed)):
        share = format_share(part.expected, predicted.step.expected)
        assert (word in verdict) == (part.expected > 0)
        assert (f": {format_seconds(part.expected)} ({share})" in verdict) == (part.expected > 0)
    largest = re.search(r", (\d+)\s%\sof it idle", predicted._repr_mimebundle_()["text/html"])
    assert largest is not None
    assert f"({largest[1]} %)" in verdict


def test_its_collectives_are_events_so_that_a_range_is_a_trace(llama: Trace) -> None:
    timeline = llama.timeline(hardware="dgx-h100", color_by="op")
    sent = timeline.spans.filter(pl.col("row").is_not_null())
    events = llama.events[sent["row"].to_list()]
    assert sent["name"].to_list() == events["op"].to_list()
    assert sent["bytes"].to_list() == events["wire_bytes"].to_list()
    assert len(timeline.between(0, timeline.spans["end"].max())) == sent.height > 0
    explorer = timeline.explore()
    explorer.select(0, float(sent["end"].median()))
    assert 0 < len(explorer.selection) < sent.height


def test_its_collectives_are_drawn_as_long_as_they_take(llama: Trace) -> None:
    """A lane of collectives looks as empty as it is: a box each, from its begin, as wide as its time."""
    timeline = llama.timeline(hardware="dgx-h100")
    first, last = extent(timeline)
    lanes = re.findall(r'<svg viewBox="0 0 160 12".*?</svg>', timeline._repr_mimebundle_()["text/html"], re.S)
    assert len(lanes) == len(timeline.lanes)
    for name, drawn in list(zip(timeline.lanes, lanes, strict=True))[1:]:
        marks = sorted((float(at), float(width)) for at, width in re.findall(r"M([\d.e-]+) [\d.]+h([\d.e-]+)v", drawn))
        spans = timeline.spans.filter(lane=name).sort("begin")
        widths = 160 * (spans["end"] - spans["begin"]) / (last - first)
        assert [at for at, _ in marks] == pytest.approx(
            (160 * (spans["begin"] - first) / (last - first)).to_list(), abs=0.05
        )
        assert [width for _, width in marks] == pytest.approx([max(width - 0.2, 0.2) for width in widths], abs=0.01)


def test_stages_compute_each_microbatch_and_wait_for_one_another() -> None:
    timeline = pipeline().timeline(lanes="stage")
    assert timeline.lanes == ("stage 0", "stage 1", "stage 2", "stage 3")
    spans = timeline.spans
    work = spans.filter(pl.col("mark") != WAITING)
    assert work.height == 4 * 2 * 8
    assert work.filter(lane="stage 3")["label"].to_list()[:4] == ["F0", "B0", "F1", "B1"]
    assert spans["end"].max() == 8 * 3 + 3 * 3  # (microbatches + stages - 1) × (forward + backward)
    idle = spans.filter(mark=WAITING).select((pl.col("end") - pl.col("begin")).sum()).item()
    assert idle == 4 * 3 * 3
    assert "wait 27 % of the time" in timeline.verdict()  # 3 / 11, as the 1F1B bubble is


def test_predicted_stages_say_the_step_of_the_prediction_beside_the_schedule() -> None:
    trace = pictured_programs.pipeline()
    timeline, step = trace.timeline(lanes="stage", hardware="dgx-h100"), trace.predict("dgx-h100").step.expected
    scheduled = float(timeline.spans["end"].max() or 0)
    assert scheduled < step
    assert f"of the schedule's {format_seconds(scheduled)}, the pipeline's bubble" in timeline.verdict()
    assert timeline.verdict().endswith(f"a step takes {format_seconds(step)}.")


@pytest.mark.parametrize("microbatches", [8, 64])
def test_the_bubble_is_seen_however_many_microbatches_there_are(microbatches: int) -> None:
    timeline = pipeline(microbatches=microbatches).timeline(lanes="stage")
    html = timeline._repr_mimebundle_()["text/html"]
    assert "</span> waiting</span>" in html  # in the key
    drawn = boxes(Coded(timeline), extent(timeline))
    colors = colors_of(timeline)
    assert {"waiting", "forward", "backward"} == {colors[mark].name for mark in drawn.mark}
    tall = {float(level) for mark, level in zip(drawn.mark, drawn.level, strict=True) if colors[mark].name == "waiting"}
    assert max(tall) == 1


def test_sends_are_tied_to_receives_forward_and_back() -> None:
    ties = pipeline().timeline(lanes="stage").ties
    assert ties.height == 2 * 3 * 8
    assert (ties["received"] >= ties["sent"]).all()
    onward = ties.filter(pl.col("from_lane") < pl.col("to_lane"))
    assert onward.height == 3 * 8


def test_stages_are_drawn_with_their_labels_and_lines() -> None:
    html = pipeline().timeline(lanes="stage")._repr_mimebundle_()["text/html"]
    assert ">F0</b></i>" in html
    assert ">B7</b></i>" in html
    assert "48 messages between lanes" in html
    drawn = pipeline().timeline(lanes="stage").explore().widget.timeline
    assert {"F0", "B7", ""} <= set(drawn["labels"])
    assert len(drawn["ties"]) == 48


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lanes": "stage"}, "no pipeline"),
        ({"lanes": "rank", "hardware": "dgx-h100"}, "predicted lanes are stream, stage"),
        ({"color_by": "rank", "hardware": "dgx-h100"}, "predicted colors are phase, axis, op"),
        ({"sizes": "all", "hardware": "dgx-h100"}, "no such sizes"),
    ],
)
def test_what_cannot_be_drawn_is_refused(llama: Trace, options: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        llama.timeline(**options)  # type: ignore[arg-type]  # on purpose


def test_a_stream_that_is_busy_for_a_third_of_a_column_shows_it_beside_waiting() -> None:
    """Kernels of 1 ms, each after 2 ms of waiting, and a long wait at the end: drawn in columns of 30 ms."""
    kernels = [(3.0 * i, 3.0 * i + 1, "forward") for i in range(100)]
    gaps = [(begin + 1, begin + (3 if i < 99 else 303), WAITING) for i, (begin, *_) in enumerate(kernels)]
    rows = [{"lane": "compute", "begin": a, "end": b, "mark": mark} for a, b, mark in sorted(kernels + gaps)]
    timeline = Timeline(
        pl.DataFrame(rows, schema=SPANS), ("compute",), ("forward", WAITING), "predicted", "phase", Tables()
    )
    drawn = boxes(Coded(timeline), (0.0, 600.0), columns=20, most=0)
    assert drawn.mark.tolist() == [1, 0] * 10 + [1] * 10  # waiting up to the top, the kernels' share in front of it
    assert drawn.level.tolist() == pytest.approx([1, 1 / 3] * 10 + [1] * 10)
    assert drawn.end[-1] == 1
    whole = boxes(Coded(timeline), (0.0, 600.0))
    assert set(whole.level.tolist()) == {1.0}  # true widths, where each is drawn
