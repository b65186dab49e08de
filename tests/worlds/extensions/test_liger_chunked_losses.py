"""Liger's KTO, GRPO and distillation equal plain torch, forward and backward, and send what theirs send."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax
from torch.testing import assert_close

import dsexplore
from dsexplore._internal.errors import UsageError
from dsexplore._internal.worlds.extensions.liger_kernel import EXTENSIONS

LIGER: Any = EXTENSIONS["liger_kernel"]
LABELS = torch.tensor([[1, 2, -100], [0, 3, 4], [4, -100, -100], [2, 1, 0]])
MASK = (LABELS != -100).float()
GAINS = torch.tensor([1.0, -0.5, 0.8, -1.2])


TOKENS = LABELS.clamp(min=0)


def equal(loss: Tensor, expected: Tensor, x: Tensor) -> None:
    assert_close(loss, expected)
    grads = [torch.autograd.grad(each, x, retain_graph=True)[0] for each in (loss, expected)]
    assert_close(*grads)


def layer() -> tuple[Tensor, Tensor, Tensor]:
    """Return the input of a layer, its weight, and log-probabilities of the labels."""
    torch.manual_seed(0)
    x, weight = torch.randn(4, 3, 6, requires_grad=True), torch.randn(5, 6)
    return x, weight, -cross_entropy((x @ weight.T).transpose(1, 2), LABELS, reduction="none")


@pytest.mark.parametrize("is_mean", [False, True])
def test_kto(is_mean: bool) -> None:
    x, weight, each = layer()
    y, kl, wanted = torch.randn(4, 3, 6), torch.tensor(0.3), torch.tensor([True, False, True, False])
    of_reference = -cross_entropy((y @ weight.T).transpose(1, 2), LABELS, reduction="none")
    tokens = MASK.sum(1) if is_mean else 1
    ratios = (each - of_reference).sum(1) / tokens
    expected = 1 - torch.sigmoid(0.2 * (ratios - kl) * torch.tensor([1, -1, 1, -1]))
    make = LIGER["chunked_loss.LigerFusedLinearKTOLoss"]
    kto = make(beta=0.2, use_ref_model=True, average_log_prob=is_mean)
    loss, details = kto(x, weight, LABELS, None, wanted, y, weight, None, kl)
    equal(loss, expected.mean(), x)
    logps, logits = each.sum(1) / tokens, (x @ weight.T).sum((1, 2))
    sums = [value[kept].sum() for value in (logps, logits, 0.2 * ratios) for kept in (wanted, ~wanted)]
    assert_close(details, tuple(part.detach() for part in sums))
    with pytest.raises(UsageError, match="preference_labels is None"):
        make()(x, weight, LABELS)
    with pytest.raises(UsageError, match="without a reference model"):
        kto(x, weight, LABELS, None, wanted)


def policy(kind: str, ratio: Tensor, logps: Tensor) -> Tensor:
    """Return the loss of each token."""
    gains = GAINS[:, None]
    if kind == "sapo":
        t = torch.where(gains > 0, 1.0, 1.05)
        return -gains * 4 / t / (1 + torch.exp(-t * (ratio - 1)))
    if kind == "cispo":
        return -gains * logps * torch.minimum(ratio, torch.tensor(0.2)).detach()
    cut = torch.maximum(torch.minimum(ratio, torch.tensor(1.2)), torch.tensor(0.8))
    return -torch.minimum(ratio * gains, cut * gains)


MEANS: dict[str, Any] = {
    "grpo": lambda losses: (losses.sum(1) / MASK.sum(1)).mean(),
    "sapo": lambda losses: (losses.sum(1) / MASK.sum(1)).mean(),
    "bnpo": lambda losses: losses.sum() / 9,
    "dapo": lambda losses: losses.sum() / 9,
    "cispo": lambda losses: losses.sum() / 9,
    "dr_grpo": lambda losses: losses.sum() / (4 * 7),
    "luspo": lambda losses: (losses * MASK.sum(1, keepdim=True)).mean(),
}
"""Of losses that are 0 where there is no label, but for Liger's luspo; 9 of 12 tokens have one."""


