"""A fake tensor that gets other data has the known values of the new data only.

Modules: ``worlds/fake/fake_workarounds.py``.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parallel import DistributedDataParallel

import dsexplore


class Scale(nn.Module):
    """A module with a parameter of one number."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.weights = nn.Parameter(torch.ones(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale * self.weights


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_number_that_was_converted_has_the_new_dtype(device: str) -> None:
    with dsexplore.simulate(2, fake=True, hardware="h100" if device == "cuda" else None):
        model = Scale().to(device).half()
        for made in (model.scale, model.scale.detach(), model.state_dict()["scale"], torch.zeros_like(model.scale)):
            assert made.dtype == torch.float16
            assert made.device.type == device
        model.scale.grad = torch.ones_like(model.scale)
        assert model.scale.item() == 0.5


def test_values_follow_the_data(device: str) -> None:
    with dsexplore.simulate(2, fake=True, hardware="h100" if device == "cuda" else None):
        number = nn.Parameter(torch.tensor([0.5], device=device))
        number.data = torch.tensor([3.0], device=device)
        assert number.item() == 3.0
        number.data.fill_(4.0)
        assert number.item() == 4.0
        row = torch.arange(3, device=device)
        row.data = torch.zeros(2, device=device, dtype=torch.int64)
        assert row.tolist() == [0, 0]
        row.data = torch.arange(3, device=device)
        assert row.tolist() == [0, 1, 2]
        row.data = torch.empty(2, device=device, dtype=torch.int64)
        assert row.tolist() == [1, 1]


@pytest.mark.parametrize("fake", [False, True], ids=["real", "fake"])
def test_what_ddp_sends_of_it(fake: bool) -> None:
    with dsexplore.simulate(2, fake=fake, hardware="h100"):
        dist.init_process_group("nccl")
        with dsexplore.commtrace() as trace:
            DistributedDataParallel(Scale().cuda().bfloat16())
        sent = trace.events.filter(trace.events["op"] == "broadcast").select("dtype", "message_bytes").rows()
    assert sent[-1:] == [("bfloat16", 7 * 2)]


def test_torch_is_left_as_it_was() -> None:
    with dsexplore.simulate(2, fake=True):
        pass
    assert "data" not in vars(FakeTensor)
