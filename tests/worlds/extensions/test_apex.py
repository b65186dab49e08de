"""The stand-ins of Apex equal plain torch: optimizers, norms, ops on lists."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from dsexplore._internal.worlds.extensions.apex import EXTENSIONS

APEX: Any = EXTENSIONS["apex"]
AMP: Any = EXTENSIONS["amp_C"]


def trained(kind: Any, **options: Any) -> list[torch.Tensor]:
    """Return the parameters of a layer after three steps."""
    torch.manual_seed(0)
    layer = nn.Linear(4, 3)
    optimizer = kind(layer.parameters(), **options)
    for _ in range(3):
        layer(torch.ones(2, 4)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return list(layer.parameters())


def test_optimizers_are_torchs() -> None:
    adam, sgd = APEX["optimizers.FusedAdam"], APEX["optimizers.FusedSGD"]
    assert_close(trained(adam, weight_decay=0.1), trained(torch.optim.AdamW, weight_decay=0.1))
    l2 = trained(torch.optim.Adam, weight_decay=0.1)
    assert_close(trained(adam, weight_decay=0.1, adam_w_mode=False), l2)
    assert_close(trained(sgd, lr=0.1, momentum=0.9), trained(torch.optim.SGD, lr=0.1, momentum=0.9))


@pytest.mark.parametrize(("decay", "use_nvlamb"), [(0.0, False), (0.0, True), (0.1, False)])
def test_lamb_is_adam_of_the_parameters_norm_if_that_decays(decay: float, use_nvlamb: bool) -> None:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(4, 3))
    before, weight.grad = weight.detach().clone(), torch.randn(4, 3)
    options = {"weight_decay": decay, "max_grad_norm": 0, "use_nvlamb": use_nvlamb}
    APEX["optimizers.FusedLAMB"]([weight], lr=0.1, **options).step()
    direction = weight.grad / (weight.grad.abs() + 1e-6) + decay * before  # the first step of Adam
    ratio = before.norm() / direction.norm() if decay or use_nvlamb else 1.0
    assert_close(weight.detach(), before - 0.1 * ratio * direction)


def test_lamb_clips_the_gradients_of_the_closure() -> None:
    weight = nn.Parameter(torch.ones(4))
    optimizer = APEX["optimizers.FusedLAMB"]([weight], lr=0.1, weight_decay=0.0, eps=1.0, max_grad_norm=1.0)

    def closure() -> torch.Tensor:
        loss = (100 * weight).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure) == 400
    assert_close(weight.detach(), torch.full((4,), 1 - 0.1 * 0.5 / (0.5 + 1)))  # gradients of norm 200, then of norm 1


def test_lamb_without_averaging_or_decoupled_decay() -> None:
    weight = nn.Parameter(torch.full((1,), 2.0))
    weight.grad = torch.ones(1)
    options = {"weight_decay": 0.5, "eps": 1.0, "max_grad_norm": 0, "bias_correction": False, "betas": (0.9, 0.75)}
    APEX["optimizers.FusedLAMB"]([weight], lr=0.1, adam_w_mode=False, grad_averaging=False, **options).step()
    assert_close(weight.detach(), torch.tensor([1.8]))  # 2 / 2 is the update, which gets the parameter's norm


def test_optimizers_refuse_what_the_kernels_do_not_take() -> None:
    with pytest.raises(TypeError, match=r"PlainLAMB\(\): got an unexpected keyword argument 'lrr'"):
        APEX["optimizers.FusedLAMB"]([nn.Parameter(torch.ones(1))], lrr=0.5)
    with pytest.raises(TypeError, match="missing a required argument: 'lr'"):
        APEX["optimizers.FusedSGD"]([nn.Parameter(torch.ones(1))])


@pytest.mark.parametrize("name", ["FusedLayerNorm", "FusedRMSNorm", "MixedFusedLayerNorm", "MixedFusedRMSNorm"])
def test_norms_are_torchs(name: str) -> None:
    norm = APEX[f"normalization.{name}"](8)
    x = torch.randn(2, 8, requires_grad=True)
    functional = nn.functional
    is_layer_norm = "LayerNorm" in name
    expected = functional.layer_norm(x, (8,)) if is_layer_norm else functional.rms_norm(x, (8,), eps=1e-5)
    assert_close(norm(x), expected)
    direction = torch.randn(2, 8)
    assert_close(torch.autograd.grad(norm(x), x, direction), torch.autograd.grad(expected, x, direction))
    half = norm(x.bfloat16())
    assert half.dtype == (torch.float32 if name.startswith("Mixed") else torch.bfloat16)


def test_ops_on_lists() -> None:
    tensors = [torch.randn(3), torch.randn(2, 2)]
    apply, flag = APEX["multi_tensor_apply.multi_tensor_applier"], torch.zeros(1, dtype=torch.int32)
    norm, each = apply(AMP["multi_tensor_l2norm"], flag, [tensors], True)
    assert_close(norm, torch.cat([tensor.flatten() for tensor in tensors]).norm().reshape(1))
    assert_close(each, torch.stack([tensor.norm() for tensor in tensors]))
    targets = [torch.empty_like(tensor) for tensor in tensors]
    apply(AMP["multi_tensor_scale"], flag, [tensors, targets], 0.5)
    assert_close(targets, [tensor / 2 for tensor in tensors])
