"""Stand-ins for NVIDIA Apex: fused optimizers and norms, ``amp``, data parallelism, and ops on lists of tensors.

Names and signatures are those of https://github.com/NVIDIA/apex.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from dsexplore._internal.worlds.extensions.apex_fp16 import NAMES as FP16_UTILS
from dsexplore._internal.worlds.extensions.apex_parallel import (
    LARC,
    DistributedDataParallel,
    Reducer,
    SyncBatchNorm,
    convert_syncbn_model,
    create_syncbn_process_group,
    initialize,
    master_params,
    scale_loss,
)
from dsexplore._internal.worlds.extensions.apex_zero import DistributedFusedAdam
from dsexplore._internal.worlds.extensions.fused_layers import MLP, DenseGeluDense
from dsexplore._internal.worlds.extensions.fused_norms import PlainLayerNorm, PlainRMSNorm, Shape, layer_norm, rms_norm
from dsexplore._internal.worlds.extensions.fused_optimizers import (
    KernelOptimizer,
    Parameters,
    PlainAdam,
    PlainLAMB,
    PlainNovoGrad,
    PlainSGD,
)
from dsexplore._internal.worlds.extensions.registry import Names
from dsexplore._internal.worlds.extensions.vocabulary_loss import cross_entropy_of_shards

Lists = Sequence[Sequence[Tensor]]


class MultiTensorApply:
    """Calls an op on lists of tensors.

    Args:
        chunk_size: number of elements that a kernel would take at once; has no effect here.
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
    """Return the norm of all tensors together, shape (1,), and with ``per_tensor`` that of each, else none; in fp32."""
    by_tensor = [tensor.float().norm() for tensor in tensor_lists[0]]
    norms = torch.stack(by_tensor) if by_tensor else noop_flag.new_zeros(0, dtype=torch.float32)
    return norms.norm().reshape(1), norms if per_tensor else norms.new_empty(0)


def multi_tensor_scale(chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, scale: float | Tensor) -> None:
    """Write the tensors of the first list times ``scale`` into those of the second."""
    for source, target in zip(*tensor_lists, strict=True):
        target.copy_(source * scale)


def multi_tensor_axpby(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, a: float, b: float, arg_to_check: int = -1
) -> None:
    """Write ``a * x + b * y`` of the first two lists into the tensors of the third."""
    for x, y, target in zip(*tensor_lists, strict=True):
        target.copy_(a * x + b * y)


class FusedLayerNorm(PlainLayerNorm):
    """Layer norm over the last dims."""

    def __init__(
        self,
        normalized_shape: Shape,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        memory_efficient: bool = False,
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine)


class FusedRMSNorm(PlainRMSNorm):
    """RMS norm over the last dims."""

    def __init__(
        self,
        normalized_shape: Shape,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        memory_efficient: bool = False,
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine)


class MixedFusedLayerNorm(PlainLayerNorm):
    """Layer norm whose result has the dtype of its weight."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 # as torch's
        """Return the norm of ``input``."""
        return layer_norm(input, self.weight, self.bias, self.eps, self.weight.dtype)


class MixedFusedRMSNorm(PlainRMSNorm):
    """RMS norm whose result has the dtype of its weight."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 # as torch's
        """Return the norm of ``input``."""
        return rms_norm(input, self.weight, self.eps, self.weight.dtype)


