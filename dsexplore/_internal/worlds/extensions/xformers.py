"""Stand-ins for ``xformers.ops``: memory-efficient attention with its masks, SwiGLU and RMS norm.

Names and shapes are those of xformers 0.0.30 (https://github.com/facebookresearch/xformers).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from dsexplore._internal.worlds.extensions import xformers_masks
from dsexplore._internal.worlds.extensions.fused_norms import PlainRMSNorm
from dsexplore._internal.worlds.extensions.fused_norms import rms_norm as plain_rms_norm
from dsexplore._internal.worlds.extensions.plain_attention import Form, attend, log_sum_exp
from dsexplore._internal.worlds.extensions.registry import Names
from dsexplore._internal.worlds.extensions.xformers_masks import AttentionBias

_OPS = ("xformers_flash::flash_fwd", "xformers_flash3::flash_fwd", "xformers::efficient_attention_forward_cutlass")
"""Ops that programs do not call, but name in policies of activation checkpointing."""


def memory_efficient_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | AttentionBias | None = None,
    p: float = 0.0,
    scale: float | None = None,
    *,
    op: object = None,
    output_dtype: torch.dtype | None = None,
) -> Tensor:
    """Compute attention.

    Args:
        query: queries, shape (batch, length, heads, width), (batch, length, groups, heads, width), or (batch, length,
            width) for a single head.
        key: keys, of the same shape but for the length.
        value: values, of the shape of the keys but for the width.
        attn_bias: tensor that is added to the scores, or a mask; None to see all keys.
        p: dropout probability of the weights.
        scale: factor of the scores; None for 1 / √width.
        op: the kernel; has no effect here.
        output_dtype: data type of the result; None for that of the queries.
    """
    q, k, v = _with_heads(query), _with_heads(key), _with_heads(value)
    out = attend(q, k, v, Form(scale=scale, dropout=p), _mask(q, k, attn_bias))
    return out.reshape(*query.shape[:-1], value.shape[-1]).to(output_dtype or query.dtype)


def _with_heads(tensor: Tensor) -> Tensor:
    """Return queries, keys or values of any of xformers' shapes as (batch, length, heads, width)."""
    return tensor.unsqueeze(2) if tensor.dim() == 3 else tensor.flatten(2, -2)


def _mask(query: Tensor, key: Tensor, attn_bias: Tensor | AttentionBias | None) -> Tensor | None:
    """Return the mask or bias that `attend` takes, shape (batch or 1, heads or 1, queries, keys)."""
    if attn_bias is None or isinstance(attn_bias, AttentionBias):
        return None if attn_bias is None else attn_bias.seen_by(query, key)
    return attn_bias.unsqueeze(1) if attn_bias.dim() == 3 else attn_bias.flatten(1, -3)


