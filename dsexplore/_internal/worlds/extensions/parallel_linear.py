"""Linear layers with tensor parallelism, and the collectives of Transformer Engine and Megatron.

======== ================ ============================ ====================================================
mode     sequence         forward                      backward
======== ================ ============================ ====================================================
column   not sharded      none                         all_reduce of the input's gradient
column   sharded          all_gather of the input      all_gather of the input, for the weight's gradient;
                                                       reduce_scatter of the input's gradient
row      not sharded      all_reduce of the output     none
row      sharded          reduce_scatter of the output all_gather of the output's gradient
======== ================ ============================ ====================================================
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import linear


def gathered(tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return the shards of all ranks, concatenated in the first dim."""
    out = tensor.new_empty(tensor.shape[0] * dist.get_world_size(group), *tensor.shape[1:])
    dist.all_gather_into_tensor(out, tensor.contiguous(), group=group)
    return out


def scattered(tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return this rank's shard, in the first dim, of the sum over the ranks."""
    out = tensor.new_empty(tensor.shape[0] // dist.get_world_size(group), *tensor.shape[1:])
    dist.reduce_scatter_tensor(out, tensor.contiguous(), group=group)
    return out


def summed(tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return the sum over the ranks."""
    out = tensor.contiguous().clone()
    dist.all_reduce(out, group=group)
    return out


class _Column(torch.autograd.Function):
    """A linear layer whose output features are sharded."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, group: dist.ProcessGroup, is_sharded: bool) -> Tensor:
        """Return this rank's output features."""
        ctx.save_for_backward(x, weight)
        ctx.group, ctx.is_sharded = group, is_sharded
        return linear(gathered(x, group) if is_sharded else x, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Return the gradients of input and weight."""
        (gradient,) = gradients
        x, weight = ctx.saved_tensors
        input_gradient = gradient @ weight.to(gradient.dtype)
        whole = gathered(x, ctx.group) if ctx.is_sharded else x
        input_gradient = (scattered if ctx.is_sharded else summed)(input_gradient, ctx.group)
        weight_gradient = gradient.flatten(0, -2).T @ whole.flatten(0, -2).to(gradient.dtype)
        return input_gradient.to(x.dtype), weight_gradient.to(weight.dtype), None, None


class _Row(torch.autograd.Function):
    """The reduction after a linear layer whose input features are sharded."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup, is_sharded: bool) -> Tensor:
        """Return the sum over the ranks, or this rank's shard of it."""
        ctx.group, ctx.is_sharded = group, is_sharded
        return (scattered if is_sharded else summed)(x, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient of the sum."""
        return gathered(gradients[0], ctx.group) if ctx.is_sharded else gradients[0], None, None


def parallel_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, mode: str | None, group: dist.ProcessGroup | None, is_sharded: bool
) -> Tensor:
    """Return a linear layer's output.

    Args:
        x: input, shape (sequence, ..., width).
        weight: this rank's shard of the weight.
        bias: this rank's shard of the bias; for ``"row"`` the whole bias, which is added after the reduction.
        mode: ``"column"``, ``"row"``, or None for a layer without tensor parallelism.
        group: ranks that hold the other shards; None for a layer without tensor parallelism.
        is_sharded: True if the sequence is sharded over these ranks outside of this layer.
    """
    if group is None or dist.get_world_size(group) == 1 or mode is None:
        return linear(x, weight, bias)
    if mode == "column":
        out: Tensor = _Column.apply(x, weight, group, is_sharded)  # type: ignore[no-untyped-call] # torch's
    else:
        out = _Row.apply(linear(x, weight), group, is_sharded)  # type: ignore[no-untyped-call] # torch's
    return out if bias is None else out + bias
