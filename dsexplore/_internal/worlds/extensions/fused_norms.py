"""Layer norm and RMS norm as fused kernels compute them: in fp32, with the result in the dtype of their input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm as torch_layer_norm
from torch.nn.functional import rms_norm as torch_rms_norm

Shape = int | Sequence[int]


def rms_norm(
    x: Tensor, weight: Tensor | None, epsilon: float | None = 1e-6, dtype: torch.dtype | None = None
) -> Tensor:
    """Return the RMS norm over the dims of the weight, the last one without it, in ``dtype`` or that of ``x``."""
    shape = x.shape[-1:] if weight is None else weight.shape
    return torch_rms_norm(x.float(), shape, None if weight is None else weight.float(), epsilon).to(dtype or x.dtype)


def layer_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, epsilon: float = 1e-5, dtype: torch.dtype | None = None
) -> Tensor:
    """Return the layer norm over the dims of the weight, the last one without it, in ``dtype`` or that of ``x``."""
    shape = x.shape[-1:] if weight is None else weight.shape
    weight, bias = (None if parameter is None else parameter.float() for parameter in (weight, bias))
    return torch_layer_norm(x.float(), shape, weight, bias, epsilon).to(dtype or x.dtype)


def layer_norm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None = None,
    x1: Tensor | None = None,
    weight1: Tensor | None = None,
    bias1: Tensor | None = None,
    eps: float = 1e-6,
    dropout_p: float = 0.0,
    rowscale: Tensor | None = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    zero_centered_weight: bool = False,
    is_rms_norm: bool = False,
    return_dropout_mask: bool = False,
    out_dtype: torch.dtype | None = None,
    **options: Any,
) -> Any:
    """Drop a part of ``x``, add ``x1`` and the residual, and return the norm.

    A second norm with ``weight1`` follows it, and with ``prenorm`` what was normed.

    Raises:
        NotImplementedError: a dropout mask is asked for, which only the kernel has.
    """
    if return_dropout_mask:
        raise NotImplementedError("return_dropout_mask=True: no kernel runs here, so that there is no mask to return")
    added = [x if rowscale is None else x * rowscale.unsqueeze(-1), *([] if x1 is None else [x1])]
    added = [torch.dropout(part, dropout_p, train=True) if dropout_p else part for part in added]
    added += [] if residual is None else [residual]
    total = added[0]
    for part in added[1:]:
        total = total.float() + part.float()
    total = total.to(torch.float32 if residual_in_fp32 else x.dtype if residual is None else residual.dtype)
    normed = []
    for factor, shift in ((weight, bias), (weight1, bias1)):
        if factor is not None:
            factor = factor + 1.0 if zero_centered_weight else factor
            dtype = out_dtype or x.dtype
            normed.append(
                rms_norm(total, factor, eps, dtype) if is_rms_norm else layer_norm(total, factor, shift, eps, dtype)
            )
    results = (*normed, total) if prenorm else tuple(normed)
    return results if len(results) > 1 else results[0]


def rms_norm_fn(x: Tensor, weight: Tensor, bias: Tensor | None, *values: Any, **options: Any) -> Any:
    """Do what `layer_norm_fn` does, with an RMS norm."""
    return layer_norm_fn(x, weight, bias, *values, **{**options, "is_rms_norm": True})


def _listed(shape: Shape) -> list[int]:
    return [shape] if isinstance(shape, int) else list(shape)


class PlainRMSNorm(nn.RMSNorm):
    """RMS norm; further options are of the kernels, which change no shape."""

    out_dtype: torch.dtype | None = None
    """The dtype of the result; None for that of the input."""

    def __init__(
        self,
        normalized_shape: Shape,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__(_listed(normalized_shape), eps, elementwise_affine, device, dtype)
        self.register_parameter("bias", None)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 # as torch's
        """Return the norm of ``input``."""
        return rms_norm(input, self.weight, self.eps, self.out_dtype)


class PlainLayerNorm(nn.LayerNorm):
    """Layer norm; further options are of the kernels, which change no shape."""

    out_dtype: torch.dtype | None = None
    """The dtype of the result; None for that of the input."""

    def __init__(
        self,
        normalized_shape: Shape,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__(_listed(normalized_shape), eps, elementwise_affine, device=device, dtype=dtype)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 # as torch's
        """Return the norm of ``input``."""
        return layer_norm(input, self.weight, self.bias, self.eps, self.out_dtype)
