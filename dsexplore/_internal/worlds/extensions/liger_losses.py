"""Stand-ins for Liger's losses of distillation and of preferences, on plain logits.

Names and signatures are those of https://github.com/linkedin/Liger-Kernel; all chunks are computed at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div, linear, logsigmoid, nll_loss

from dsexplore._internal.errors import UsageError
from dsexplore._internal.worlds.extensions.registry import Names


def kl_div_of_kernel(
    y_pred: Tensor, y_true: Tensor, reduction: str = "batchmean", log_target: bool = False, eps: float = 1e-10
) -> Tensor:
    """Return the KL divergence of log-probabilities from the target; ``"none"`` keeps its shape."""
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
    """Return the KL divergence of log-probabilities from the target; ``size_average`` and ``reduce`` change nothing."""
    return kl_div_of_kernel(input, target, reduction, log_target, eps)


def liger_jsd(
    input: Tensor,  # noqa: A002 # likewise
    target: Tensor,
    shift_labels: Tensor | None = None,
    beta: float = 0.5,
    ignore_index: int = -100,
    *kernels: Any,
) -> Tensor:
    """Return the Jensen-Shannon divergence of the student's log-probabilities and the teacher's.

    Args:
        input: of the student, ``(rows, words)``.
        target: of the teacher.
        shift_labels: ``(rows,)``; rows of ``ignore_index`` have no loss.
        beta: 0 for the KL divergence, 1 for the reverse one.
        ignore_index: the label of rows without a loss.
        kernels: what chooses kernels.
    """
    q, p = input.float(), target.float()
    if beta in (0.0, 1.0):
        losses = q.exp() * (q - p) if beta else p.exp() * (p - q)
    else:
        mixed = torch.logsumexp(torch.stack((p + torch.tensor(beta).log(), q + torch.tensor(1 - beta).log())), 0)
        losses = beta * p.exp() * (p - mixed) + (1 - beta) * q.exp() * (q - mixed)
    rows = losses.sum(-1)
    if shift_labels is None:
        return (rows.sum() / rows.numel()).to(input.dtype)
    is_kept = shift_labels != ignore_index
    return (rows.masked_fill(~is_kept, 0).sum() / is_kept.sum().clamp(min=1)).to(input.dtype)


class LigerKLDIVLoss(nn.KLDivLoss):
    """The KL divergence; options are those of torch's."""

    def __init__(self, eps: float = 1e-10, *options: Any, **named: Any) -> None:
        super().__init__(*options, **named)

    def forward(self, y_pred: Tensor, y_true: Tensor) -> Tensor:
        """Return the loss."""
        return super().forward(y_pred, y_true)


class LigerJSD(nn.Module):
    """The Jensen-Shannon divergence; options are those of `liger_jsd`."""

    def __init__(self, beta: float = 0.5, ignore_index: int = -100) -> None:
        super().__init__()
        self.beta, self.ignore_index = beta, ignore_index

    def forward(self, log_q: Tensor, log_p: Tensor, shift_labels: Tensor | None = None) -> Tensor:
        """Return the loss."""
        return liger_jsd(log_q, log_p, shift_labels, self.beta, self.ignore_index)


class LigerFusedLinearJSD(nn.Module):
    """The Jensen-Shannon divergence of two linear layers' outputs."""

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
        student = (linear(student_input, student_weight) / self.temperature).log_softmax(-1)
        with torch.no_grad():
            teacher = (linear(teacher_input, teacher_weight) / self.temperature).log_softmax(-1)
        return liger_jsd(student, teacher, shift_labels, self.jsd_beta, self.ignore_index)


def sums_of_log_probabilities(logits: Tensor, target: Tensor, ignored: int, is_mean: bool) -> Tensor:
    """Return the log-probability of each sequence's labels, or its mean over those that are not ignored."""
    is_kept = target != ignored
    labels = target.masked_fill(~is_kept, 0).unsqueeze(-1)
    losses = logits.float().log_softmax(-1).gather(-1, labels).squeeze(-1) * is_kept
    return losses.sum(-1) / is_kept.sum(-1) if is_mean else losses.sum(-1)


