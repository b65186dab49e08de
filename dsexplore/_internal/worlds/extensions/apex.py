"""Stand-ins for NVIDIA Apex: fused optimizers and norms, ``amp``, data parallelism, lists of tensors (``amp_C``).

Names and signatures are those of https://github.com/NVIDIA/apex.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dsexplore._internal.worlds.extensions.apex_parallel import (
    DistributedDataParallel,
    initialize,
    master_params,
    scale_loss,
)
from dsexplore._internal.worlds.extensions.fused_norms import PlainLayerNorm, PlainRMSNorm, Shape, layer_norm, rms_norm
from dsexplore._internal.worlds.extensions.fused_optimizers import PlainAdam, PlainLAMB, PlainSGD
from dsexplore._internal.worlds.extensions.registry import Names

Lists = Sequence[Sequence[Tensor]]


class MultiTensorApply:
    """Calls an op on lists of tensors, which a kernel takes in chunks.

    Args:
        chunk_size: elements of a chunk.
    """

    available = True

    def __init__(self, chunk_size: int) -> None:
        self.chunk_size = chunk_size

    def __call__(self, op: Callable[..., Any], noop_flag_buffer: Tensor, tensor_lists: Lists, *args: Any) -> Any:
        """Call the op."""
        return op(self.chunk_size, noop_flag_buffer, tensor_lists, *args)


def multi_tensor_l2norm(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, per_tensor: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the norm of all tensors together, ``(1,)``, and that of each if asked, else nothing; fp32."""
    norms = [tensor.float().norm() for tensor in tensor_lists[0]]
    norm_of_tensors = torch.stack(norms) if norms else noop_flag.new_zeros(0, dtype=torch.float32)
    return norm_of_tensors.norm().reshape(1), norm_of_tensors if per_tensor else norm_of_tensors.new_empty(0)


def multi_tensor_scale(chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, scale: float | Tensor) -> None:
    """Write the tensors of the first list, times a factor, into those of the second."""
    for source, target in zip(*tensor_lists, strict=True):
        target.copy_(source * scale)


def multi_tensor_axpby(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, a: float, b: float, arg_to_check: int = -1
) -> None:
    """Write ``a x + b y`` into the tensors of the third list."""
    for x, y, target in zip(*tensor_lists, strict=True):
        target.copy_(a * x + b * y)


class MixedFusedLayerNorm(PlainLayerNorm):
    """Layer norm whose result has the dtype of its weight."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the norm of ``x``."""
        return layer_norm(x, self.weight, self.bias, self.eps, self.weight.dtype)


class MixedFusedRMSNorm(PlainRMSNorm):
    """RMS norm whose result has the dtype of its weight."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the norm of ``x``."""
        return rms_norm(x, self.weight, self.eps, self.weight.dtype)


def fused_layer_norm(x: Tensor, normalized_shape: Shape, eps: float = 1e-6, memory_efficient: bool = False) -> Tensor:
    """Return the layer norm over the last dims, without weight and bias."""
    ones = x.new_ones((normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape))
    return layer_norm(x, ones, None, eps)


def fused_layer_norm_affine(
    x: Tensor, weight: Tensor, bias: Tensor, normalized_shape: Shape, eps: float = 1e-6, memory_efficient: bool = False
) -> Tensor:
    """Return the layer norm over the last dims."""
    return layer_norm(x, weight, bias, eps)


def fused_rms_norm_affine(
    x: Tensor, weight: Tensor, normalized_shape: Shape, eps: float = 1e-6, memory_efficient: bool = False
) -> Tensor:
    """Return the RMS norm over the last dims."""
    return rms_norm(x, weight, eps)


_NORMS: Names = {
    "FusedLayerNorm": PlainLayerNorm,
    "FusedRMSNorm": PlainRMSNorm,
    "MixedFusedLayerNorm": MixedFusedLayerNorm,
    "MixedFusedRMSNorm": MixedFusedRMSNorm,
}
_OPTIMIZERS: Names = {"FusedAdam": PlainAdam, "FusedLAMB": PlainLAMB, "FusedSGD": PlainSGD}
_APPLIER = MultiTensorApply(2048 * 32)

EXTENSIONS: dict[str, Names] = {
    "apex": {
        **{f"optimizers.{name}": value for name, value in _OPTIMIZERS.items()},
        "optimizers.fused_adam.FusedAdam": PlainAdam,
        **{f"normalization.{name}": value for name, value in _NORMS.items()},
        **{f"normalization.fused_layer_norm.{name}": value for name, value in _NORMS.items()},
        "normalization.fused_layer_norm.fused_layer_norm": fused_layer_norm,
        "normalization.fused_layer_norm.fused_layer_norm_affine": fused_layer_norm_affine,
        "normalization.fused_layer_norm.fused_rms_norm_affine": fused_rms_norm_affine,
        "parallel.DistributedDataParallel": DistributedDataParallel,
        "parallel.distributed.DistributedDataParallel": DistributedDataParallel,
        **{f"amp.{function.__name__}": function for function in (initialize, master_params, scale_loss)},
        "multi_tensor_apply.multi_tensor_applier": _APPLIER,
        "multi_tensor_apply.MultiTensorApply": MultiTensorApply,
    },
    "amp_C": {
        function.__name__: function for function in (multi_tensor_l2norm, multi_tensor_scale, multi_tensor_axpby)
    },
}
