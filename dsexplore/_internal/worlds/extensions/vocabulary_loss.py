"""Cross entropy of logits whose vocabulary is sharded over the ranks of a group."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class _SummedInForward(torch.autograd.Function):
    """An all_reduce whose backward passes the gradient on: each rank already has the whole gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
        """Return the sum over the group's ranks."""
        total = tensor.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Return the gradient unchanged."""
        return gradients[0], None


def cross_entropy_of_shards(
    logits: Tensor, labels: Tensor, smoothing: float, ignored: int, group: dist.ProcessGroup | None
) -> tuple[Tensor, Tensor]:
    """Return the loss of each row, and the log-sum-exp of its logits.

    With a group of several ranks, the log-sum-exp of each rank's logits is gathered and the logits of the labels are
    summed, as in FlashAttention.

    Args:
        logits: logits of this rank's part of the vocabulary, fp32, shape (rows, words of this rank).
        labels: indices into the whole vocabulary, shape (rows,).
        smoothing: label smoothing, 0 to 1.
        ignored: label of rows whose loss is 0.
        group: ranks that hold the other parts of the vocabulary; None for an unsharded one.
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
    """Return the log-sum-exp over all ranks with the gradient for this rank's logits: its share of the sum.

    Args:
        local: log-sum-exp of this rank's logits.
        total: log-sum-exp of the logits of all ranks.
    """
    share = (local - total).exp().detach()
    return total + share * (local - local.detach())