class _Preference(nn.Module):
    """A loss of pairs: the first half of a batch was chosen, the second rejected.

    Args:
        options: of Liger's losses; those of its kernels change nothing.
    """

    averages = True
    has_nll = True

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
        """Return the loss of each pair, and what else is returned of each."""
        raise NotImplementedError

    def forward(
        self,
        lin_weight: Tensor,
        _input: Tensor,
        target: Tensor,
        bias: Tensor | None = None,
        nll_target: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the loss, and log-probabilities, mean logits, likelihood loss and rewards.

        Args:
            lin_weight: ``(words, width)``.
            _input: ``(batch, length, width)``.
            target: ``(batch, length)``.
            bias: ``(words,)``.
            nll_target: labels of the likelihood loss; None for ``target``.
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
        details = (logps[:pairs], logps[pairs:], *means, nll, *rewards, *(part.sum() / pairs for part in more))
        return total, tuple(detail.detach() for detail in details)

    def _log_probabilities(self, logits: Tensor, target: Tensor) -> Tensor:
        return sums_of_log_probabilities(logits, target, self.ignore_index, self.uses_average)


def _exclusive(difference: Tensor, smoothing: float) -> Tensor:
    """Return the KL divergence of the preference from one that is right but for ``smoothing``."""
    right, wrong = logsigmoid(difference), logsigmoid(-difference)
    return right.exp() * (right - math.log(1 - smoothing)) + wrong.exp() * (wrong - math.log(smoothing))


def _smoothed(difference: Tensor, smoothing: float) -> Tensor:
    return -(1 - smoothing) * logsigmoid(difference) - smoothing * logsigmoid(-difference)


_DPO: dict[str, Callable[[Tensor, Tensor, float, float, float], Tensor]] = {
    "sigmoid": lambda c, r, beta, smoothing, tau: -logsigmoid(c - r),
    "hinge": lambda c, r, beta, smoothing, tau: torch.relu(1 - (c - r)),
    "exo_pair": lambda c, r, beta, smoothing, tau: _exclusive(c - r, smoothing),
    "nca_pair": lambda c, r, beta, smoothing, tau: -logsigmoid(c) - (logsigmoid(-c) + logsigmoid(-r)) / 2,
    "robust": lambda c, r, beta, smoothing, tau: (
        (smoothing * logsigmoid(r - c) - (1 - smoothing) * logsigmoid(c - r)) / (1 - 2 * smoothing)
    ),
    "bco_pair": lambda c, r, beta, smoothing, tau: -logsigmoid(c) - logsigmoid(-r),
    "sppo_hard": lambda c, r, beta, smoothing, tau: ((c - 0.5) / beta).square() + ((r + 0.5) / beta).square(),
    "apo_zero": lambda c, r, beta, smoothing, tau: torch.sigmoid(-c) + torch.sigmoid(r),
    "apo_down": lambda c, r, beta, smoothing, tau: torch.sigmoid(c) + torch.sigmoid(r - c),
    "discopop": lambda c, r, beta, smoothing, tau: torch.lerp(
        -logsigmoid(c - r), torch.exp(r - c), torch.sigmoid((c - r) / tau)
    ),
}
"""{loss_type: the loss of the rewards of chosen and rejected, beta, label smoothing and temperature}."""


class LigerFusedLinearDPOLoss(_Preference):
    """Direct preference optimization (https://arxiv.org/abs/2305.18290), of all of Liger's losses.

    Raises:
        UsageError: it is another loss.
    """

    averages = False
    has_nll = False

    def __init__(self, ignore_index: int = -100, beta: float = 0.1, alpha: float = 1.0, **options: Any) -> None:
        super().__init__(ignore_index, beta, alpha=alpha, **options)
        self.loss_type = options.get("loss_type", "sigmoid")
        self.tau: float = options.get("discopop_tau", 0.05)
        if self.loss_type not in _DPO:
            raise UsageError(
                f"liger_kernel is not installed, and what stands in for it here has no loss_type={self.loss_type!r}: "
                f"take one of {', '.join(_DPO)}, or add it with dsexplore.register_extension"
            )
        if self.loss_type == "exo_pair" and self.smoothing <= 0:
            raise UsageError("loss_type='exo_pair' needs a label_smoothing above 0: give one, such as 1e-3")

    def _preferred(self, chosen: Tensor, rejected: Tensor) -> tuple[Tensor, ...]:
        rewards = self.beta * chosen, self.beta * rejected
        return (_DPO[self.loss_type](*rewards, self.beta, self.smoothing, self.tau),)

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
        """Return what the other losses do; log-probabilities of the reference model are subtracted."""
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
        return (_smoothed(difference, self.smoothing),)


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
