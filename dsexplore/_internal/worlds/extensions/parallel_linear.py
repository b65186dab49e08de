"""Linear layers that are divided among the ranks of a group, with the collectives of Transformer Engine and Megatron.

======== ================ ============================ ====================================================
mode     sequence         forward                      backward
======== ================ ============================ ====================================================
column   whole            nothing                      all_reduce of the input's gradient
column   divided          all_gather of the input      the same again for the weight's gradient, and
                                                       reduce_scatter of the input's
row      whole            all_reduce of the output     nothing
row      divided          reduce_scatter of it         all_gather of the output's gradient
======== ================ ============================ ====================================================
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import linear


def gathered(tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return the parts of all ranks, one after the other in the first dim."""
    out = tensor.new_empty(tensor.shape[0] * dist.get_world_size(group), *tensor.shape[1:])
    dist.all_gather_into_tensor(out, tensor.contiguous(), group=group)
    return out


def scattered(tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return this rank's part, in the first dim, of the sum over the ranks."""
    out = tensor.new_empty(tensor.shape[0] // dist.get_world_size(group), *tensor.shape[1:])
    dist.reduce_scatter_tensor(out, tensor.contiguous(), group=group)
    return out


def summed(tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return the sum over the ranks."""
    out = tensor.contiguous().clone()
    dist.all_reduce(out, group=group)
    return out


class _Column(torch.autograd.Function):
    """A layer whose outputs are divided among ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, group: dist.ProcessGroup, is_divided: bool) -> Tensor:
        """Return this rank's outputs."""
        ctx.save_for_backward(x, weight)
        ctx.group, ctx.is_divided = group, is_divided
        return linear(gathered(x, group) if is_divided else x, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Return the gradients of input and weight."""
        (gradient,) = gradients
        x, weight = ctx.saved_tensors
        of_input = gradient @ weight.to(gradient.dtype)
        whole = gathered(x, ctx.group) if ctx.is_divided else x
        of_input = (scattered if ctx.is_divided else summed)(of_input, ctx.group)
        of_weight = gradient.flatten(0, -2).T @ whole.flatten(0, -2).to(gradient.dtype)
        return of_input.to(x.dtype), of_weight.to(weight.dtype), None, None


class _Row(torch.autograd.Function):
    """The sum of the outputs of a layer whose inputs are divided among ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup, is_divided: bool) -> Tensor:
        """Return the sum, or this rank's part of it."""
        ctx.group, ctx.is_divided = group, is_divided
        return (scattered if is_divided else summed)(x, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient of the sum."""
        return gathered(gradients[0], ctx.group) if ctx.is_divided else gradients[0], None, None


def parallel_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, mode: str | None, group: dist.ProcessGroup | None, is_divided: bool
) -> Tensor:
    """Return a linear layer's output.

    Args:
        x: ``(sequence, ..., width)``.
        weight: this rank's.
        bias: this rank's, or the whole one of ``"row"``, which is added once.
        mode: ``"column"``, ``"row"`` or None.
        group: the ranks that hold the other parts.
        is_divided: whether the sequence is divided among them outside of this layer.
    """
    if group is None or dist.get_world_size(group) == 1 or mode is None:
        return linear(x, weight, bias)
    if mode == "column":
        out: Tensor = _Column.apply(x, weight, group, is_divided)  # type: ignore[no-untyped-call] # torch's
    else:
        out = _Row.apply(linear(x, weight), group, is_divided)  # type: ignore[no-untyped-call] # likewise
    return out if bias is None else out + bias
