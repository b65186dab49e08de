"""Pipeline stages run in a simulated world, also with a torch whose stages do not vote there, as torch 2.15.

Stages that know their shapes, with the vote of torch 2.13, run in tests/capture/schemes; those of a script that find
them out, in tests/worlds/scripts/test_stage_shapes.py.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.pipelining.schedules import Schedule1F1B, _PipelineSchedule

from dsexplore._internal.errors import UsageError
from dsexplore._internal.torch_internals.names import torch_at_least
from dsexplore._internal.worlds.commtrace import commtrace
from dsexplore._internal.worlds.simulate import simulate
from dsexplore._internal.worlds.world_settings import Target

INITIALIZE = "_initialize_pipeline_distributed_state"


@pytest.fixture
def initialized(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the stages that torch's own method gets, on a torch that has this method in place of the vote."""
    stages: list[Any] = []
    monkeypatch.delattr(PipelineStage, "_warmup_forward_vote", raising=False)
    monkeypatch.setattr(
        _PipelineSchedule, INITIALIZE, lambda schedule, given, has_backward: stages.extend(given), raising=False
    )
    return stages


IN_ONE = pytest.mark.skipif(
    not torch_at_least("2.12"), reason="up to torch 2.11 stages do not agree before they find out their shapes"
)


@IN_ONE
@pytest.mark.parametrize(("index", "is_refused"), [(0, False), (1, True)])
def test_a_stage_that_nobody_tells_its_shapes_is_refused_before_torch_initialises_it(
    initialized: list[Any], index: int, is_refused: bool
) -> None:
    with simulate(mesh="pp=2", rank=index) as mesh:
        stage = PipelineStage(nn.Linear(4, 4), index, 2, torch.device("cpu"), group=mesh.get_group())
        refused = pytest.raises(UsageError, match="pipeline stage 1 does not know its shapes")
        with refused if is_refused else nullcontext():
            getattr(_PipelineSchedule, INITIALIZE)(None, [stage], False)
    assert initialized == ([] if is_refused else [stage])


@IN_ONE
def test_stages_with_shapes_and_of_other_classes_are_torchs_to_initialize(initialized: list[Any]) -> None:
    example, other = torch.zeros(2, 4), object()
    with simulate(mesh="pp=2") as mesh:
        stage = PipelineStage(nn.Linear(4, 4), 0, 2, torch.device("cpu"), example, example, group=mesh.get_group())
        getattr(_PipelineSchedule, INITIALIZE)(None, [other, stage], False)
    assert initialized == [other, stage]


@pytest.mark.usefixtures("initialized")
@pytest.mark.parametrize(("target", "backend"), [("cuda", "nccl"), ("cpu", "gloo")])
def test_a_schedule_finds_the_targets_backend_unless_one_was_asked_for(target: Target, backend: str) -> None:
    with simulate(2, hardware="cpu" if target == "cpu" else None):
        assert schedules.dist.get_backend() == backend
        assert schedules.dist.P2POp is dist.P2POp
        dist.init_process_group("ucc")
        assert schedules.dist.get_backend() == "ucc"
    assert schedules.dist is dist


class TestStagesWithoutShapesWhereNobodyAnswers:
    """In a notebook, other ranks cannot be run, as there is no script."""

    def step(self, index: int, *arguments: torch.Tensor) -> None:
        with simulate(mesh="pp=2", rank=index, fake=True) as mesh:
            stage = PipelineStage(nn.Linear(4, 4), index, 2, torch.device("cpu"), group=mesh.get_group())
            Schedule1F1B(stage, 2, loss_fn=nn.MSELoss()).step(*arguments)

    def test_the_first_one_needs_no_answer(self) -> None:
        with commtrace() as trace:
            self.step(0, torch.zeros(4, 4))
        assert trace.where(phase="backward").events["op"].to_list() == ["recv", "recv"]
        assert not [note for note in trace.info.notes if "invented" in note]

    def test_another_one_is_refused(self) -> None:
        with pytest.raises(UsageError, match="pipeline stage 1 does not know its shapes"):
            self.step(1)


@pytest.mark.parametrize("index", [0, 1, 3])
def test_what_stages_answer_one_another_is_no_value_that_the_program_reads(index: int) -> None:
    with simulate(mesh="pp=4", rank=index, fake=True) as mesh, commtrace() as trace:
        example = torch.zeros(1, 4, requires_grad=True)
        stage = PipelineStage(nn.Linear(4, 4), index, 4, torch.device("cpu"), example, example, group=mesh.get_group())
        batch = {"target": torch.zeros(4, 4)} if index == 3 else {}
        Schedule1F1B(stage, 4, loss_fn=nn.MSELoss()).step(*([torch.zeros(4, 4)] if index == 0 else []), **batch)
    assert len(trace.events)
    assert not [note for note in trace.info.notes if "invented" in note]
