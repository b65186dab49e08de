"""A predicted step beside a measured one: seconds per module, and what is not measured."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

import dsexplore
from dsexplore._internal.errors import UsageError
from dsexplore._internal.trace.trace import Trace
from dsexplore.cost import beside


@pytest.fixture(scope="module")
def simulated() -> Trace:
    with dsexplore.simulate(2, fake=True) as mesh:
        model = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(3)))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        with dsexplore.commtrace(costs=True) as trace:
            model(torch.randn(64, 256)).sum().backward()
    return trace


def measured(trace: Trace, steps: int) -> Trace:
    """Return the same collectives with times: each begins 1 ms after the one before and takes 0.4 ms; the first step
    takes ten times as long."""
    parts = []
    for step in range(steps):
        unit = 10_000_000 if step == 0 else 1_000_000
        at = pl.int_range(pl.len()) * unit + step * 10**9
        parts.append(
            trace.events.with_columns(
                step=pl.lit(step, pl.Int32),
                seq=pl.col("seq") + step * trace.events.height,
                start=at,
                end=at + unit * 4 // 10,
                state=pl.lit("completed"),
                is_async=pl.lit(False),
            )
        )
    return Trace(replace(trace.tables, events=pl.concat(parts)))


def test_seconds_are_those_of_one_step_without_the_first(simulated: Trace) -> None:
    frame = beside(simulated.predict(), measured(simulated, 3))
    count = simulated.events.filter(pl.col("phase") != "start-up").height
    assert frame["communication_measured"].sum() == pytest.approx(count * 0.4e-3)
    assert frame["exposed_measured"].sum() == pytest.approx(count * 0.4e-3)
    assert frame["between_measured"].sum() == pytest.approx((count - 1) * 0.6e-3)
    prediction = simulated.predict()
    assert frame["exposed"].sum() == pytest.approx(prediction.exposed.expected)
    assert frame["compute"].sum() == pytest.approx(prediction.compute.expected + prediction.idle.expected)
    parted = pl.col("exposed") + pl.col("compute") - pl.col("exposed_measured") - pl.col("between_measured")
    assert frame["off"].to_list() == pytest.approx(frame.select(parted).to_series().to_list())
    assert frame["off"].abs().is_sorted(descending=True)


def test_the_page_names_the_modules_where_both_part(simulated: Trace, tmp_path: object) -> None:
    page = simulated.predict().to_html(f"{tmp_path}/beside.html", measured=measured(simulated, 2)).read_text()
    assert "Predicted beside measured" in page
    assert "exposed, measured" in page
    assert "Predicted beside" not in simulated.predict().to_html(f"{tmp_path}/alone.html").read_text()


def test_the_page_says_how_long_a_step_took_and_whether_that_was_predicted(simulated: Trace, tmp_path: Path) -> None:
    """Steps begin one second apart, which no prediction of so small a step reaches."""
    page = simulated.predict().to_html(tmp_path / "page.html", measured=measured(simulated, 3)).read_text()
    said = "Measured: 1 s from a step's first collective to the next step's, longer than the predicted "
    assert page.replace("&#x27;", "'").count(said) == 1
    alone = simulated.predict().to_html(tmp_path / "alone.html", measured=measured(simulated, 1)).read_text()
    assert "to the end of its last" in alone


def test_a_wait_that_nobody_recorded_is_unknown(simulated: Trace, tmp_path: Path) -> None:
    """Of an asynchronous collective for which no call waits it is not known how long the program waited."""
    trace = measured(simulated, 3)
    unseen = trace.events.with_columns(is_async=pl.lit(True), waited=pl.lit(None, pl.Int64))
    trace = Trace(replace(trace.tables, events=unseen))
    prediction = simulated.predict()
    frame = beside(prediction, trace)
    called = pl.col("communication_measured") > 0
    assert (
        frame.filter(called).select("exposed_measured", "off").null_count().row(0) == (frame.filter(called).height,) * 2
    )
    assert frame.filter(~called).select("exposed_measured", "off").null_count().row(0) == (0, 0)
    page = prediction.to_html(tmp_path / "page.html", measured=trace).read_text()
    assert ">unknown<" in page
    assert "so their exposed time counts as compute" in page


def test_a_trace_without_times_cannot_stand_beside(simulated: Trace) -> None:
    with pytest.raises(UsageError, match="no measured times"):
        beside(simulated.predict(), simulated)


def test_a_page_leaves_out_modules_of_which_nothing_was_measured(simulated: Trace, tmp_path: Path) -> None:
    page = simulated.predict().to_html(tmp_path / "page.html", measured=measured(simulated, 3)).read_text()
    table = page.partition("Predicted beside measured")[2]
    rows = re.findall("<tr.*?</tr>", table, re.S)
    assert len(rows) > 1
    assert {row.count(">–<") for row in rows[1:]} == {0}
    assert re.search("[0-9]+ rows? of modules without collectives are not shown", table)
