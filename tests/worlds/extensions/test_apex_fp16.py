"""Models in float16 with parameters in float32 train as torch does, and send gradients of float16."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

import dsexplore
from dsexplore._internal.worlds.extensions.apex import EXTENSIONS

APEX: Any = EXTENSIONS["apex"]
X = torch.linspace(-1, 1, 8).reshape(2, 4)


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))


def test_only_batch_norms_stay_in_float32() -> None:
    half = APEX["fp16_utils.network_to_half"](model())
    assert [parameter.dtype for parameter in half.parameters()] == [torch.float16] * 2 + [torch.float32] * 2
    assert_close(APEX["fp16_utils.tofp16"]()(X), X.half())
    assert APEX["fp16_utils.to_python_float"](torch.tensor(0.5)) == 0.5


@pytest.mark.parametrize("is_flat", [False, True])
def test_copies_in_float32_take_the_step(is_flat: bool) -> None:
    layer, plain = nn.Linear(4, 3).half(), nn.Linear(4, 3)
    plain.load_state_dict(layer.state_dict())
    params, masters = APEX["fp16_utils.prep_param_lists"](layer, is_flat)
    assert len(masters) == (1 if is_flat else 2)
    layer(X.half()).sum().backward()
    APEX["fp16_utils.model_grads_to_master_grads"](params, masters, is_flat)
    torch.optim.SGD(masters, lr=0.1).step()
    APEX["fp16_utils.master_params_to_model_params"](params, masters, is_flat)
    plain(X).sum().backward()
    torch.optim.SGD(plain.parameters(), lr=0.1).step()
    assert_close([p.float() for p in params], list(plain.parameters()), atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("options", [{"static_loss_scale": 128.0}, {"dynamic_loss_scale": True}])
def test_an_optimizer_keeps_what_float16_would_lose(options: Any) -> None:
    weight = nn.Parameter(torch.ones(3, dtype=torch.float16))
    optimizer = APEX["fp16_utils.FP16_Optimizer"](torch.optim.SGD([weight], lr=1e-4), **options)
    for _ in range(10):
        optimizer.zero_grad()
        optimizer.backward(weight.sum())
        assert_close(optimizer.clip_master_grads(100.0), torch.tensor(3.0).sqrt())
        optimizer.step()
    assert_close(optimizer.state_dict()["fp32_from_fp16"][0].detach(), torch.full((3,), 1 - 10 * 1e-4))
    assert_close(weight.detach(), torch.full((3,), 1 - 10 * 1e-4).half())  # steps of 1e-4 from 1 are lost in float16
    other = APEX["fp16_utils.FP16_Optimizer"](torch.optim.SGD([nn.Parameter(torch.zeros(3).half())], lr=1e-4))
    other.load_state_dict(optimizer.state_dict())
    assert_close(other.masters, optimizer.masters)


def test_gradients_are_sent_in_float16_and_those_of_batch_norms_in_float32() -> None:
    with dsexplore.simulate(2), dsexplore.commtrace() as trace:
        ddp = DistributedDataParallel(APEX["fp16_utils.network_to_half"](model().cuda()))
        optimizer = APEX["fp16_utils.FP16_Optimizer"](torch.optim.SGD(ddp.parameters(), lr=0.1))
        optimizer.backward(ddp(X.cuda()).float().sum())
        optimizer.step()
    rows = trace.events.select("op", "dtype", "message_bytes").rows()
    assert sorted(row[1:] for row in rows if row[0] == "all_reduce") == [("float16", 2 * 20), ("float32", 4 * 8)]
