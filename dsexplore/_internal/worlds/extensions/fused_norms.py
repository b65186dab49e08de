"""Layer norm and RMS norm as fused kernels compute them: in fp32, with the result in the dtype of the input."""

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
    """Return the RMS norm over the dims of the weight, or the last dim without one, in ``dtype`` or that of ``x``."""
    shape = x.shape[-1:] if weight is None else weight.shape
    return torch_rms_norm(x.float(), shape, None if weight is None else weight.float(), epsilon).to(dtype or x.dtype)


def layer_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, epsilon: float = 1e-5, dtype: torch.dtype | None = None
) -> Tensor:
    """Return the layer norm over the dims of the weight, or the last dim without one, in ``dtype`` or that of ``x``."""
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
    """Return the norm of ``x`` after dropout, plus ``x1`` after dropout and the residual.

    With ``weight1`` a second norm of that sum is returned too, and with ``prenorm`` the sum itself.

    Raises:
        NotImplementedError: a dropout mask is asked for, which only the kernel has.
    """
    if return_dropout_mask:
        raise NotImplementedError("return_dropout_mask=True: no kernel runs here, so that there is no mask to return")
    terms = [x if rowscale is None else x * rowscale.unsqueeze(-1)]
    if x1 is not None:
        terms.append(x1)
    if dropout_p:
        terms = [torch.dropout(term, dropout_p, train=True) for term in terms]
    sum_dtype = x.dtype
    if residual is not None:
        terms.append(residual)
        sum_dtype = residual.dtype
    total = terms[0]
    for term in terms[1:]:
        total = total.float() + term.float()
    total = total.to(torch.float32 if residual_in_fp32 else sum_dtype)
    results = []
    for factor, shift in ((weight, bias), (weight1, bias1)):
        if factor is not None:
            factor = factor + 1.0 if zero_centered_weight else factor
            if is_rms_norm:
                results.append(rms_norm(total, factor, eps, out_dtype or x.dtype))
            else:
                results.append(layer_norm(total, factor, shift, eps, out_dtype or x.dtype))
    if prenorm:
        results.append(total)
    return tuple(results) if len(results) > 1 else results[0]


def rms_norm_fn(x: Tensor, weight: Tensor, bias: Tensor | None, *values: Any, **options: Any) -> Any:
    """Call `layer_norm_fn` for an RMS norm."""
    return layer_norm_fn(x, weight, bias, *values, **{**options, "is_rms_norm": True})


def _as_list(shape: Shape) -> list[int]:
    return [shape] if isinstance(shape, int) else list(shape)


class PlainRMSNorm(nn.RMSNorm):
    """RMS norm; further options, which choose kernels, have no effect."""

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
        super().__init__(_as_list(normalized_shape), eps, elementwise_affine, device, dtype)
        self.register_parameter("bias", None)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 # as torch's
        """Return the norm of ``input``."""
        return rms_norm(input, self.weight, self.eps, self.out_dtype)


class PlainLayerNorm(nn.LayerNorm):
    """Layer norm; further options, which choose kernels, have no effect."""

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
        super().__init__(_as_list(normalized_shape), eps, elementwise_affine, device=device, dtype=dtype)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 # as torch's
        """Return the norm of ``input``."""
        return layer_norm(input, self.weight, self.bias, self.eps, self.out_dtype)