@pytest.mark.parametrize("kind", list(MEANS))
def test_grpo(kind: str) -> None:
    x, weight, _ = layer()
    logps = log_softmax(x @ weight.T, -1).gather(-1, TOKENS[..., None])[..., 0]
    old, reference = (logps.detach() + 0.3 * torch.randn(4, 3) for _ in range(2))
    losses = policy(kind, torch.exp(logps - old), logps)
    expected = losses + 0.1 * (torch.exp(reference - logps) - (reference - logps) - 1)
    grpo = LIGER["chunked_loss.LigerFusedLinearGRPOLoss"](beta=0.1, loss_type=kind, max_completion_length=7)
    loss, details = grpo(x, weight, TOKENS, MASK, GAINS, None, reference, old)
    equal(loss, MEANS[kind](expected if kind == "luspo" else expected * MASK), x)
    assert len(details) == 2
    assert all(detail.shape == () for detail in details)


def test_grpo_of_sequences_and_of_a_reference_layer() -> None:
    x, weight, logps = layer()
    y, old = torch.randn(4, 3, 6), logps.detach() + 0.3 * torch.randn(4, 3)
    options: Any = {"loss_type": "grpo", "importance_sampling_level": "sequence", "beta": 0.1}
    grpo = LIGER["chunked_loss.LigerFusedLinearGRPOLoss"](**options)
    loss, _ = grpo(x, weight, TOKENS, MASK, GAINS, None, None, old, y, weight)
    reference = log_softmax(y @ weight.T, -1).gather(-1, TOKENS[..., None])[..., 0]
    ratio = torch.exp(((logps - old) * MASK).sum(1, keepdim=True) / MASK.sum(1, keepdim=True))
    losses = policy("grpo", ratio, logps) + 0.1 * (torch.exp(reference - logps) - (reference - logps) - 1)
    equal(loss, MEANS["grpo"](losses * MASK), x)
    with pytest.raises(UsageError, match="without a reference model"):
        grpo(x, weight, TOKENS, MASK, GAINS)
    with pytest.raises(UsageError, match="no loss_type='vespo'"):
        LIGER["chunked_loss.LigerFusedLinearGRPOLoss"](loss_type="vespo")


@pytest.mark.parametrize(("kind", "chunk", "sends"), [("dapo", 1, 4), ("cispo", 2, 2), ("grpo", 1, 0)])
def test_grpo_counts_the_tokens_of_all_ranks_once_a_chunk(kind: str, chunk: int, sends: int) -> None:
    with dsexplore.simulate(2), dsexplore.commtrace() as trace:
        grpo = LIGER["chunked_loss.LigerFusedLinearGRPOLoss"](loss_type=kind, chunk_size=chunk, use_ref_model=False)
        x, weight, _ = layer()
        loss, _ = grpo(x, weight, TOKENS, MASK, GAINS)
        loss.backward()
    assert trace.events.select("op", "message_bytes").rows() == [("all_reduce", 4)] * sends


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_distillation(beta: float) -> None:
    x, weight, each = layer()
    y, teacher = torch.randn(4, 3, 8), torch.randn(7, 8)
    student = torch.cat([x @ weight.T, torch.zeros(4, 3, 2)], -1) / 2
    q, p = log_softmax(student, -1), log_softmax(y @ teacher.T / 2, -1)
    mixed = (beta * p.exp() + (1 - beta) * q.exp()).log()
    rows = beta * p.exp() * (p - mixed) + (1 - beta) * q.exp() * (q - mixed)
    if beta in (0.0, 1.0):
        rows = q.exp() * (q - p) if beta else p.exp() * (p - q)
    hard, soft = -each.sum() / 9, (rows.sum(-1) * MASK).sum() / 9
    options: Any = {"weight_hard_loss": 0.4, "weight_soft_loss": 0.6, "beta": beta, "temperature": 2.0}
    jsd = LIGER["chunked_loss.LigerFusedLinearJSDLoss"](**options)
    equal(jsd(x, weight, y, teacher, LABELS), 0.4 * hard + 0.6 * soft, x)
    cosine = LIGER["chunked_loss.LigerFusedLinearCosineSimilarityLoss"](**options, return_soft_hard_loss=True)
    teachers = y @ teacher.T
    angle = (student * teachers).sum(-1) / (student.norm(dim=-1) * teachers.norm(dim=-1))
    soft = (beta * (1 - angle)).sum() / 9
    loss, *both = cosine(x, weight, y, teacher, LABELS)
    equal(loss, 0.4 * hard + 0.6 * soft, x)
    assert_close(both, [soft.detach(), hard.detach()])
