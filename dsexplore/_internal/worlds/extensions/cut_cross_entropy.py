"""Stand-ins for ``cut_cross_entropy``: the cross entropy of a classifier's output, from its input and its weight.

Names and signatures are those of https://github.com/apple/ml-cross-entropy; all logits are computed at once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

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
    """Return the cross entropy of ``e @ c.T``.

    Args:
        e: ``(..., width)``.
        c: ``(words, width)``.
        targets: ``(...)``.
        bias: ``(words,)``.
        ignore_index: the label of rows without a loss.
        softcap: the largest absolute value of a logit.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        shift: how many places a label is behind its row.
        options: of the kernels, which change no shape.
    """
    if shift:
        e, targets = e[..., : -int(shift), :], targets[..., int(shift) :]
    logits = torch.nn.functional.linear(e, c, bias).float()
    logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
    loss = cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=ignore_index, reduction=reduction)
    return loss.view(targets.shape) if reduction == "none" else loss


class LinearCrossEntropy(nn.Module):
    """The loss as a module; options are those of `linear_cross_entropy`."""

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
