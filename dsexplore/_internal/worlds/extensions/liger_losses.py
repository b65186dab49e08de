"""Stand-ins for Liger's divergences (KL, Jensen-Shannon) and preference losses (DPO, ORPO, CPO, SimPO).

Names and signatures are those of https://github.com/linkedin/Liger-Kernel. Preference losses compute all logits at
once, the kernels a pair's at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div, linear, logsigmoid, nll_loss

from dsexplore._internal.errors import UsageError
from dsexplore._internal.worlds.extensions.linear_losses import loss_with_gradients
from dsexplore._internal.worlds.extensions.registry import Names


def kl_div_of_kernel(
    y_pred: Tensor, y_true: Tensor, reduction: str = "batchmean", log_target: bool = False, eps: float = 1e-10
) -> Tensor:
    """Return the KL divergence of log-probabilities from the target; with ``"none"`` that of each element."""
    return kl_div(y_pred, y_true, reduction=reduction, log_target=log_target)


def liger_kl_div(
    input: Tensor,  # noqa: A002 # as Liger's
    target: Tensor,
    size_average: bool = True,
    reduce: bool = True,
    reduction: str = "mean",
    log_target: bool = False,
    eps: float = 1e-10,
) -> Tensor:
    """Return the KL divergence of log-probabilities from the target; ``size_average`` and ``reduce`` have no effect."""
    return kl_div_of_kernel(input, target, reduction, log_target, eps)


def liger_jsd(
    input: Tensor,  # noqa: A002 # as Liger's
    target: Tensor,
    shift_labels: Tensor | None = None,
    beta: float = 0.5,
    ignore_index: int = -100,
) -> Tensor:
    """Return the generalized Jensen-Shannon divergence between a student's and a teacher's distributions.

    Args:
        input: log-probabilities of the student, shape (rows, vocabulary).
        target: log-probabilities of the teacher, shape (rows, vocabulary).
        shift_labels: labels of the rows, shape (rows,); None if all rows have a loss.
        beta: weight of the teacher: 0 for the KL divergence, 1 for the reverse one.
        ignore_index: label of rows without a loss.
    """
    rows = divergences(input, target, beta)
    if shift_labels is None:
        return (rows.sum() / rows.numel()).to(input.dtype)
    is_counted = shift_labels != ignore_index
    return (rows.masked_fill(~is_counted, 0).sum() / is_counted.sum().clamp(min=1)).to(input.dtype)


def divergences(student: Tensor, teacher: Tensor, beta: float) -> Tensor:
    """Return the divergence of `liger_jsd` of each row, fp32."""
    q, p = student.float(), teacher.float()
    if beta == 0:
        losses = p.exp() * (p - q)
    elif beta == 1:
        losses = q.exp() * (q - p)
    else:
        mixed = torch.logsumexp(torch.stack((p + torch.tensor(beta).log(), q + torch.tensor(1 - beta).log())), 0)
        losses = beta * p.exp() * (p - mixed) + (1 - beta) * q.exp() * (q - mixed)
    return losses.sum(-1)


class LigerKLDIVLoss(nn.KLDivLoss):
    """The KL divergence, with the options of ``torch.nn.KLDivLoss``."""

    def __init__(self, eps: float = 1e-10, *options: Any, **named: Any) -> None:
        super().__init__(*options, **named)

    def forward(self, y_pred: Tensor, y_true: Tensor) -> Tensor:
        """Return the loss."""
        return super().forward(y_pred, y_true)


class LigerJSD(nn.Module):
    """The Jensen-Shannon divergence, with the options of `liger_jsd`."""

    def __init__(self, beta: float = 0.5, ignore_index: int = -100) -> None:
        super().__init__()
        self.beta, self.ignore_index = beta, ignore_index

    def forward(self, log_q: Tensor, log_p: Tensor, shift_labels: Tensor | None = None) -> Tensor:
        """Return the loss."""
        return liger_jsd(log_q, log_p, shift_labels, self.beta, self.ignore_index)


class LigerFusedLinearJSD(nn.Module):
    """The Jensen-Shannon divergence between the outputs of two linear layers, a student's and a teacher's."""

    def __init__(
        self, jsd_beta: float = 0.5, ignore_index: int = -100, temperature: float = 1.0, **kernels: Any
    ) -> None:
        super().__init__()
        self.jsd_beta, self.ignore_index, self.temperature = jsd_beta, ignore_index, temperature

    def forward(
        self,
        student_input: Tensor,
        student_weight: Tensor,
        teacher_input: Tensor,
        teacher_weight: Tensor,
        shift_labels: Tensor | None = None,
    ) -> Tensor:
        """Return the loss; the teacher has no gradient."""
        if shift_labels is None:
            is_counted = torch.ones(len(student_input), dtype=torch.bool, device=student_input.device)
        else:
            is_counted = shift_labels != self.ignore_index
        count = is_counted.sum().clamp(min=1)

        def loss_of(logits: Tensor, teacher_rows: Tensor, is_counted: Tensor) -> tuple[Tensor]:
            student = (logits / self.temperature).log_softmax(-1)
            with torch.no_grad():
                teacher = (linear(teacher_rows, teacher_weight) / self.temperature).log_softmax(-1)
            return ((divergences(student, teacher, self.jsd_beta) * is_counted).sum() / count,)

        (loss,) = loss_with_gradients(loss_of, student_input, student_weight, None, teacher_input, is_counted)
        return loss.to(student_input.dtype)


def sums_of_log_probabilities(logits: Tensor, target: Tensor, *, ignore_index: int, is_mean: bool) -> Tensor:
    """Return the sum of the log-probabilities of each sequence's labels, or their mean; ignored labels do not count."""
    is_counted = target != ignore_index
    labels = target.masked_fill(~is_counted, 0).unsqueeze(-1)
    logps = logits.float().log_softmax(-1).gather(-1, labels).squeeze(-1) * is_counted
    return logps.sum(-1) / is_counted.sum(-1) if is_mean else logps.sum(-1)


