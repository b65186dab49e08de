"""``torch.autocast("cuda")`` casts the ops that CUDA's autocast casts; CPU autocast is restored after the block."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from dsexplore._internal.worlds.cuda.autocast import LOWER, WIDEST, cuda_ops
from dsexplore._internal.worlds.cuda.stand_in import cuda_stand_in

LOW, HIGH = torch.float16, torch.float32


def dtypes(x: torch.Tensor) -> dict[str, torch.dtype]:
    """Return the dtype of each op's result for a linear layer's output, by the name of the op."""
    low = F.linear(x, x)
    made = {
        "linear": low,
        "relu": F.relu(low),
        "gelu": F.gelu(low),
        "matmul": low @ low.T,
        "mv": torch.mv(low, low[0]),
        "einsum": torch.einsum("ij,kj->ik", low, x),
        "add": low + x,
        "layer_norm": F.layer_norm(low, low.shape),
        "rms_norm": F.rms_norm(low, low.shape),
        "group_norm": F.group_norm(low[None], 2),
        "softmax": low.softmax(-1),
        "log_softmax": low.log_softmax(-1),
        "cross_entropy": F.cross_entropy(low, torch.zeros(2, dtype=torch.long, device=x.device)),
        "mse_loss": F.mse_loss(low, low),
        "sum": low.sum(),
        "cumsum": low.cumsum(0),
        "norm": low.norm(),
        "exp": low.exp(),
        "pow": low**2,
        "rsqrt": low.abs().rsqrt(),
        "logsumexp": low.logsumexp(0),
        "as asked": low.softmax(-1, dtype=torch.float64),
    }
    return {name: tensor.dtype for name, tensor in made.items()}


def test_ops_run_in_the_precision_that_they_have_on_cuda() -> None:
    with cuda_stand_in(), torch.autocast("cuda"):
        found = dtypes(torch.randn(2, 2, device="cuda"))
    low = {"linear", "relu", "gelu", "matmul", "mv", "einsum"}
    if not any("rms_norm" in name for name in cuda_ops()):
        low.add("rms_norm")  # torch 2.9 does not cast it
    assert found == {**dict.fromkeys(found, HIGH), **dict.fromkeys(low, LOW), "as asked": torch.float64}


def test_every_op_that_cuda_alone_casts_has_a_kernel_for_as_long_as_the_block() -> None:
    bases = {name.removeprefix("aten::").partition(".")[0] for name in cuda_ops()}
    assert {"softmax", "layer_norm", "sum", "exp"} <= bases - LOWER - WIDEST
    assert bases & LOWER
    assert bases & WIDEST

    def with_kernel() -> set[str]:
        return {name for name in cuda_ops() if torch._C._dispatch_has_kernel_for_dispatch_key(name, "AutocastCPU")}

    assert with_kernel() == set()
    with cuda_stand_in():
        assert with_kernel() == set(cuda_ops())
    assert with_kernel() == set()


def test_state_is_answered_and_restored_however_it_is_nested() -> None:
    def state() -> tuple[bool, torch.dtype]:
        return torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")

    linear = nn.Linear(2, 2)
    x = torch.ones(1, 2)
    with cuda_stand_in():
        assert state() == (False, torch.float16)
        with torch.autocast("cuda", dtype=torch.bfloat16) as outer:
            assert state() == (True, torch.bfloat16)
            assert linear(x).dtype == torch.bfloat16
            with torch.autocast("cuda", enabled=False):
                assert not state()[0]
                assert linear(x).dtype == torch.float32
            with outer, torch.amp.autocast("cuda", dtype=torch.float16):
                assert (x @ x.T).dtype == torch.float16
            assert linear(x).dtype == torch.bfloat16
        assert linear(x).dtype == torch.float32
        assert (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")) == (False, torch.bfloat16)
        assert torch.autocast("cuda", dtype=torch.bfloat16)(linear)(x).dtype == torch.bfloat16


def test_backward_and_the_scaler() -> None:
    with cuda_stand_in():
        module = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 1)).cuda()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda", init_scale=8.0, growth_interval=1)
        before = module[0].weight.detach().clone()
        with torch.autocast("cuda"):
            loss = module(torch.ones(2, 4, device="cuda")).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        assert module[0].weight.grad is not None
        assert module[0].weight.grad.dtype == torch.float32
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == 16.0
        assert not torch.equal(before, module[0].weight)
        module[2].weight.grad.fill_(float("inf"))
        scaler.scale(loss.detach())
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == 8.0
