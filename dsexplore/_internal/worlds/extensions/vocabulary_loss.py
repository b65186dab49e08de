"""Cross entropy of words that are divided among the ranks of a group."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class _SummedInForward(torch.autograd.Function):
    """The sum over a group, whose gradient each rank has whole."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
        """Return the sum over the group's ranks."""
        total = tensor.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Return the gradient as it is."""
        return gradients[0], None


def cross_entropy_of_shards(
    logits: Tensor, labels: Tensor, smoothing: float, ignored: int, group: dist.ProcessGroup | None
) -> tuple[Tensor, Tensor]:
    """Return the loss of each row, 0 of those that are ignored, and the log-sum-exp of its logits.

    With a group of several ranks the log-sum-exp of the parts is gathered, and the losses are summed, as in
    FlashAttention.

    Args:
        logits: ``(rows, words of this rank)``, fp32.
        labels: ``(rows,)``, of all words.
        smoothing: the part of a label that is spread over all words.
        ignored: the label of rows without a loss.
        group: the ranks that hold the other words.
    """
    ranks = dist.get_world_size(group) if group is not None else 1
    words = logits.shape[-1]
    first = dist.get_rank(group) * words if group is not None else 0
    lse = logits.logsumexp(-1)
    if ranks > 1:
        parts = lse.new_empty(ranks, *lse.shape)
        dist.all_gather_into_tensor(parts, lse.detach(), group=group)
        lse = _add_gradient(lse, parts.logsumexp(0))
    local = labels - first
    is_here = (local >= 0) & (local < words)
    chosen = logits.gather(-1, local.clamp(0, words - 1).unsqueeze(-1)).squeeze(-1) * is_here
    target_logits = (1 - smoothing) * chosen + smoothing * logits.sum(-1) / (words * ranks)
    if ranks > 1 and group is not None:
        target_logits = _SummedInForward.apply(target_logits, group)  # type: ignore[no-untyped-call] # torch's
    return (lse - target_logits).masked_fill(labels == ignored, 0), lse


def _add_gradient(local: Tensor, total: Tensor) -> Tensor:
    """Return the log-sum-exp over all ranks, whose gradient reaches this rank's logits by its share of it."""
    share = (local - total).exp().detach()
    return total + share * (local - local.detach())
