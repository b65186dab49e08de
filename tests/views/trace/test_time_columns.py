"""Predicted seconds in the tree of a trace and of a difference: of the right modules, and marked as predicted."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

import dsexplore
from dsexplore._internal.cost.step.prediction import Prediction
from dsexplore._internal.errors import UsageError
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.units import format_seconds
from dsexplore._internal.views.trace.event_codes import EventCodes
from dsexplore._internal.views.trace.folding import Fold
from dsexplore._internal.views.trace.time_columns import step_seconds, time_columns


def trace_of(width: int) -> Trace:
    with dsexplore.simulate(4, fake=True) as mesh:
        model = nn.Sequential(*(nn.Sequential(nn.Linear(width, width, bias=False), nn.ReLU()) for _ in range(6)))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        with dsexplore.commtrace(costs=True) as trace:
            model(torch.randn(1024, width)).sum().backward()
    return trace


@pytest.fixture(scope="module")
def trace() -> Trace:
    return trace_of(512)


@pytest.fixture(scope="module")
def prediction(trace: Trace) -> Prediction:
    return trace.predict()


def test_seconds_of_a_module_hold_those_inside_it(trace: Trace, prediction: Prediction) -> None:
    tree = EventCodes(trace.tables).tree
    columns = {column.title: column.seconds for column in time_columns(tree, prediction)}
    assert list(columns) == ["compute (pred.)", "comm. (pred.)", "exposed (pred.)", "idle (pred.)"]
    outside = prediction.by_module().filter(module="")["exposed"].sum()
    root = tree.row_of["Sequential"]
    assert columns["exposed (pred.)"][root] + outside == pytest.approx(prediction.exposed.expected)
    for name in ("compute", "idle"):
        inside = sum(columns[f"{name} (pred.)"][tree.row_of[f"Sequential.{number}"]] for number in range(6))
        own = prediction.by_module().filter(module="Sequential")[name].sum()
        assert columns[f"{name} (pred.)"][root] == pytest.approx(inside + own)
    everything = prediction.by_module().filter(module="").select("compute", "idle", "exposed").sum().sum_horizontal()[0]
    assert step_seconds(tree, prediction)[root] + everything == pytest.approx(prediction.step.expected)


def test_a_folded_line_sums_modules_that_take_different_times(trace: Trace, prediction: Prediction) -> None:
    codes = EventCodes(trace.tables)
    exposed = time_columns(codes.tree, prediction)[2].seconds
    seen: dict[int, int] = {}

    def walk(folds: list[Fold]) -> None:
        for fold in folds:
            for row in codes.folds.members(fold.first):
                seen[row] = seen.get(row, 0) + 1
            walk(codes.folds.children(fold.first))

    walk(codes.folds.roots())
    assert set(seen) == set(range(len(codes.tree)))
    assert set(seen.values()) == {1}
    layers = [codes.tree.row_of[f"Sequential.{number}"] for number in range(6)]
    assert len({round(float(exposed[row]), 12) for row in layers}) > 1


def heads_of(page: str) -> str:
    """Return the text of the tree's first row."""
    row = page[page.index('class="row head"') :].partition("</div>")[0]
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", row))


def test_pages_show_predicted_seconds_and_say_so(trace: Trace, prediction: Prediction, tmp_path: Path) -> None:
    plain = trace.to_html(tmp_path / "plain.html").read_text()
    assert "predicted" not in plain
    page = trace.to_html(tmp_path / "timed.html", hardware="dgx-h100").read_text()
    assert "All times here are predicted, not measured." in page
    assert "compute (pred.) comm. (pred.) exposed (pred.) idle (pred.)" in heads_of(page)
    wider = trace.diff(trace_of(1024))
    assert "predicted" not in wider.to_html(tmp_path / "plain-diff.html").read_text()
    difference = wider.to_html(tmp_path / "diff.html", hardware="dgx-h100").read_text()
    assert "time A (pred.) time B (pred.) ± time (pred.)" in heads_of(difference)
    assert str(prediction.step) in difference


def test_a_trace_without_costs_has_no_seconds_to_show(tmp_path: Path) -> None:
    with dsexplore.commtrace(world_size=2) as trace:
        torch.distributed.all_reduce(torch.ones(4))
    with pytest.raises(UsageError, match="costs=True"):
        trace.to_html(tmp_path / "page.html", hardware="dgx-h100")


def test_the_headline_has_predicted_milliseconds_by_axis(trace: Trace, prediction: Prediction, tmp_path: Path) -> None:
    page = trace.to_html(tmp_path / "timed.html", hardware="dgx-h100").read_text()
    words = re.sub(r"<[^>]+>", "", page.partition("</style>")[2])
    (row,) = prediction.by_axis().group_by("axis").agg(pl.col("communication", "exposed").sum()).to_dicts()
    took, exposed = format_seconds(row["communication"]), format_seconds(row["exposed"])
    assert "Wire bytes and predicted time (exposed part) per rank and step:" in words
    assert re.search(rf"[\d.]+ MiB, {re.escape(took)} \({re.escape(exposed)}\)", words)
    assert f"A step takes {prediction.step} on DGX H100 (rank 0); for {prediction.exposed} of it" in words


def test_the_explorer_shows_predicted_seconds_that_no_filter_changes(trace: Trace, prediction: Prediction) -> None:
    explorer = trace.explore(hardware="dgx-h100")
    tree = EventCodes(trace.tables).tree
    for wanted in time_columns(tree, prediction):
        assert [wanted.title, "seconds", wanted.explanation] in explorer.widget.titles
    before = shown(explorer, "exposed (pred.)")
    assert before[tree.row_of["Sequential"]] == pytest.approx(
        time_columns(tree, prediction)[2].seconds[tree.row_of["Sequential"]], rel=1e-6
    )
    explorer.filter(phase="forward")
    assert shown(explorer, "exposed (pred.)") == before
    assert "predicted, not measured" in explorer.widget.headline
    assert not any(unit == "seconds" for _, unit, _ in trace.explore().widget.titles)


def shown(explorer: Any, title: str) -> list[float]:
    """Return a column of the explorer's tree."""
    place = explorer.widget.columns[[each[0] for each in explorer.widget.titles].index(title)]
    values = np.frombuffer(explorer.widget.values, np.float32).reshape(-1, len(explorer.widget.labels))
    found: list[float] = values[place].tolist() if place >= 0 else [0.0] * len(explorer.widget.labels)
    return found


def test_measured_times_are_sums_that_follow_the_filters(tmp_path: Path) -> None:
    tables = trace_of(64).tables
    starts = pl.int_range(pl.len(), dtype=pl.Int64) * 1_000_000
    events = tables.events.with_columns(starts.alias("start"), (starts + 500_000).alias("end"))
    timed = Trace(replace(tables, events=events))
    half_a_millisecond = pytest.approx(len(timed) * 5e-4, rel=1e-5)
    explorer = timed.explore()
    assert shown(explorer, "time")[0] == half_a_millisecond
    explorer.filter(phase="backward")
    assert shown(explorer, "time")[0] == pytest.approx(len(timed.where(phase="backward")) * 5e-4, rel=1e-5)
    page = timed.to_html(tmp_path / "timed.html").read_text()
    assert "bytes share time self forward" in heads_of(page)
    assert f'<span class="c">{format_seconds(len(timed) * 5e-4)}</span>' in page
