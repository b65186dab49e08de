"""Liger's losses equal plain torch, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.functional import cross_entropy, kl_div, log_softmax, logsigmoid
from torch.testing import assert_close

from dsexplore._internal.errors import UsageError
from dsexplore._internal.worlds.extensions.liger_kernel import EXTENSIONS
from dsexplore._internal.worlds.simulate import current_world, simulate

LIGER: Any = EXTENSIONS["liger_kernel"]
LABELS = torch.tensor([[1, 2, -100], [0, 3, 4], [4, -100, -100], [2, 1, 0]])
"""Of two pairs."""


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


DPO: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sigmoid": lambda c, r: -sigmoid(c - r).log(),
    "hinge": lambda c, r: functional.relu(1 - c + r),
    "exo_pair": lambda c, r: (
        sigmoid(c - r) * (sigmoid(c - r) / 0.9).log() + sigmoid(r - c) * (sigmoid(r - c) / 0.1).log()
    ),
    "nca_pair": lambda c, r: -sigmoid(c).log() - 0.5 * sigmoid(-c).log() - 0.5 * sigmoid(-r).log(),
    "robust": lambda c, r: (-0.9 * sigmoid(c - r).log() + 0.1 * sigmoid(r - c).log()) / 0.8,
    "bco_pair": lambda c, r: -sigmoid(c).log() - sigmoid(-r).log(),
    "sppo_hard": lambda c, r: (c / 0.2 - 2.5) ** 2 + (r / 0.2 + 2.5) ** 2,
    "apo_zero": lambda c, r: 1 - sigmoid(c) + sigmoid(r),
    "apo_down": lambda c, r: sigmoid(c) + 1 - sigmoid(c - r),
    "discopop": lambda c, r: (
        -sigmoid(c - r).log() * (1 - sigmoid(2 * (c - r))) + torch.exp(r - c) * sigmoid(2 * (c - r))
    ),
}
"""The losses of rewards of chosen and rejected, where beta is 0.2, label smoothing 0.1 and the temperature 0.5."""


def log_probabilities() -> tuple[Tensor, Tensor]:
    return torch.randn(3, 5, requires_grad=True), log_softmax(torch.randn(3, 5), -1)


@pytest.mark.parametrize("reduction", ["batchmean", "sum", "none"])
def test_kl_divergence(reduction: str) -> None:
    logits, target = log_probabilities()
    q = log_softmax(logits, -1)
    loss = LIGER["transformers.LigerKLDIVLoss"](reduction=reduction)(q, target.exp())
    assert_close(loss, kl_div(q, target.exp(), reduction=reduction))
    assert_close(LIGER["ops.kl_div.LigerKLDivLossFunction"].apply(q, target, reduction, True), loss)


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_jensen_shannon_divergence(beta: float) -> None:
    logits, p = log_probabilities()
    q = log_softmax(logits, -1)
    mixed = (beta * p.exp() + (1 - beta) * q.exp()).log()
    if beta in (0.0, 1.0):
        rows = (q.exp() * (q - p) if beta else p.exp() * (p - q)).sum(-1)
    else:
        rows = (beta * p.exp() * (p - mixed) + (1 - beta) * q.exp() * (q - mixed)).sum(-1)
    loss = LIGER["transformers.LigerJSD"](beta)(q, p)
    assert_close(loss, rows.mean())
    grads = [torch.autograd.grad(each, logits, retain_graph=True)[0] for each in (loss, rows.mean())]
    assert_close(*grads)
    of_labels = LIGER["ops.jsd.LigerJSDFunction"].apply(q, p, torch.tensor([1, -100, 2]), beta)
    assert_close(of_labels, (rows[0] + rows[2]) / 2)


def test_divergence_of_two_layers() -> None:
    x, weight, y, teacher = (torch.randn(*shape) for shape in ((3, 4), (5, 4), (3, 6), (5, 6)))
    loss = LIGER["transformers.LigerFusedLinearJSD"](temperature=2.0)(x, weight, y, teacher)
    q, p = log_softmax(x @ weight.T / 2, -1), log_softmax(y @ teacher.T / 2, -1)
    assert_close(loss, LIGER["transformers.functional.liger_jsd"](q, p))


def test_cross_entropy_functions_return_two() -> None:
    x, weight, target = torch.randn(3, 4, requires_grad=True), torch.randn(5, 4), torch.tensor([1, -100, 4])
    logits = x @ weight.T
    apply = LIGER["ops.fused_linear_cross_entropy.LigerFusedLinearCrossEntropyFunction"].apply
    loss, z_loss = apply(x, weight, target, None, None, -100, 0.0, 0.1, "sum")
    expected = cross_entropy(logits, target, label_smoothing=0.1, reduction="sum")
    assert_close(loss, expected)
    assert z_loss is None
    of_logits = LIGER["ops.cross_entropy.LigerCrossEntropyFunction"].apply(logits, target, None, -100, 0.5)
    assert_close(of_logits[0], cross_entropy(logits, target) + 0.5 * logits.logsumexp(-1)[[0, 2]].square().mean())


class TestPreferences:
    """Losses of a layer's outputs, whose pairs are sequences 0 and 2, and 1 and 3."""

    def losses(self, name: str, is_mean: bool, *more: Any, **options: Any) -> tuple[Tensor, Tensor, Tensor, Any]:
        """Return Liger's loss, the log-probabilities, the likelihood loss of the chosen, and the input."""
        torch.manual_seed(0)
        x, weight = torch.randn(4, 3, 6, requires_grad=True), torch.randn(5, 6)
        loss, details = LIGER[f"chunked_loss.{name}"](**options)(weight, x, LABELS, None, *more)
        logits = x @ weight.T
        each = -cross_entropy(logits.transpose(1, 2), LABELS, reduction="none")
        logps = each.sum(1) / (LABELS != -100).sum(1) if is_mean else each.sum(1)
        assert_close(torch.cat(details[:2]), logps.detach())
        return loss, logps, cross_entropy(logits[:2].flatten(0, 1), LABELS[:2].flatten()), x

    def equal(self, loss: Tensor, expected: Tensor, x: Tensor) -> None:
        assert_close(loss, expected)
        grads = [torch.autograd.grad(each, x, retain_graph=True)[0] for each in (loss, expected)]
        assert_close(*grads)

    @pytest.mark.parametrize("loss_type", list(DPO))
    def test_dpo(self, loss_type: str) -> None:
        y, weight = torch.randn(4, 3, 6), torch.randn(5, 6)
        of_reference = -cross_entropy((y @ weight.T).transpose(1, 2), LABELS, reduction="none").sum(1)
        options: Any = {"beta": 0.2, "loss_type": loss_type, "label_smoothing": 0.1, "discopop_tau": 0.5}
        loss, logps, _, x = self.losses("LigerFusedLinearDPOLoss", False, y, weight, **options)
        chosen, rejected = (0.2 * (logps - of_reference)).chunk(2)
        self.equal(loss, DPO[loss_type](chosen, rejected).mean(), x)

    def test_orpo(self) -> None:
        loss, logps, nll, x = self.losses("LigerFusedLinearORPOLoss", True, beta=0.2)
        odds = (logps.exp() / (1 - logps.exp())).log()
        self.equal(loss, nll - 0.2 * logsigmoid(odds[:2] - odds[2:]).mean(), x)

    def test_cpo_and_simpo(self) -> None:
        loss, logps, nll, x = self.losses("LigerFusedLinearCPOLoss", False, beta=0.2, label_smoothing=0.1)
        difference = 0.2 * (logps[:2] - logps[2:])
        self.equal(loss, nll - (0.9 * logsigmoid(difference) + 0.1 * logsigmoid(-difference)).mean(), x)
        loss, logps, _, x = self.losses("LigerFusedLinearSimPOLoss", True, gamma=0.3, compute_nll_loss=False)
        self.equal(loss, -logsigmoid(0.1 * (logps[:2] - logps[2:]) - 0.3).mean(), x)

    def test_another_loss_is_refused(self) -> None:
        with pytest.raises(UsageError, match="no loss_type='ipo'"):
            LIGER["chunked_loss.LigerFusedLinearDPOLoss"](loss_type="ipo")


def test_a_model_keeps_its_own_modules_and_a_note_says_so() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=8, intermediate_size=8, num_attention_heads=2, num_hidden_layers=1, vocab_size=9
    )
    with simulate(2):
        model = LIGER["transformers.AutoLigerKernelForCausalLM"].from_config(config, rope=True)
        world = current_world()
        assert world is not None
        assert any("_apply_liger_kernel changed nothing" in note for note in world.remarks.notes())
    assert isinstance(model, transformers.LlamaForCausalLM)
