"""`commtrace(numerics=True)` on real ranks: plans are compared, and the first NaN has its module and rank.

Modules: ``capture/values/numeric_recording.py``, ``analysis/numeric_difference.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import dsexplore
from dsexplore import Trace
from tests.numerics.right_plans import adam, cut_by_dtensors, fsdp2, pipeline, plain
from tests.numerics.trained_model import Trained, part_of_batch, reduce_gradients, seeded, tokens_and_targets, trained

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("rank_server")]


def tensor_parallel(mesh: Any) -> Trained:
    model = seeded()
    cut_by_dtensors(model, mesh)
    return trained(model, *tokens_and_targets(), optimizer=adam)


def summed(mesh: Any) -> Trained:
    model = seeded()
    data = part_of_batch(mesh, "dp", *tokens_and_targets())
    return trained(model, *data, before_optimizer=lambda: reduce_gradients(model, mesh, mean=False))


def with_a_nan(mesh: Any) -> Trained:
    model, step = tensor_parallel(mesh)
    if dist.get_rank() == 1:
        with torch.no_grad():
            model.layers[1].norm_2.bias[3] = float("nan")  # type: ignore[union-attr,index]
    return model, step


def train(program: Callable[[Any], Trained], axis: str, folder: str) -> None:
    torch.manual_seed(0)
    _, step = program(init_device_mesh("cpu", (2,), mesh_dim_names=(axis,)))
    with dsexplore.commtrace(numerics=True, save=folder):
        step()
        step()


def recorded(program: Callable[[Any], Trained], axis: str, folder: Path) -> Trace:
    dsexplore.run_ranks(train, 2, args=(program, axis, str(folder)), timeout=240).check()
    return dsexplore.load(folder)


def alone() -> Trace:
    torch.manual_seed(0)
    _, step = plain()
    with dsexplore.commtrace(numerics=True) as trace:
        step()
        step()
    return trace


@pytest.mark.parametrize(
    ("program", "axis"),
    [(fsdp2, "dp"), (tensor_parallel, "tp"), (pipeline, "pp")],
    ids=["FSDP2", "TP", "PP"],
)
def test_a_plan_on_two_ranks_has_the_numbers_of_one_process(program: Any, axis: str, tmp_path: Path) -> None:
    trace = recorded(program, axis, tmp_path)
    assert trace.numerics["rank"].unique().sort().to_list() == [0, 1]
    found = alone().diff(trace).numerics()
    assert found.same, found.verdict()
    assert not found.by_rank
    assert found.to_frame().filter(pl.col("phase") == "gradient").height


def test_a_program_run_twice_has_the_same_bits_and_another_has_not(tmp_path: Path) -> None:
    first, again = (recorded(tensor_parallel, "tp", tmp_path / name) for name in ("first", "again"))
    assert first.diff(again).numerics().same_bits
    wrong = recorded(with_a_nan, "tp", tmp_path / "wrong")
    found = first.diff(wrong).numerics()
    (note,) = found.lines()[1:]
    assert note.startswith("B: The first NaN is in forward of step 0")
    assert note.endswith("layers.1.norm_2, in its output, on rank 1.")


def test_gradients_that_are_summed_are_told_from_the_mean(tmp_path: Path) -> None:
    found = alone().diff(recorded(summed, "dp", tmp_path)).numerics()
    assert not found.same
    assert found.first is not None
    assert found.first["phase"] == "gradient"
    assert "2 times as much" in found.verdict()
