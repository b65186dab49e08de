"""Losses that are computed chunk by chunk have the values and gradients of losses of all logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.testing import assert_close

from dsexplore._internal.worlds.extensions import linear_losses
from dsexplore._internal.worlds.extensions.registry import names_of

ROWS, WIDTH, VOCABULARY = 15, 4, 32
LIGER: Any = names_of("liger_kernel")
CUT: Any = names_of("cut_cross_entropy")


@pytest.fixture(autouse=True)
def several_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_losses, "_chunk_size", lambda x, weight: 1)


def classifier() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return input, weight, bias and labels of a linear layer."""
    torch.manual_seed(0)
    labels = torch.randint(VOCABULARY, (ROWS,))
    labels[3] = -100
    shapes = ((ROWS, WIDTH), (VOCABULARY, WIDTH), (VOCABULARY,))
    x, weight, bias = (torch.randn(*shape, requires_grad=True) for shape in shapes)
    return x, weight, bias, labels


def assert_equal_losses(loss: Tensor, expected: Tensor, *inputs: Tensor) -> None:
    """Compare two losses and their gradients."""
    assert_close(loss, expected)
    assert_close(torch.autograd.grad(3 * loss.sum(), inputs), torch.autograd.grad(3 * expected.sum(), inputs))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_ligers_cross_entropy(reduction: str, is_weighted: bool) -> None:
    x, weight, bias, labels = classifier()
    words = torch.rand(VOCABULARY) if is_weighted else None
    options: Any = {"reduction": reduction, "label_smoothing": 0.1, "lse_square_scale": 0.2, "softcap": 5.0}
    fused = LIGER["transformers.functional.liger_fused_linear_cross_entropy"]
    loss, z_loss = fused(x, weight, labels, bias, ce_weight=words, return_z_loss=True, **options)
    plain = LIGER["transformers.functional.liger_cross_entropy"]
    expected, z_expected = plain(linear(x, weight, bias), labels, words, return_z_loss=True, **options)
    assert_close(z_loss, z_expected)
    assert_equal_losses(loss, expected, x, weight, bias)
    assert_close(expected, fused(x, weight, labels, bias, ce_weight=words, **options))


def test_a_frozen_weight_gets_no_gradient() -> None:
    x, weight, _, labels = classifier()
    loss = LIGER["transformers.LigerFusedLinearCrossEntropyLoss"]()(weight.detach(), x, labels)
    assert_equal_losses(loss, torch.nn.functional.cross_entropy(x @ weight.T, labels), x)
    with torch.no_grad():
        assert not LIGER["transformers.LigerFusedLinearCrossEntropyLoss"]()(weight, x, labels).requires_grad


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cut_cross_entropy(reduction: str) -> None:
    x, weight, bias, labels = classifier()
    loss = CUT["linear_cross_entropy"](x, weight, labels, bias, softcap=5.0, reduction=reduction)
    logits = 5 * torch.tanh(linear(x, weight, bias) / 5)
    expected = torch.nn.functional.cross_entropy(logits, labels, reduction=reduction)
    assert_equal_losses(loss, expected, x, weight, bias)


@pytest.mark.parametrize("has_labels", [False, True])
def test_divergence_of_two_layers(has_labels: bool) -> None:
    x, weight, _, labels = classifier()
    teacher, teacher_weight = torch.randn(ROWS, 6), torch.randn(VOCABULARY, 6)
    shift_labels = labels if has_labels else None
    loss = LIGER["transformers.LigerFusedLinearJSD"](0.3, temperature=2.0)(
        x, weight, teacher, teacher_weight, shift_labels
    )
    q, p = ((logits / 2).log_softmax(-1) for logits in (x @ weight.T, teacher @ teacher_weight.T))
    assert_equal_losses(loss, LIGER["transformers.functional.liger_jsd"](q, p, shift_labels, 0.3), x, weight)