def attention_and_lse(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Any = None,
    p: float = 0.0,
    scale: float | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Return `memory_efficient_attention`'s result and the log-sum-exp of the scores.

    The latter has the shape (batch, heads, length) or, for queries in groups, (batch, groups, heads, length).
    """
    out = memory_efficient_attention(query, key, value, attn_bias, p, scale, **options)
    q, k = _with_heads(query), _with_heads(key)
    lse = log_sum_exp(q, k, Form(scale=scale), _mask(q, k, attn_bias))
    return out, lse.unflatten(1, query.shape[2:4]) if query.dim() == 5 else lse


def merge_attentions(
    attn_split: Tensor | Sequence[Tensor],
    lse_split: Tensor | Sequence[Tensor],
    write_lse: bool = True,
    output_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Return the attention over all keys, and its log-sum-exp, from the results for parts of the keys.

    Args:
        attn_split: attention over each part, shape (batch, length, heads, width); stacked or a sequence.
        lse_split: log-sum-exp of the scores of each part, shape (batch, heads, length); stacked or a sequence.
        write_lse: False to return None in place of the log-sum-exp.
        output_dtype: data type of the attention; None for that of the parts.
    """
    parts = attn_split if isinstance(attn_split, Tensor) else torch.stack(list(attn_split))
    sums = lse_split if isinstance(lse_split, Tensor) else torch.stack(list(lse_split))
    total = sums.logsumexp(0)
    weights = (sums - total).exp().movedim(-1, 2).unsqueeze(-1)
    return (parts * weights).sum(0).to(output_dtype or parts.dtype), total if write_lse else None


class _Profiler:
    """A profiler that records nothing."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """Accept the arguments of any profiler of xformers."""

    def __enter__(self) -> _Profiler:
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing."""

    def step(self) -> None:
        """Do nothing."""


def profiler_step() -> None:
    """Do nothing."""


class SwiGLU(nn.Module):
    """The feed-forward layer ``w3(silu(w1 x) * w2 x)``; ``w1`` and ``w2`` are packed in ``w12`` by default."""

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int | None = None,
        bias: bool = True,
        *,
        _pack_weights: bool = True,
    ) -> None:
        super().__init__()
        self.in_features, self.hidden_features = in_features, hidden_features
        self.out_features = out_features or in_features
        if _pack_weights:
            self.w12 = nn.Linear(in_features, 2 * hidden_features, bias=bias)
        else:
            self.w1 = nn.Linear(in_features, hidden_features, bias=bias)
            self.w2 = nn.Linear(in_features, hidden_features, bias=bias)
        self.w3 = nn.Linear(hidden_features, self.out_features, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output."""
        gate, up = self.w12(x).chunk(2, -1) if hasattr(self, "w12") else (self.w1(x), self.w2(x))
        out: Tensor = self.w3(silu(gate) * up)
        return out


def swiglu(
    x: Tensor,
    w1: Tensor,
    b1: Tensor | None,
    w2: Tensor,
    b2: Tensor | None,
    w3: Tensor,
    b3: Tensor | None,
    *,
    op: object = None,
) -> Tensor:
    """Compute `SwiGLU` with these weights and biases."""
    linear = nn.functional.linear
    return linear(silu(linear(x, w1, b1)) * linear(x, w2, b2), w3, b3)


def rms_norm(x: Tensor, weight: Tensor | None, eps: float = 1e-6) -> Tensor:
    """Return the RMS norm of the last dim."""
    return plain_rms_norm(x, weight, eps)


class XformersRMSNorm(PlainRMSNorm):
    """RMS norm of the last dim, with a weight unless ``include_weight`` is False."""

    def __init__(self, dim: int, include_weight: bool = True, eps: float = 1e-6) -> None:
        super().__init__(dim, eps, include_weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return the norm of ``x``."""
        return rms_norm(x, self.weight, self.eps or 0.0)


def unbind(x: Tensor, dim: int) -> tuple[Tensor, ...]:
    """Return the slices of a tensor."""
    return x.unbind(dim)


def _define_ops() -> list[torch.library.Library]:
    """Define the ops in `_OPS` that no other library has defined; return the libraries that keep them alive."""
    libraries = []
    for name in _OPS:
        namespace, _, op = name.partition("::")
        if not hasattr(getattr(torch.ops, namespace), op):
            library = torch.library.Library(namespace, "FRAGMENT")
            library.define(f"{op}(Tensor query) -> Tensor")
            libraries.append(library)
    return libraries


_LIBRARIES = _define_ops()

EXTENSIONS: dict[str, Names] = {
    "xformers": {
        "__version__": "0.0.30",
        "ops.memory_efficient_attention": memory_efficient_attention,
        "ops.fmha.memory_efficient_attention": memory_efficient_attention,
        "ops.fmha.memory_efficient_attention_forward": memory_efficient_attention,
        "ops.memory_efficient_attention_forward": memory_efficient_attention,
        "ops.SwiGLU": SwiGLU,
        "ops.swiglu": swiglu,
        "ops.swiglu_op.SwiGLU": SwiGLU,
        "ops.swiglu_op.swiglu": swiglu,
        "ops.RMSNorm": XformersRMSNorm,
        "ops.rmsnorm.rms_norm": rms_norm,
        "ops.rmsnorm.RMSNorm": XformersRMSNorm,
        "ops.merge_attentions": merge_attentions,
        "ops.fmha.merge_attentions": merge_attentions,
        "ops.memory_efficient_attention_forward_requires_grad": attention_and_lse,
        "ops.fmha.memory_efficient_attention_forward_requires_grad": attention_and_lse,
        **{f"profiler.{name}": _Profiler for name in ("profile", "PyTorchProfiler", "MemSnapshotsProfiler")},
        "profiler.step": profiler_step,
        "ops.unbind": unbind,
        **{
            f"ops.{kernel}": None
            for kernel in ("MemoryEfficientAttentionFlashAttentionOp", "MemoryEfficientAttentionOp")
        },
        **{f"ops.{mask.__name__}": mask for mask in (AttentionBias, xformers_masks.LowerTriangularMask)},
        **{f"ops.fmha.{mask.__name__}": mask for mask in (AttentionBias, xformers_masks.LowerTriangularMask)},
        **{f"ops.fmha.attn_bias.{mask.__name__}": mask for mask in xformers_masks.CLASSES},
        "ops.fmha.BlockDiagonalMask": xformers_masks.BlockDiagonalMask,
        "ops.fmha.BlockDiagonalCausalMask": xformers_masks.BlockDiagonalCausalMask,
    }
}
