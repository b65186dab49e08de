"""Stand-ins for Liger's losses of a linear layer's output: KTO, GRPO and distillation.

Names and signatures are those of https://github.com/linkedin/Liger-Kernel. All chunks are computed at once, but send
what Liger's send: losses of GRPO that are divided by the tokens of all ranks count these once per chunk.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, linear, nll_loss, pad

from dsexplore._internal.errors import UsageError
from dsexplore._internal.worlds.extensions.liger_losses import liger_jsd, sums_of_log_probabilities
from dsexplore._internal.worlds.extensions.registry import Names

_DIVIDED_BY_ALL_TOKENS = ("dapo", "cispo")
"""Types of losses that are divided by the number of tokens of all ranks."""
_GRPO_LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo")


class LigerFusedLinearKTOLoss(nn.Module):
    """Kahneman-Tversky optimization (https://arxiv.org/abs/2402.01306), for sequences labeled desirable or not."""

    def __init__(
        self,
        ignore_index: int = -100,
        beta: float = 0.1,
        compiled: bool = True,
        use_ref_model: bool = False,
        average_log_prob: bool = False,
        chunk_size: int = 1,
    ) -> None:
        super().__init__()
        self.ignore_index, self.beta, self.use_ref_model = ignore_index, beta, use_ref_model
        self.average_log_prob = average_log_prob

    def forward(
        self,
        _input: Tensor,
        lin_weight: Tensor,
        target: Tensor,
        bias: Tensor | None = None,
        preference_labels: Tensor | None = None,
        ref_input: Tensor | None = None,
        ref_weight: Tensor | None = None,
        ref_bias: Tensor | None = None,
        kl: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the loss, and sums of log-probabilities, logits and rewards, each of desirable and other sequences.

        Args:
            _input: input of the linear layer, shape (batch, length, width).
            lin_weight: weight of the linear layer, shape (vocabulary, width).
            target: labels, shape (batch, length).
            bias: bias of the linear layer, shape (vocabulary,).
            preference_labels: True for desirable sequences, shape (batch,).
            ref_input: input of the reference model's linear layer.
            ref_weight: weight of that layer.
            ref_bias: bias of that layer.
            kl: divergence that is subtracted from the log-ratios; None for 0.

        Raises:
            UsageError: no ``preference_labels``, or no reference model with ``use_ref_model``.
        """
        if preference_labels is None:
            raise UsageError("preference_labels is None: give True for each desirable sequence, False for the others")
        logits = linear(_input, lin_weight, bias)
        options: Any = {"ignore_index": self.ignore_index, "is_mean": self.average_log_prob}
        logps = sums_of_log_probabilities(logits, target, **options)
        ratios = logps
        if self.use_ref_model:
            if ref_input is None or ref_weight is None:
                raise UsageError("use_ref_model=True without a reference model: give ref_input and ref_weight")
            with torch.no_grad():
                reference_logits = linear(ref_input, ref_weight, ref_bias)
                reference = sums_of_log_probabilities(reference_logits, target, **options)
            ratios = logps - reference
        sign = torch.where(preference_labels, 1, -1)
        loss = (1 - torch.sigmoid(self.beta * (ratios if kl is None else ratios - kl) * sign)).sum() / len(target)
        sums = []
        for numbers in (logps, logits.flatten(1).sum(1), self.beta * ratios):
            sums += [(numbers * preference_labels).sum().detach(), (numbers * ~preference_labels).sum().detach()]
        return loss, tuple(sums)


class LigerFusedLinearGRPOLoss(nn.Module):
    """Group relative policy optimization (https://arxiv.org/abs/2402.03300) and losses derived from it.

    ``"dapo"`` and ``"cispo"`` all_reduce 4 B for each chunk of ``chunk_size`` sequences; ``"dr_grpo"`` divides by
    ``max_completion_length``.

    Raises:
        UsageError: ``loss_type`` is unknown.
    """

    def __init__(
        self,
        beta: float = 0.04,
        compiled: bool = True,
        use_ref_model: bool = True,
        chunk_size: int = 1,
        epsilon_low: float = 0.2,
        epsilon_high: float = 0.2,
        loss_type: str = "dapo",
        max_completion_length: int | None = None,
        importance_sampling_level: str = "token",
        sapo_temperature_pos: float = 1.0,
        sapo_temperature_neg: float = 1.05,
        temperature: float = 1.0,
        delta: float | None = None,
        use_bias_correction_kl: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        if loss_type not in _GRPO_LOSSES:
            raise UsageError(
                f"liger_kernel is not installed, and its stand-in has no loss_type={loss_type!r}: take one of "
                f"{', '.join(_GRPO_LOSSES)}, or add it with dsexplore.register_extension"
            )
        self.beta, self.use_ref_model, self.chunk_size = beta, use_ref_model, chunk_size
        self.epsilon_low, self.epsilon_high, self.delta = epsilon_low, epsilon_high, delta
        self.loss_type, self.max_completion_length = loss_type, max_completion_length
        self.importance_sampling_level, self.temperature = importance_sampling_level, temperature
        self.sapo_temperatures = sapo_temperature_pos, sapo_temperature_neg
        self.use_bias_correction_kl = use_bias_correction_kl

    def forward(
        self,
        _input: Tensor,
        lin_weight: Tensor,
        selected_token_ids: Tensor,
        attention_mask: Tensor,
        advantages: Tensor,
        bias: Tensor | None = None,
        ref_per_token_logps: Tensor | None = None,
        old_per_token_logps: Tensor | None = None,
        ref_input: Tensor | None = None,
        ref_weight: Tensor | None = None,
        ref_bias: Tensor | None = None,
        vllm_is_ratio: Tensor | None = None,
        num_items_in_batch: Tensor | float | None = None,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the loss, and the mean KL divergence (unless ``beta`` is 0) and the fraction of clipped ratios.

        Args:
            _input: input of the linear layer, shape (batch, length, width).
            lin_weight: weight of the linear layer, shape (vocabulary, width).
            selected_token_ids: generated tokens, shape (batch, length).
            attention_mask: 1 for tokens that count, 0 for padding, shape (batch, length).
            advantages: advantages of the sequences, shape (batch,).
            bias: bias of the linear layer, shape (vocabulary,).
            ref_per_token_logps: log-probabilities of the reference model, shape (batch, length); None to compute them.
            old_per_token_logps: log-probabilities of the model that generated the tokens, shape (batch, length); None
                for the current model.
            ref_input: input of the reference model's linear layer.
            ref_weight: weight of that layer.
            ref_bias: bias of that layer.
            vllm_is_ratio: factors of the losses, shape (batch,) or (batch, length).
            num_items_in_batch: number of tokens of all ranks; None to count them.

        Raises:
            UsageError: ``use_ref_model`` without a reference model.
        """
        logps = self._log_probabilities(_input, lin_weight, bias, selected_token_ids)
        if not self.use_ref_model:
            reference = logps.detach()
        elif ref_per_token_logps is not None:
            reference = ref_per_token_logps.float()
        elif ref_input is not None and ref_weight is not None:
            with torch.no_grad():
                reference = self._log_probabilities(ref_input, ref_weight, ref_bias, selected_token_ids)
        else:
            raise UsageError("use_ref_model=True without a reference model: give ref_per_token_logps or ref_input")
        mask, gains = attention_mask.float(), advantages.unsqueeze(1)
        log_ratio = logps - (logps.detach() if old_per_token_logps is None else old_per_token_logps.float())
        if self.importance_sampling_level == "sequence":
            log_ratio = ((log_ratio * mask).sum(-1) / mask.sum(-1).clamp(min=1)).unsqueeze(-1)
        losses, is_clipped = self._policy_losses(log_ratio.exp(), logps, gains)
        if vllm_is_ratio is not None:
            losses = losses * (vllm_is_ratio.unsqueeze(-1) if vllm_is_ratio.dim() == 1 else vllm_is_ratio)
        metrics = []
        if self.beta:
            divergence = (reference - logps).exp() - (reference - logps) - 1
            divergence = divergence * log_ratio.exp() if self.use_bias_correction_kl else divergence
            losses = losses + self.beta * divergence
            metrics.append((divergence * mask).sum() / mask.sum().clamp(min=1))
        metrics.append((is_clipped.expand_as(mask) * mask).sum() / mask.sum().clamp(min=1))
        return self._reduce(losses, mask, num_items_in_batch), tuple(metric.detach() for metric in metrics)

    def _log_probabilities(self, x: Tensor, weight: Tensor, bias: Tensor | None, tokens: Tensor) -> Tensor:
        """Return the log-probability of each token, shape (batch, length)."""
        logits = linear(x, weight.to(x.dtype), bias).float() / self.temperature
        return logits.log_softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)

    def _policy_losses(self, ratio: Tensor, logps: Tensor, gains: Tensor) -> tuple[Tensor, Tensor]:
        """Return the losses without the divergence, and True for ratios that were clipped.

        Args:
            ratio: ratio of the current model's probability to that of the model that generated the tokens.
            logps: log-probabilities of the tokens.
            gains: advantages, shape (batch, 1).
        """
        if self.loss_type == "sapo":
            positive, other = (4 / t * torch.sigmoid(t * (ratio - 1)) for t in self.sapo_temperatures)
            return -torch.where(gains > 0, positive, other) * gains, torch.zeros_like(ratio, dtype=torch.bool)
        if self.loss_type == "cispo":
            is_clipped = (ratio > self.epsilon_high) & (gains > 0)
            return -ratio.clamp(max=self.epsilon_high).detach() * gains * logps, is_clipped
        low, high = 1 - self.epsilon_low, 1 + self.epsilon_high
        is_clipped = ((ratio < low) & (gains < 0)) | ((ratio > high) & (gains > 0))
        whole = ratio if self.delta is None else ratio.clamp(max=self.delta)
        return -torch.min(whole * gains, ratio.clamp(low, high) * gains), is_clipped

    def _reduce(self, losses: Tensor, mask: Tensor, tokens: Tensor | float | None) -> Tensor:
        """Return the loss of the batch from the losses of tokens; `tokens` is their number on all ranks, if known."""
        sequences = mask.shape[0]
        total = (losses * mask).sum()
        if self.loss_type in ("grpo", "sapo"):
            return ((losses * mask).sum(-1) / mask.sum(-1).clamp(min=1)).sum() / sequences
        if self.loss_type == "dr_grpo":
            if self.max_completion_length is None:
                raise UsageError("loss_type='dr_grpo' divides by max_completion_length: give it")
            return total / (sequences * self.max_completion_length)
        if self.loss_type == "luspo":
            weighted = losses * mask.sum(1, keepdim=True)
            return weighted.sum() / (sequences * weighted.shape[1])
        if self.loss_type in _DIVIDED_BY_ALL_TOKENS:
            return total / self._tokens_per_rank(mask, tokens).clamp(min=1)
        return total / mask.sum().clamp(min=1)

    def _tokens_per_rank(self, mask: Tensor, tokens: Tensor | float | None) -> Tensor:
        """Return the mean number of tokens per rank; without a known total, each chunk all_reduces its count."""
        ranks = dist.get_world_size() if dist.is_initialized() else 1
        if tokens is not None:
            return torch.as_tensor(tokens, dtype=torch.float32, device=mask.device) / ranks
        total = mask.sum()
        if dist.is_initialized():
            for _ in mask.chunk(max(1, mask.shape[0] // self.chunk_size)):
                total = mask.sum()
                dist.all_reduce(total)
        return total / ranks


class _Distillation(nn.Module):
    """Base class of distillation losses: weighted sums of a loss for labels (hard) and for a teacher's logits (soft).

    The teacher's and the student's logits are divided by ``temperature``. With ``return_soft_hard_loss`` both losses
    are returned beside their weighted sum.
    """

    def __init__(
        self,
        weight_hard_loss: float = 0.5,
        weight_soft_loss: float = 0.5,
        beta: float = 0.5,
        ignore_index: int = -100,
        temperature: float = 1.0,
        compiled: bool = True,
        chunk_size: int = 1024,
        return_soft_hard_loss: bool = False,
    ) -> None:
        super().__init__()
        self.weight_hard_loss, self.weight_soft_loss, self.beta = weight_hard_loss, weight_soft_loss, beta
        self.ignore_index, self.temperature = ignore_index, temperature
        self.return_soft_hard_loss = return_soft_hard_loss

    def _soft_loss(self, student: Tensor, teacher: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss for the teacher's logits over the tokens whose label is not ignored."""
        raise NotImplementedError

    def forward(
        self,
        student_input: Tensor,
        student_weight: Tensor,
        teacher_input: Tensor,
        teacher_weight: Tensor,
        true_labels: Tensor,
        student_bias: Tensor | None = None,
        teacher_bias: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor, Tensor]:
        """Return the loss; the teacher has no gradient, and may have a larger vocabulary."""
        student = linear(student_input, student_weight, student_bias)
        with torch.no_grad():
            teacher = linear(teacher_input, teacher_weight, teacher_bias) / self.temperature
        tokens = (true_labels != self.ignore_index).sum().clamp(min=1)
        rows, labels = student.float().log_softmax(-1).flatten(0, -2), true_labels.flatten()
        hard = nll_loss(rows, labels, ignore_index=self.ignore_index, reduction="sum") / tokens
        padding = max(0, teacher.shape[-1] - student.shape[-1])
        soft = self._soft_loss(pad(student / self.temperature, (0, padding)), teacher, true_labels)
        loss = self.weight_hard_loss * hard + self.weight_soft_loss * soft
        return (loss, soft.detach(), hard.detach()) if self.return_soft_hard_loss else loss


class LigerFusedLinearJSDLoss(_Distillation):
    """Distillation by the Jensen-Shannon divergence from the teacher."""

    def _soft_loss(self, student: Tensor, teacher: Tensor, labels: Tensor) -> Tensor:
        return liger_jsd(student.log_softmax(-1), teacher.log_softmax(-1), labels, self.beta, self.ignore_index)


class LigerFusedLinearCosineSimilarityLoss(_Distillation):
    """Distillation by the cosine similarity to the teacher's logits, summed over all tokens, also ignored ones."""

    def _soft_loss(self, student: Tensor, teacher: Tensor, labels: Tensor) -> Tensor:
        losses = self.beta * (1 - cosine_similarity(student, teacher, dim=-1))
        return losses.sum() / (labels != self.ignore_index).sum().clamp(min=1)


_MODULES = {
    "kto_loss": LigerFusedLinearKTOLoss,
    "grpo_loss": LigerFusedLinearGRPOLoss,
    "jsd_loss": LigerFusedLinearJSDLoss,
    "cosine_similarity_loss": LigerFusedLinearCosineSimilarityLoss,
}
NAMES: Names = {
    **{f"chunked_loss.{kind.__name__}": kind for kind in _MODULES.values()},
    **{f"chunked_loss.{module}.{kind.__name__}": kind for module, kind in _MODULES.items()},
}
