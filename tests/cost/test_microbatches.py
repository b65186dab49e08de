"""Traces of pipelines with more or fewer microbatches than were run: equal, row by row, to those of all of them.

Modules: ``cost/step/pipeline_times.py``, ``cost/meshes/compare_meshes.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from inspect import signature
from typing import Any

import polars as pl
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from dsexplore._internal.cost.meshes.compare_meshes import trace_rank
from dsexplore._internal.cost.range import Estimate
from dsexplore._internal.cost.step.pipeline_times import with_microbatches
from dsexplore._internal.cost.step.prediction import predict
from dsexplore._internal.errors import UsageError
from dsexplore._internal.views import view_of
from tests.cost.same_tables import same, without_shared_memory

SIZES = {"pp": 3, "dp": 2}
WIDTH = 64


def outputs_kept(keeps: bool) -> dict[str, bool]:
    """Return the argument by which a schedule keeps its outputs, or not; torch 2.9 keeps them always."""
    return {"return_outputs": keeps} if "return_outputs" in signature(Schedule1F1B.step).parameters else {}


def build(
    mesh: DeviceMesh, *, microbatches: int = 11, schedule: type = Schedule1F1B, keeps: bool = False
) -> Callable[[], None]:
    """Stages of two layers under FSDP2, whose last layer is checkpointed by nobody."""
    number, stages = mesh["pp"].get_local_rank(), mesh["pp"].size()
    stage = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
    fully_shard(stage, mesh=mesh["dp"], reshard_after_forward=False)
    example, given = (torch.empty(4, WIDTH, requires_grad=needed) for needed in (True, number > 0))
    made = PipelineStage(
        stage,
        number,
        stages,
        torch.device("cpu"),
        input_args=(given,),
        output_args=(example,),
        group=mesh.get_group("pp"),
    )
    whole = torch.randn(4 * microbatches, WIDTH)
    run = schedule(made, n_microbatches=microbatches, loss_fn=F.mse_loss)
    optimizer = torch.optim.AdamW(stage.parameters())

    def step() -> None:
        losses: list[torch.Tensor] = []
        given: dict[str, Any] = {"target": whole, "losses": losses} if number == stages - 1 else {}
        run.step(*((whole,) if number == 0 else ()), **given, **outputs_kept(keeps))
        if losses:
            torch.stack(losses).mean()
        optimizer.step()
        optimizer.zero_grad()

    return step


@pytest.mark.parametrize("stage", [0, 1, 2])
@pytest.mark.parametrize("keeps", [False, True])
def test_a_few_microbatches_give_the_trace_of_all(stage: int, keeps: bool) -> None:
    program = partial(build, keeps=keeps)
    rank = stage * SIZES["dp"]
    whole = trace_rank(program, SIZES, rank, skip_repeats=False)
    same(trace_rank(program, SIZES, rank), whole, without_shared_memory)


@pytest.mark.parametrize(
    ("stage", "microbatches", "keeps"),
    [(0, 8, False), (0, 13, True), (2, 10, False), (3, 13, False), (6, 8, True), (7, 10, True), (7, 13, False)],
)
def test_a_few_forwards_of_a_long_warm_up_give_the_trace_of_all(stage: int, microbatches: int, keeps: bool) -> None:
    program, sizes, rank = partial(build, microbatches=microbatches, keeps=keeps), {"pp": 8, "dp": 2}, 2 * stage
    few = trace_rank(program, sizes, rank)
    same(few, trace_rank(program, sizes, rank, skip_repeats=False), without_shared_memory)


def without_losses(kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the kernels but for those that read as many losses or outputs as there are microbatches."""
    return kernels.filter(~((pl.col("module") == "") & pl.col("op").is_in(["cat", "stack", "mean"])))


@pytest.mark.parametrize("stage", [0, 2])
def test_microbatches_are_dropped_too(stage: int) -> None:
    many = trace_rank(partial(build, microbatches=14), SIZES, stage * 2, skip_repeats=False)
    fewer = with_microbatches(many, 9)
    assert fewer is not None
    whole = trace_rank(partial(build, microbatches=9), SIZES, stage * 2, skip_repeats=False)
    same(
        replace(fewer, kernels=without_losses(fewer.kernels), memory=fewer.memory.clear()),
        replace(
            whole,
            kernels=without_losses(whole.kernels),
            memory=whole.memory.clear(),
            info=replace(whole.info, schedule=fewer.info.schedule),
        ),
        without_shared_memory,
    )


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_few_microbatches_of_gpipe_give_the_trace_of_all(stage: int) -> None:
    program = partial(build, schedule=ScheduleGPipe)
    few = trace_rank(program, SIZES, stage * 2)
    same(few, trace_rank(program, SIZES, stage * 2, skip_repeats=False), without_shared_memory)
    assert with_microbatches(few, 22) is None


@pytest.mark.parametrize("difference", ["events", "kernels", "memory", "few"])
def test_pairs_that_differ_are_not_repeated(difference: str) -> None:
    tables = trace_rank(build, SIZES, 0)
    forwards = tables.kernels.filter(pl.col("op") == "addmm")["segment"].unique().sort()
    in_third = pl.col("seq") == 11 if difference == "events" else pl.col("segment") == forwards[5]
    changed = {"events": "message_bytes", "kernels": "flops", "memory": "activations", "few": ""}[difference]
    if changed:
        frame: pl.DataFrame = getattr(tables, difference)
        tables = replace(tables, **{difference: frame.with_columns(pl.col(changed) + in_third)})
    assert with_microbatches(tables, 3 if difference == "few" else 12) is None


def test_a_saved_notebook_has_the_predicted_stages_as_a_drawing() -> None:
    prediction = predict(trace_rank(build, SIZES, 0))
    view = view_of(prediction)
    drawn = view.still(view.figure(kind="stages"), kind="stages")
    assert all(f"stage {stage}" in drawn for stage in range(SIZES["pp"]))
    assert "<b>F0</b>" in drawn
    assert "<b>F10</b>" in drawn
    assert "predicted time" in drawn


def test_what_makes_the_range_of_a_pipeline_wide_leaves_out_waiting_for_other_stages() -> None:
    prediction = predict(trace_rank(build, SIZES, 0))
    assert prediction.bubble.expected > 0
    played = prediction._slowest.played
    for estimate in Estimate:
        own = played(estimate).seconds - played(estimate).receiving
        assert prediction.by_cause()[estimate.name.lower()].sum() == pytest.approx(own)
    assert prediction.step.why.startswith(prediction.widest_part)


@pytest.mark.parametrize("stage", [1, 2])
def test_twice_the_batch_of_a_pipeline_needs_no_new_trace(stage: int) -> None:
    if stage == 2 and not outputs_kept(False):
        pytest.skip("torch 2.9 keeps the outputs of the last stage, twice as many bytes for twice the batch")
    prediction = predict(trace_rank(build, SIZES, stage * 2))
    twice = predict(trace_rank(partial(build, microbatches=22), SIZES, stage * 2))
    scaled = prediction.what_if(batch=2)
    assert scaled.step.expected == pytest.approx(twice.step.expected, rel=1e-6)
    assert scaled.schedule == twice.schedule
    targets = 11 * 4 * WIDTH * 4 if stage == 2 else 0  # bytes of the samples themselves, which the program holds
    assert scaled.memory + targets == twice.memory
    for factor in (1.05, 0.3, 0):
        with pytest.raises(UsageError, match=rf"batch={factor}: .*new trace"):
            prediction.what_if(batch=factor)
