"""Pipeline stages in a simulated world with a torch that lets stages hold no vote there, as torch 2.15 does.

With the vote of torch 2.13 they run in tests/capture/schemes.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineSchedule

from dsexplore.errors import UsageError
from dsexplore.worlds.simulate import simulate

INITIALISE = "_initialize_pipeline_distributed_state"


@pytest.fixture
def initialised(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The stages that torch's own method gets, on a torch that has it in place of the vote."""
    stages: list[Any] = []
    monkeypatch.delattr(PipelineStage, "_warmup_forward_vote", raising=False)
    monkeypatch.setattr(
        _PipelineSchedule, INITIALISE, lambda schedule, given, has_backward: stages.extend(given), raising=False
    )
    return stages


def test_a_stage_without_shapes_is_refused_before_torch_initialises_it(initialised: list[Any]) -> None:
    with simulate(mesh="pp=2") as mesh:
        stage = PipelineStage(nn.Linear(4, 4), 0, 2, torch.device("cpu"), group=mesh.get_group())
        with pytest.raises(UsageError, match="pipeline stage 0 does not know its shapes"):
            getattr(_PipelineSchedule, INITIALISE)(None, [stage], False)
    assert initialised == []


def test_stages_with_shapes_and_of_other_classes_are_torchs_to_initialise(initialised: list[Any]) -> None:
    example, other = torch.zeros(2, 4), object()
    with simulate(mesh="pp=2") as mesh:
        stage = PipelineStage(nn.Linear(4, 4), 0, 2, torch.device("cpu"), example, example, group=mesh.get_group())
        getattr(_PipelineSchedule, INITIALISE)(None, [other, stage], False)
    assert initialised == [other, stage]