class _Preference(nn.Module):
    """Base class of losses of pairs: the first half of a batch was chosen, the second half rejected.

    Args:
        ignore_index: label of tokens without a loss.
        beta: factor of the rewards.
        options: further options of Liger's losses; those that choose kernels have no effect.
    """

    averages = True
    """Default of ``average_log_prob``: True to use mean log-probabilities, False for sums."""
    has_nll = True
    """Default of ``compute_nll_loss``: True to add the negative log-likelihood of the chosen half."""

    def __init__(self, ignore_index: int = -100, beta: float = 0.1, **options: Any) -> None:
        super().__init__()
        self.ignore_index, self.beta = ignore_index, beta
        self.alpha: float = options.get("alpha", 1.0)
        self.smoothing: float = options.get("label_smoothing", 0.0)
        self.gamma: float = options.get("gamma", 0.5)
        self.computes_nll: bool = options.get("compute_nll_loss", self.has_nll)
        self.uses_average: bool = options.get("average_log_prob", self.averages)
        self.uses_reference: bool = options.get("use_ref_model", True)

    def _preferred(self, chosen: Tensor, rejected: Tensor) -> tuple[Tensor, ...]:
        """Return the loss of each pair, and further numbers of each pair, whose means `forward` returns.

        Args:
            chosen: log-probabilities of the chosen sequences, shape (pairs,).
            rejected: log-probabilities of the rejected sequences, shape (pairs,).
        """
        raise NotImplementedError

    def forward(
        self,
        lin_weight: Tensor,
        _input: Tensor,
        target: Tensor,
        bias: Tensor | None = None,
        nll_target: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the loss, and log-probabilities, mean logits, negative log-likelihood and rewards.

        Args:
            lin_weight: weight of the linear layer, shape (vocabulary, width).
            _input: input of the linear layer, shape (batch, length, width).
            target: labels, shape (batch, length).
            bias: bias of the linear layer, shape (vocabulary,).
            nll_target: labels of the negative log-likelihood; None for ``target``.
        """
        return self._loss(_input, lin_weight, target, bias, nll_target)

    def _loss(
        self,
        _input: Tensor,
        weight: Tensor,
        target: Tensor,
        bias: Tensor | None,
        nll_target: Tensor | None = None,
        references: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the results of `forward`; the log-probabilities `references` of another model are subtracted."""
        pairs = target.shape[0] // 2
        logits = linear(_input, weight, bias)
        logps = self._log_probabilities(logits, target)
        ratios = logps if references is None else logps - references
        loss, *more = self._preferred(ratios[:pairs], ratios[pairs:])
        nll = loss.new_zeros(())
        if self.computes_nll:
            labels = (target if nll_target is None else nll_target)[:pairs]
            rows = logits[:pairs].float().log_softmax(-1).flatten(0, -2)
            nll = nll_loss(rows, labels.flatten(), ignore_index=self.ignore_index)
        means = (logits[:pairs].mean(), logits[pairs:].mean())
        rewards = (self.beta * ratios[:pairs], self.beta * ratios[pairs:])
        total = self.alpha * nll + loss.sum() / pairs
        details = (logps[:pairs], logps[pairs:], *means, nll, *rewards, *(number.sum() / pairs for number in more))
        return total, tuple(detail.detach() for detail in details)

    def _log_probabilities(self, logits: Tensor, target: Tensor) -> Tensor:
        return sums_of_log_probabilities(logits, target, ignore_index=self.ignore_index, is_mean=self.uses_average)


def _exo_loss(margin: Tensor, smoothing: float) -> Tensor:
    """Return the KL divergence of the preference from one that is right with probability ``1 - smoothing``."""
    right, wrong = logsigmoid(margin), logsigmoid(-margin)
    return right.exp() * (right - math.log(1 - smoothing)) + wrong.exp() * (wrong - math.log(smoothing))


def _smoothed_loss(margin: Tensor, smoothing: float) -> Tensor:
    """Return the logistic loss of margins with label smoothing."""
    return -(1 - smoothing) * logsigmoid(margin) - smoothing * logsigmoid(-margin)


class _Options(NamedTuple):
    """Options of losses of DPO."""

    beta: float
    smoothing: float
    """Label smoothing."""
    tau: float
    """Temperature of DiscoPOP."""


_DPO_LOSSES: dict[str, Callable[[Tensor, Tensor, _Options], Tensor]] = {
    "sigmoid": lambda c, r, o: -logsigmoid(c - r),
    "hinge": lambda c, r, o: torch.relu(1 - (c - r)),
    "exo_pair": lambda c, r, o: _exo_loss(c - r, o.smoothing),
    "nca_pair": lambda c, r, o: -logsigmoid(c) - (logsigmoid(-c) + logsigmoid(-r)) / 2,
    "robust": lambda c, r, o: (
        (o.smoothing * logsigmoid(r - c) - (1 - o.smoothing) * logsigmoid(c - r)) / (1 - 2 * o.smoothing)
    ),
    "bco_pair": lambda c, r, o: -logsigmoid(c) - logsigmoid(-r),
    "sppo_hard": lambda c, r, o: ((c - 0.5) / o.beta).square() + ((r + 0.5) / o.beta).square(),
    "apo_zero": lambda c, r, o: torch.sigmoid(-c) + torch.sigmoid(r),
    "apo_down": lambda c, r, o: torch.sigmoid(c) + torch.sigmoid(r - c),
    "discopop": lambda c, r, o: torch.lerp(-logsigmoid(c - r), torch.exp(r - c), torch.sigmoid((c - r) / o.tau)),
}
"""{loss_type: loss of each pair, from the rewards of chosen (c) and rejected (r) sequences and options (o)}."""


class LigerFusedLinearDPOLoss(_Preference):
    """Direct preference optimization (https://arxiv.org/abs/2305.18290), with all values of Liger's ``loss_type``.

    Raises:
        UsageError: ``loss_type`` is unknown, or lacks a label smoothing that it needs.
    """

    averages = False
    has_nll = False

    def __init__(self, ignore_index: int = -100, beta: float = 0.1, alpha: float = 1.0, **options: Any) -> None:
        super().__init__(ignore_index, beta, alpha=alpha, **options)
        self.loss_type = options.get("loss_type", "sigmoid")
        self.tau: float = options.get("discopop_tau", 0.05)
        if self.loss_type not in _DPO_LOSSES:
            raise UsageError(
                f"liger_kernel is not installed, and its stand-in has no loss_type={self.loss_type!r}: take one of "
                f"{', '.join(_DPO_LOSSES)}, or add it with dsexplore.register_extension"
            )
        if self.loss_type == "exo_pair" and self.smoothing <= 0:
            raise UsageError("loss_type='exo_pair' needs a label_smoothing above 0: give one, such as 1e-3")

    def _preferred(self, chosen: Tensor, rejected: Tensor) -> tuple[Tensor, ...]:
        loss = _DPO_LOSSES[self.loss_type]
        return (loss(self.beta * chosen, self.beta * rejected, _Options(self.beta, self.smoothing, self.tau)),)

    def forward(  # as Liger's
        self,
        lin_weight: Tensor,
        _input: Tensor,
        target: Tensor,
        bias: Tensor | None = None,
        ref_input: Tensor | None = None,
        ref_weight: Tensor | None = None,
        ref_bias: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the results of the other losses, with log-probabilities relative to a reference model.

        Args:
            lin_weight: weight of the linear layer, shape (vocabulary, width).
            _input: input of the linear layer, shape (batch, length, width).
            target: labels, shape (batch, length).
            bias: bias of the linear layer, shape (vocabulary,).
            ref_input: input of the reference model's linear layer; None without a reference model.
            ref_weight: weight of that layer.
            ref_bias: bias of that layer.
        """
        references = None
        if self.uses_reference and ref_input is not None and ref_weight is not None:
            with torch.no_grad():
                references = self._log_probabilities(linear(ref_input, ref_weight, ref_bias), target)
        return self._loss(_input, lin_weight, target, bias, None, references)


class LigerFusedLinearORPOLoss(_Preference):
    """Odds-ratio preference optimization (https://arxiv.org/abs/2403.07691)."""

    def _preferred(self, chosen: Tensor, rejected: Tensor) -> tuple[Tensor, ...]:
        odds = chosen - rejected - (torch.log1p(-chosen.exp()) - torch.log1p(-rejected.exp()))
        return -self.beta * logsigmoid(odds), logsigmoid(odds), odds


class LigerFusedLinearCPOLoss(_Preference):
    """Contrastive preference optimization (https://arxiv.org/abs/2401.08417)."""

    averages = False

    def __init__(
        self,
        ignore_index: int = -100,
        beta: float = 0.1,
        alpha: float = 1.0,
        label_smoothing: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__(ignore_index, beta, alpha=alpha, label_smoothing=label_smoothing, **options)

    def _margin(self) -> float:
        return 0.0

    def _preferred(self, chosen: Tensor, rejected: Tensor) -> tuple[Tensor, ...]:
        difference = self.beta * (chosen - rejected) - self._margin()
        return (_smoothed_loss(difference, self.smoothing),)


class LigerFusedLinearSimPOLoss(LigerFusedLinearCPOLoss):
    """Preference optimization with a margin, of mean log-probabilities (https://arxiv.org/abs/2405.14734)."""

    averages = True

    def _margin(self) -> float:
        return self.gamma


_PREFERENCES = (
    LigerFusedLinearDPOLoss,
    LigerFusedLinearORPOLoss,
    LigerFusedLinearCPOLoss,
    LigerFusedLinearSimPOLoss,
)
NAMES: Names = {
    **{f"chunked_loss.{kind.__name__}": kind for kind in _PREFERENCES},
    "transformers.LigerKLDIVLoss": LigerKLDIVLoss,
    "transformers.kl_div.LigerKLDIVLoss": LigerKLDIVLoss,
    "transformers.LigerJSD": LigerJSD,
    "transformers.jsd.LigerJSD": LigerJSD,
    "transformers.LigerFusedLinearJSD": LigerFusedLinearJSD,
    "transformers.functional.liger_kl_div": liger_kl_div,
    "transformers.functional.liger_jsd": liger_jsd,
}
