"""Attention of fake tensors with dropout or a learned mask uses the ops of a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dsexplore
from dsexplore._internal.trace.trace import Trace

SHAPE = (2, 4, 512, 64)
SCORES = 2 * 4 * 512 * 512
"""Products of a query and a key."""


def traced(dtype: torch.dtype, mask: torch.Tensor | None = None, target: Any = "cuda", **options: Any) -> Trace:
    with (
        dsexplore.simulate(world_size=2, fake=True, hardware="cpu" if target == "cpu" else None),
        dsexplore.commtrace(costs=True) as trace,
    ):
        q, k, v = (torch.randn(SHAPE, dtype=dtype, requires_grad=True) for _ in range(3))
        given = None if mask is None else torch.empty_like(mask).requires_grad_(mask.requires_grad)
        F.scaled_dot_product_attention(q, k, v, given, **options).sum().backward()
        assert q.grad is not None
        assert q.grad.shape == q.shape
    return trace


def attention_ops(trace: Trace) -> list[str]:
    return trace.tables.kernels.filter(kind="attention")["op"].to_list()


@pytest.mark.parametrize("is_causal", [False, True])
def test_half_precision_without_a_mask_takes_flash_attention(is_causal: bool) -> None:
    trace = traced(torch.bfloat16, dropout_p=0.1, is_causal=is_causal)
    causal = ", causal" if is_causal else ""
    assert attention_ops(trace) == [f"flash_attention{causal}", f"flash_attention_backward{causal}"]
    assert trace.tables.memory["activations"].max() < 2 * SCORES


@pytest.mark.parametrize(
    ("dtype", "mask"),
    [(torch.float32, None), (torch.bfloat16, torch.zeros(1, 1, 512, 512, dtype=torch.bfloat16))],
    ids=["fp32", "mask"],
)
def test_else_memory_efficient_attention(dtype: torch.dtype, mask: torch.Tensor | None) -> None:
    assert attention_ops(traced(dtype, mask, dropout_p=0.1)) == ["efficient_attention", "efficient_attention_backward"]


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_a_learned_mask_takes_memory_efficient_attention_and_gets_a_gradient(dropout: float) -> None:
    with dsexplore.simulate(world_size=2, fake=True), dsexplore.commtrace(costs=True) as trace:
        q = torch.randn(SHAPE, dtype=torch.bfloat16, requires_grad=True)
        mask = torch.zeros(1, 4, 512, 512, dtype=torch.bfloat16, requires_grad=True)
        F.scaled_dot_product_attention(q, q, q, mask, dropout_p=dropout).sum().backward()
        assert mask.grad is not None
        assert mask.grad.shape == mask.shape
    assert attention_ops(trace) == ["efficient_attention", "efficient_attention_backward"]


def test_a_mask_of_booleans_becomes_numbers() -> None:
    with dsexplore.simulate(world_size=2, fake=True):
        q = torch.randn(SHAPE, dtype=torch.bfloat16)
        mask = torch.ones(512, 512, dtype=torch.bool)
        assert F.scaled_dot_product_attention(q, q, q, mask, dropout_p=0.1).shape == SHAPE


def test_the_target_cpu_computes_the_scores() -> None:
    trace = traced(torch.bfloat16, None, "cpu", dropout_p=0.1)
    assert attention_ops(trace) == []
    assert trace.tables.memory["activations"].max() > 2 * SCORES


def test_without_dropout_nothing_changes() -> None:
    assert attention_ops(traced(torch.bfloat16)) == [
        "flash_attention_for_cpu",
        "flash_attention_for_cpu_backward",
    ]


def test_a_layer_of_torch_keeps_no_scores() -> None:
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True)
    with dsexplore.simulate(world_size=2, fake=True), dsexplore.commtrace(costs=True) as trace:
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True)
        layer(torch.randn(2, 1024, 64)).sum().backward()
    assert len(attention_ops(trace)) == 2
    assert trace.tables.memory["activations"].max() < 4 * 2 * 4 * 1024 * 1024


def test_attention_is_torch_s_again_afterwards() -> None:
    torch.manual_seed(0)
    q = torch.randn(1, 1, 4, 8)
    before = F.scaled_dot_product_attention(q, q, q)
    with dsexplore.simulate(world_size=2, fake=True):
        pass
    assert torch.equal(F.scaled_dot_product_attention(q, q, q), before)
    with pytest.raises(RuntimeError), dsexplore.simulate(world_size=2, fake=True):
        raise RuntimeError
    assert torch.equal(F.scaled_dot_product_attention(q, q, q), before)