def fused_layer_norm(
    input: Tensor,  # noqa: A002 # as torch's
    normalized_shape: Shape,
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> Tensor:
    """Return the layer norm over the last dims, without weight and bias."""
    return layer_norm(input, _ones(input, normalized_shape), None, eps)


def fused_layer_norm_affine(
    input: Tensor,  # noqa: A002 # as torch's
    weight: Tensor,
    bias: Tensor,
    normalized_shape: Shape,
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> Tensor:
    """Return the layer norm over the last dims."""
    return layer_norm(input, weight, bias, eps)


def fused_rms_norm_affine(
    input: Tensor,  # noqa: A002 # as torch's
    weight: Tensor,
    normalized_shape: Shape,
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> Tensor:
    """Return the RMS norm over the last dims."""
    return rms_norm(input, weight, eps)


def fused_rms_norm(
    input: Tensor,  # noqa: A002 # as torch's
    normalized_shape: Shape,
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> Tensor:
    """Return the RMS norm over the last dims, without weight."""
    return rms_norm(input, _ones(input, normalized_shape), eps)


def _ones(like: Tensor, shape: Shape) -> Tensor:
    return like.new_ones((shape,) if isinstance(shape, int) else tuple(shape))


class FastLayerNorm(PlainLayerNorm):
    """Layer norm of the last dim."""

    def __init__(self, hidden_size: int, eps: float = 1e-5, memory_efficient: bool = False) -> None:
        super().__init__(hidden_size, eps)

    def forward(self, x: Tensor) -> Tensor:
        """Return the norm of ``x``."""
        return super().forward(x)


class FusedDense(torch.nn.Linear):
    """A linear layer."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__(in_features, out_features, bias)


class SoftmaxCrossEntropyLoss:
    """The cross entropy of each row; programs call its ``apply``, as that of an autograd function."""

    @staticmethod
    def apply(
        logits: Tensor, labels: Tensor, smoothing: float = 0.0, padding_idx: int = 0, half_to_float: bool = False
    ) -> Tensor:
        """Return the loss of each row of logits, shape (rows, vocabulary); 0 for the label ``padding_idx``."""
        losses, _ = cross_entropy_of_shards(logits.float(), labels, smoothing, padding_idx, None)
        return losses if half_to_float else losses.to(logits.dtype)


class FusedAdagrad(KernelOptimizer, torch.optim.Adagrad):
    """Adagrad; with ``adagrad_w_mode`` its weight decay is decoupled."""

    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        "lr": 1e-2,
        "eps": 1e-10,
        "weight_decay": 0.0,
        "set_grad_none": True,
        "adagrad_w_mode": False,
    }

    def _initialize(self, params: Parameters, **options: Any) -> None:
        self.decoupled_decay = options["weight_decay"] if options["adagrad_w_mode"] else 0.0
        decay = options["weight_decay"] - self.decoupled_decay
        super()._initialize(params, lr=options["lr"], eps=options["eps"], weight_decay=decay)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step, and return the loss of the closure."""
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    if self.decoupled_decay and parameter.grad is not None:
                        parameter.mul_(1 - group["lr"] * self.decoupled_decay)
        return super().step(closure)


class FusedMixedPrecisionLamb(PlainLAMB):
    """LAMB for parameters of several dtypes, whose steps are counted from ``step``."""

    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        "lr": 1e-3,
        "step": 0,
        "bias_correction": True,
        "betas": (0.9, 0.999),
        "eps": 1e-6,
        "weight_decay": 0.01,
        "amsgrad": False,
        "adam_w_mode": True,
        "grad_averaging": True,
        "max_grad_norm": 1.0,
        "use_nvlamb": False,
        "reduced_precision_dtype": None,
    }


def _keep_function(fn: Any) -> Any:
    """Return a function unchanged; Apex would make it cast its arguments."""
    return fn


def _register_function(module: Any, name: str) -> None:
    """Do nothing; Apex would make the module's function cast its arguments."""


def _amp_state(*args: Any, **options: Any) -> dict[str, Any]:
    """Return the state of a loss scaler with a scale of 1."""
    return {"loss_scaler0": {"loss_scale": 1.0, "unskipped": 0}}


_PARALLEL: Names = {
    kind.__name__: kind
    for kind in (
        *(DistributedDataParallel, Reducer, SyncBatchNorm, LARC),
        *(convert_syncbn_model, create_syncbn_process_group),
    )
}
_LAYERS: Names = {
    "mlp.MLP": MLP,
    "fused_dense.FusedDense": FusedDense,
    "fused_dense.FusedDenseGeluDense": DenseGeluDense,
    "contrib.xentropy.SoftmaxCrossEntropyLoss": SoftmaxCrossEntropyLoss,
    "contrib.layer_norm.FastLayerNorm": FastLayerNorm,
    "contrib.clip_grad.clip_grad_norm_": torch.nn.utils.clip_grad_norm_,
}
_NORMS: Names = {
    "FusedLayerNorm": FusedLayerNorm,
    "FusedRMSNorm": FusedRMSNorm,
    "MixedFusedLayerNorm": MixedFusedLayerNorm,
    "MixedFusedRMSNorm": MixedFusedRMSNorm,
}
_OPTIMIZERS: Names = {
    "FusedAdam": PlainAdam,
    "FusedLAMB": PlainLAMB,
    "FusedSGD": PlainSGD,
    "FusedNovoGrad": PlainNovoGrad,
    "FusedAdagrad": FusedAdagrad,
    "FusedMixedPrecisionLamb": FusedMixedPrecisionLamb,
}
_CASTS = ("half", "float", "promote")
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
        "normalization.fused_layer_norm.fused_rms_norm": fused_rms_norm,
        **{f"parallel.{name}": value for name, value in _PARALLEL.items()},
        **_LAYERS,
        **FP16_UTILS,
        "contrib.optimizers.distributed_fused_adam.DistributedFusedAdam": DistributedFusedAdam,
        "parallel.distributed.DistributedDataParallel": DistributedDataParallel,
        **{f"amp.{function.__name__}": function for function in (initialize, master_params, scale_loss)},
        **{f"amp.{kind}_function": _keep_function for kind in _CASTS},
        **{f"amp.register_{kind}_function": _register_function for kind in _CASTS},
        "amp.state_dict": _amp_state,
        "amp.load_state_dict": _amp_state,
        "multi_tensor_apply.multi_tensor_applier": _APPLIER,
        "multi_tensor_apply.MultiTensorApply": MultiTensorApply,
    },
    "amp_C": {
        function.__name__: function for function in (multi_tensor_l2norm, multi_tensor_scale, multi_tensor_axpby)
    },
}
