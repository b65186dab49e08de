"""Stand-ins for ``cut_cross_entropy``: the cross entropy of a classifier's output, from its input and its weight.

Names and signatures are those of https://github.com/apple/ml-cross-entropy. As in its kernels, logits are never held as
a whole, and are computed again in backward.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dsexplore._internal.worlds.extensions.linear_losses import checkpointed_losses
from dsexplore._internal.worlds.extensions.registry import Names


def linear_cross_entropy(
    e: Tensor,
    c: Tensor,
    targets: Tensor,
    bias: Tensor | None = None,
    ignore_index: int = -100,
    softcap: float | None = None,
    reduction: str = "mean",
    shift: bool | int = 0,
    **options: Any,
) -> Tensor:
    """Return the cross entropy of the logits ``e @ c.T``, fp32.

    Args:
        e: input of the classifier, shape (..., width).
        c: weight of the classifier, shape (vocabulary, width).
        targets: labels, shape (...).
        bias: bias of the classifier, shape (vocabulary,).
        ignore_index: label of rows without a loss.
        softcap: largest absolute value of a logit; None for no cap.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        shift: number of positions by which a label follows its row.
        options: further options, which choose kernels and have no effect here.
    """
    if shift:
        e, targets = e[..., : -int(shift), :], targets[..., int(shift) :]

    def losses_of(logits: Tensor, labels: Tensor) -> Tensor:
        logits = logits.float() if softcap is None else softcap * torch.tanh(logits.float() / softcap)
        return cross_entropy(logits, labels, ignore_index=ignore_index, reduction="none")

    losses = checkpointed_losses(losses_of, e.flatten(0, -2), c, bias, targets.flatten())
    if reduction == "none":
        return losses.view(targets.shape)
    return losses.sum() if reduction == "sum" else losses.sum() / (targets != ignore_index).sum()


class LinearCrossEntropy(nn.Module):
    """The loss as a module, with the options of `linear_cross_entropy`."""

    def __init__(self, ignore_index: int = -100, softcap: float | None = None, **options: Any) -> None:
        super().__init__()
        self.options: dict[str, Any] = {"ignore_index": ignore_index, "softcap": softcap, **options}

    def forward(self, e: Tensor, c: Tensor, targets: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return the loss."""
        return linear_cross_entropy(e, c, targets, bias, **self.options)


EXTENSIONS: dict[str, Names] = {
    "cut_cross_entropy": {
        "__version__": "25.1.1",
        "linear_cross_entropy": linear_cross_entropy,
        "LinearCrossEntropy": LinearCrossEntropy,
    }
}
