"""What a step would take: sums, limits, and errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import polars as pl
import pytest
import torch
from torch import nn

import dsexplore
from dsexplore._internal.cost.cluster import Cluster
from dsexplore._internal.cost.step.prediction import Prediction
from dsexplore._internal.errors import UsageError
from dsexplore._internal.trace.trace import Trace

DGX = Cluster.load("dgx-h100")
FAST_CPU = replace(DGX, launch_overhead=0.0)
"""Whose kernels are launched in no time, so that small programs too are bound by the GPU."""
FREE_LINKS = replace(
    FAST_CPU,
    node=replace(DGX.node, bandwidth=1e15, latency=0.0, ramp=0.0),
    network=replace(DGX.network, bandwidth=1e15, latency=0.0, ramp=0.0),  # type: ignore[type-var] # it has one
    collective_overhead=0.0,
    reduction=None,
    measured=(),
)


@pytest.fixture(scope="module")
def llama(traced_llama: Callable[..., Trace]) -> Trace:
    return traced_llama("dp=4,tp=2")


@pytest.fixture(scope="module")
def alone(traced_llama: Callable[..., Trace]) -> Trace:
    return traced_llama("dp=1,tp=1")


def parts(prediction: Prediction) -> float:
    return prediction.compute.expected + prediction.exposed.expected + prediction.idle.expected


@pytest.mark.parametrize("options", [{}, {"compiled": True}, {"overlap": False}, {"ranks_per_node": 2}])
def test_compute_exposed_and_idle_are_the_step(llama: Trace, options: dict[str, object]) -> None:
    prediction = llama.predict(**options)  # type: ignore[arg-type] # options of predict
    assert parts(prediction) == pytest.approx(prediction.step.expected)
    for row in prediction.by_rank().iter_rows(named=True):
        assert row["compute"] + row["exposed"] + row["idle"] == pytest.approx(row["step"])


def test_sums_over_modules_are_the_totals(llama: Trace) -> None:
    prediction = llama.predict()
    modules = prediction.by_module()
    for name in ("compute", "exposed", "idle", "communication"):
        total = getattr(prediction, name)
        assert modules[name].sum() == pytest.approx(total.expected), name
    assert modules["compute_low"].sum() == pytest.approx(prediction.compute.low)
    assert prediction.by_axis()["exposed"].sum() == pytest.approx(prediction.exposed.expected)
    assert set(prediction.by_axis()["axis"]) == {"dp", "tp"}
    sent = llama.events.filter(pl.col("group_size") > 1).group_by("axis", "op").len()
    assert sorted(prediction.by_axis().select("axis", "op", "count").rows()) == sorted(sent.rows())


def test_one_gpu_neither_communicates_nor_waits_for_stages(alone: Trace) -> None:
    prediction = alone.predict()
    assert prediction.communication.high == prediction.exposed.high == prediction.bubble.high == 0
    assert parts(prediction) == pytest.approx(prediction.step.expected)


def test_links_without_latency_and_limit_leave_compute(llama: Trace) -> None:
    prediction = llama.predict(FREE_LINKS)
    assert prediction.exposed.expected < 1e-3 * prediction.step.expected
    assert llama.predict(FAST_CPU).exposed.expected > 0.03 * llama.predict(FAST_CPU).step.expected


def test_without_overlap_all_communication_is_exposed(llama: Trace) -> None:
    prediction = llama.predict(FAST_CPU, overlap=False)
    assert prediction.exposed.expected == pytest.approx(prediction.communication.expected)
    assert prediction.step.expected >= llama.predict(FAST_CPU).step.expected


def test_a_trace_without_costs_says_how_to_record_them() -> None:
    with dsexplore.commtrace(world_size=2) as trace:
        pass
    with pytest.raises(UsageError, match=r"costs=True.*--predict"):
        trace.predict()


def test_saved_costs_predict_the_same(llama: Trace, tmp_path: object) -> None:
    path = llama.save(f"{tmp_path}/step.parquet")
    assert dsexplore.load(path).predict().step == llama.predict().step


def test_other_conditions_need_no_new_trace_and_other_shapes_do(llama: Trace) -> None:
    prediction = llama.predict()
    slower = replace(FAST_CPU, compute=replace(DGX.compute, achievable=0.2))
    assert prediction.what_if(hardware=slower).step.expected > prediction.what_if(hardware=FAST_CPU).step.expected
    assert prediction.what_if(overlap=False).step == llama.predict(overlap=False).step
    with pytest.raises(UsageError, match=r"batch=2: .*new trace"):
        prediction.what_if(batch=2)
    with pytest.raises(UsageError, match=r"sequence=0.5: .*new trace"):
        prediction.what_if(sequence=0.5)


def test_numbers_that_cannot_be_are_refused(llama: Trace) -> None:
    with pytest.raises(UsageError, match="ranks_per_node=0"):
        llama.predict(ranks_per_node=0)
    with pytest.raises(UsageError, match="step 7 computes nothing"):
        llama.predict(step=7)


def test_gathers_hide_behind_the_layer_before(traced_layers: Callable[..., Trace]) -> None:
    """Of layers that compute for longer than they gather, the first gather alone is exposed in forward."""
    prediction = traced_layers(6, width=4096, rows=65536).predict(FAST_CPU)
    exposed = prediction.by_module().filter((pl.col("phase") == "forward") & (pl.col("exposed") > 1e-7))
    assert exposed["module"].to_list() == ["Sequential.0"]


def test_the_last_of_the_steps_that_compute_most_is_predicted() -> None:
    with dsexplore.commtrace(world_size=1, fake=True, costs=True) as trace:
        model = nn.Linear(256, 256, bias=False)
        for rows in (4000, 4096, 64):
            model(torch.randn(rows, 256)).sum().backward()
            trace.step()
    computed = [trace.predict(step=step).compute.expected for step in range(3)]
    assert trace.predict().compute.expected == computed[1]
    assert computed[1] not in (computed[0], computed[2])


def test_a_step_is_whole_beside_steps_of_its_kind() -> None:
    """The step that is predicted is the last whole one, and begins with the optimizer's state in memory."""
    with dsexplore.commtrace(world_size=1, fake=True, costs=True) as trace:
        model = nn.Linear(256, 256, bias=False)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            model(torch.randn(64, 256)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            trace.step()
    weights = 256 * 256 * 4
    assert trace.predict().memory == pytest.approx(trace.predict(step=0).memory, rel=0.02)
    assert trace.predict().peak.parts["optimizer"] >= 2 * weights
    assert trace.predict().peak.parts["parameters"] >= weights


def test_a_step_that_waits_for_the_cpu_says_so(alone: Trace) -> None:
    slow_cpu = replace(DGX, launch_overhead=1e-3)
    assert any("waits for the CPU" in note for note in alone.predict(slow_cpu).notes)
    assert not any("waits for the CPU" in note for note in alone.predict(FAST_CPU).notes)


def test_where_other_attention_kernels_may_run_a_note_names_them(alone: Trace) -> None:
    assert (alone.tables.kernels["kind"] == "attention").any()
    (note,) = [note for note in alone.predict("hgx-h200").notes if 'attention="cudnn"' in note]
    assert "torch from 2.11 on takes cuDNN's on Hopper GPUs" in note
    for prediction in (alone.predict(attention="cudnn"), alone.predict("dgx-a100")):
        assert not [note for note in prediction.notes if "attention" in note]


def test_ranks_started_per_tray_are_predicted_as_the_rack_that_they_are(traced_llama: Callable[..., Trace]) -> None:
    trace = traced_llama("dp=4,tp=2")
    by_launcher, by_default = (trace.predict("gb200-nvl72", ranks_per_node=number) for number in (4, None))
    assert by_launcher.exposed.expected == by_default.exposed.expected
    assert by_launcher.ranks_per_domain == 72
    cut = trace.predict("dgx-h100", ranks_per_node=4)
    assert cut.ranks_per_domain == 4
