"""CPU kernels of the five ops that `torch.nn.SyncBatchNorm` needs, which torch has for GPUs only.

In training, each rank computes the mean and the deviation of its own batch, and gathers those of all ranks: an
all_gather of 2 C + 1 numbers for C channels. In backward it sums two numbers per channel: an all_reduce of 2 C. Python
code, ``torch/nn/modules/_functions.py``, calls these collectives between the five ops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dsexplore._internal.torch_internals.patches import Entry, Kernel, Parts


def _per_channel(values: Tensor, like: Tensor) -> Tensor:
    """Reshape [C] to [1, C, 1, …], to broadcast over the channels of ``like``, its second dim."""
    return values.reshape(1, -1, *(1 for _ in range(like.dim() - 2)))


def _summed(tensor: Tensor) -> Tensor:
    """Return the sum of each channel, [N, C, …] → [C], in float32 or wider."""
    return _wide(tensor).sum([dim for dim in range(tensor.dim()) if dim != 1])


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _stats(batch: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the mean and the reciprocal standard deviation of each channel."""
    count = batch.numel() // batch.size(1)
    mean = _summed(batch) / count
    variance = _summed((_wide(batch) - _per_channel(mean, batch)) ** 2) / count
    return mean, (variance + eps).rsqrt()


def _gathered(
    _batch: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """Combine the statistics of all ranks, [ranks, C], weighted by their counts, [ranks]; update the running ones.

    Returns:
        Mean and reciprocal standard deviation of each channel, [C].
    """
    weights = counts.reshape(-1, 1).to(mean.dtype)
    total = weights.sum()
    overall = (mean * weights).sum(0) / total
    variance = ((invstd**-2 - eps + mean**2) * weights).sum(0) / total - overall**2
    if running_mean is not None:
        running_mean.copy_(running_mean + momentum * (overall - running_mean))
    if running_var is not None:
        running_var.copy_(running_var + momentum * (variance * total / (total - 1) - running_var))
    return overall, (variance + eps).rsqrt()


def _normalized(
    batch: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor, _eps: float
) -> Tensor:
    result = (_wide(batch) - _per_channel(mean, batch)) * _per_channel(invstd, batch)
    if weight is not None:
        result = result * _per_channel(weight, batch)
    if bias is not None:
        result = result + _per_channel(bias, batch)
    return result.to(batch.dtype)


def _reduced(
    gradient: Tensor,
    batch: Tensor,
    mean: Tensor,
    invstd: Tensor,
    _weight: Tensor | None,
    _input_g: bool,
    _weight_g: bool,
    _bias_g: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the sums of gradient and of gradient × deviation, and the gradients of weight and bias, per channel."""
    total = _summed(gradient)
    products = _summed(_wide(gradient) * (_wide(batch) - _per_channel(mean, batch)))
    return total, products, products * invstd, total.clone()


def _input_gradient(
    gradient: Tensor,
    batch: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    sum_dy: Tensor,
    sum_dy_xmu: Tensor,
    count: Tensor,
) -> Tensor:
    """Return the gradient of the batch, from the sums of all ranks that `_reduced` returned on each of them."""
    share = 1 / count.sum()
    deviation = (_wide(batch) - _per_channel(mean, batch)) * _per_channel(invstd**2 * sum_dy_xmu * share, batch)
    result = (_wide(gradient) - _per_channel(sum_dy * share, batch) - deviation) * _per_channel(invstd, batch)
    if weight is not None:
        result = result * _per_channel(weight, batch)
    return result.to(gradient.dtype)


_KERNELS: dict[str, Callable[..., Any]] = {
    "batch_norm_stats": _stats,
    "batch_norm_gather_stats_with_counts": _gathered,
    "batch_norm_elemt": _normalized,
    "batch_norm_backward_reduce": _reduced,
    "batch_norm_backward_elemt": _input_gradient,
}


def _always(kernel: Callable[..., Any]) -> Callable[[Parts], Callable[..., Any]]:
    return lambda _parts: kernel


PATCHES: tuple[Entry, ...] = tuple(
    Kernel(
        f"aten::{name}",
        key,
        "torch has it for GPUs only",
        _always(kernel),
        when="cuda traffic",
        only_if_missing=True,
    )
    for name, kernel in _KERNELS.items()
    for key in ("CPU", "Meta")
)
