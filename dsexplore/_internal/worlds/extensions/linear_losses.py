"""Losses of a linear layer's output that hold only a chunk of the logits at a time, as fused kernels do.

`checkpointed_losses` computes the logits again in backward, as cut_cross_entropy does. `loss_with_gradients` computes
the gradients of a chunk in forward, right after its loss, as Liger does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint


def _chunk_size(x: Tensor, weight: Tensor) -> int:
    """Return the number of rows of a chunk, a power of two: its logits are about as large as the whole input."""
    rows = -(-x.shape[0] * weight.shape[1] // weight.shape[0])
    return 1 << max(rows - 1, 0).bit_length()


def checkpointed_losses(
    losses_of: Callable[[Tensor, Tensor], Tensor], x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor
) -> Tensor:
    """Return the loss of each row, shape (rows,).

    Args:
        losses_of: returns the losses of rows from their logits and labels.
        x: input of the linear layer, shape (rows, width).
        weight: weight of the linear layer, shape (vocabulary, width).
        bias: bias of the linear layer, shape (vocabulary,).
        target: labels, shape (rows,).
    """

    def losses_of_chunk(x: Tensor, target: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return losses_of(linear(x, weight, bias), target)

    size = 4 * _chunk_size(x, weight)  # each chunk adds a gradient of the whole weight, which the kernel does not
    options: Any = {"use_reentrant": False, "preserve_rng_state": False}
    chunks = zip(x.split(size), target.split(size), strict=True)
    return torch.cat([checkpoint(losses_of_chunk, rows, labels, weight, bias, **options) for rows, labels in chunks])


def loss_with_gradients(
    loss_of: Callable[..., tuple[Tensor, ...]], x: Tensor, weight: Tensor, bias: Tensor | None, *rows: Tensor
) -> tuple[Tensor, ...]:
    """Return a loss that is the sum over chunks of rows, and further sums over chunks, which have no gradient.

    Args:
        loss_of: returns the loss of rows, and the further numbers, from their logits and parts of `rows`.
        x: input of the linear layer, shape (rows, width).
        weight: weight of the linear layer, shape (vocabulary, width).
        bias: bias of the linear layer, shape (vocabulary,).
        rows: further tensors with a first dim of rows, without gradients.
    """
    apply: Callable[..., tuple[Tensor, ...]] = _LossWithGradients.apply
    return apply(loss_of, x, weight, bias, *rows)


class _LossWithGradients(torch.autograd.Function):
    """A loss whose gradients are computed in forward, chunk by chunk."""

    @staticmethod
    def forward(
        ctx: Any,
        loss_of: Callable[..., tuple[Tensor, ...]],
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        *rows: Tensor,
    ) -> tuple[Tensor, ...]:
        """Return the sums over chunks, and save the gradients of the first one."""
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad[1:4]
        size = _chunk_size(x, weight)
        weight = weight.detach().requires_grad_(needs_weight)
        bias = None if bias is None else bias.detach().requires_grad_(needs_bias)
        sums: list[Tensor] = []
        x_gradients: list[Tensor] = []
        gradients: list[Tensor | None] = [None, None]  # of weight and bias
        for chunk, *parts in zip(*(tensor.split(size) for tensor in (x, *rows)), strict=True):
            chunk = chunk.detach().requires_grad_(needs_x)
            with torch.enable_grad():
                numbers = loss_of(linear(chunk, weight, bias), *parts)
            sums.append(torch.stack([number.detach() for number in numbers]))
            if not numbers[0].requires_grad:
                continue
            of_chunk, *of_parameters = _gradients(numbers[0], chunk, weight, bias)
            if of_chunk is not None:
                x_gradients.append(of_chunk)
            for index, gradient in enumerate(of_parameters):
                total = gradients[index]
                gradients[index] = gradient if total is None or gradient is None else total.add_(gradient)
        ctx.save_for_backward(torch.cat(x_gradients) if x_gradients else None, *gradients)
        results = torch.stack(sums).sum(0).unbind()
        ctx.mark_non_differentiable(*results[1:])
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the saved gradients times that of the loss."""
        saved = [None if tensor is None else tensor * gradients[0].to(tensor.dtype) for tensor in ctx.saved_tensors]
        return None, *saved, *[None] * (len(ctx.needs_input_grad) - 4)


def _gradients(loss: Tensor, *tensors: Tensor | None) -> list[Tensor | None]:
    """Return the gradient of each tensor; None for a tensor that needs none."""
    needed = [tensor for tensor in tensors if tensor is not None and tensor.requires_grad]
    gradients = dict(zip(map(id, needed), torch.autograd.grad(loss, needed), strict=True))
    return [gradients.get(id(tensor)) for tensor in tensors]
