"""FSDP1 returns optimizer state for all parameters, also on a rank that holds only some of them.

Modules: ``worlds/simulated/optimizer_states.py``.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from dsexplore._internal.capture.record import record
from dsexplore._internal.worlds.simulate import simulate

SHAPES = {
    "0.weight": (8, 4),
    "0.bias": (8,),
    "1.weight": (3,),
    "1.bias": (3,),
    "2.weight": (2, 8),
}


def net() -> nn.Module:
    """Return a model of five parameters; of the norm's six elements, rank 3 of 4 holds only padding."""
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(3), nn.Linear(8, 2, bias=False))


def step(model: nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(model.parameters())
    out = model[2](model[0](torch.ones(2, 4, device="cuda"))) if not isinstance(model, FSDP) else model(1)
    out.sum().backward()
    optimizer.step()
    return optimizer


class Net(nn.Sequential):
    def forward(self, batch: int) -> torch.Tensor:
        return self[2](self[0](torch.ones(batch, 4, device="cuda"))) + self[1](torch.ones(3, device="cuda")).sum()


@pytest.mark.parametrize("fake", [False, True])
@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("kind", [StateDictType.FULL_STATE_DICT, StateDictType.SHARDED_STATE_DICT])
def test_all_parameters_have_state(rank: int, fake: bool, kind: StateDictType) -> None:
    with simulate(4, rank=rank, fake=fake, hardware="h100"):
        model = FSDP(
            Net(*net()), auto_wrap_policy=ModuleWrapPolicy([nn.LayerNorm]), use_orig_params=True, device_id=rank
        )
        optimizer = step(model)
        with record() as trace, FSDP.state_dict_type(model, kind):
            found = FSDP.optim_state_dict(model, optimizer)
    assert sorted(found["state"]) == sorted(SHAPES)
    for name, shape in SHAPES.items():
        state = found["state"][name]
        assert sorted(state) == ["exp_avg", "exp_avg_sq", "step"]
        assert tuple(state["exp_avg"].shape) == shape
        assert state["step"].dim() == 0
    gathered = trace.events.filter(op="all_gather", dtype="float32")
    assert gathered.height == 4  # two states of two units: of 58 elements, padded, and of 6
    assert sorted(set(gathered["message_bytes"].to_list())) == [32, 224]


def test_without_a_step_there_is_no_state() -> None:
    with simulate(4, hardware="h100"):
        model = FSDP(Net(*net()), use_orig_params=True, device_id=0)
        assert FSDP.optim_state_dict(model, torch.optim.AdamW(model.parameters()))["state"] == {}
