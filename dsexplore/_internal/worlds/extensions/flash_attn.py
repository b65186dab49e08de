"""Stand-ins for FlashAttention 2 (``flash_attn``) and 3 (``flash_attn_interface``).

Signatures and shapes are those of flash_attn 2.8 (https://github.com/Dao-AILab/flash-attention). Unlike the kernels,
these take any dtype. A packed batch takes a mask of all its tokens, whose memory grows with their number squared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from dsexplore._internal.errors import UsageError
from dsexplore._internal.worlds.extensions import (
    flash_attn_kernels,
    flash_attn_layers,
    flash_attn_modules,
    flash_attn_padding,
)
from dsexplore._internal.worlds.extensions.plain_attention import Form, attend, log_sum_exp, packed_mask
from dsexplore._internal.worlds.extensions.registry import Names

Window = tuple[int, int]
Attention = Tensor | tuple[Tensor, Tensor, Tensor | None]
"""The output; with ``return_attn_probs`` also the log-sum-exp of the scores and the weights, which are not computed."""


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Attention:
    """Compute attention of ``(batch, length, heads, width)``; keys and values may have fewer heads."""
    form = Form(softmax_scale, causal, window_size, softcap, dropout_p, alibi_slopes)
    out = attend(q, k, v, form)
    return (out, log_sum_exp(q, k, form), None) if return_attn_probs else out


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Attention:
    """Compute attention of a packed batch, ``(tokens, heads, width)``, whose sequences begin at ``cu_seqlens``."""
    form = Form(softmax_scale, causal, window_size, softcap, dropout_p, alibi_slopes)
    mask = packed_mask(cu_seqlens_q, q.shape[0], cu_seqlens_k, k.shape[0], form)
    out = attend(q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0), form, mask).squeeze(0)
    if not return_attn_probs:
        return out
    return out, log_sum_exp(q.unsqueeze(0), k.unsqueeze(0), form, mask).squeeze(0), None


def flash_attn_qkvpacked_func(qkv: Tensor, *options: Any, **named: Any) -> Attention:
    """Compute attention of ``(batch, length, 3, heads, width)``."""
    q, k, v = qkv.unbind(2)
    return flash_attn_func(q, k, v, *options, **named)


def flash_attn_kvpacked_func(q: Tensor, kv: Tensor, *options: Any, **named: Any) -> Attention:
    """Compute attention of queries and of ``(batch, length, 2, heads, width)``."""
    k, v = kv.unbind(2)
    return flash_attn_func(q, k, v, *options, **named)


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, *options: Any, **named: Any
) -> Attention:
    """Compute attention of a packed batch, ``(tokens, 3, heads, width)``."""
    q, k, v = qkv.unbind(1)
    return flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, *options, **named)


def flash_attn_varlen_kvpacked_func(
    q: Tensor, kv: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, *options: Any, **named: Any
) -> Attention:
    """Compute attention of packed queries, and of keys and values ``(tokens, 2, heads, width)``."""
    k, v = kv.unbind(1)
    return flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, *options, **named)


def flash_attn_with_kvcache(*args: object, **named: object) -> Tensor:
    """Raise UsageError: programs import it with the others, but only generation calls it.

    Raises:
        UsageError: always.
    """
    raise UsageError(
        "flash_attn is not installed, and what stands in for it here does not compute flash_attn_with_kvcache: "
        "generate with another attention, or add it with dsexplore.register_extension"
    )


def _third(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: Window = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    return_attn_probs: bool = False,
    **tuning: object,
) -> Attention:
    """Compute attention as FlashAttention 3 does, without dropout."""
    form = Form(softmax_scale, causal, window_size, softcap)
    out = attend(q, k, v, form)
    return (out, log_sum_exp(q, k, form), None) if return_attn_probs else out


def _third_of_packed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    return_attn_probs: bool = False,
    **tuning: object,
) -> Attention:
    """Compute attention of a packed batch as FlashAttention 3 does, without dropout."""
    return flash_attn_varlen_func(
        *(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, 0.0, softmax_scale, causal, window_size),
        softcap=softcap,
        return_attn_probs=return_attn_probs,
    )


def _third_of_qkv(
    qkv: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    *descale: Tensor | None,
    num_heads_q: int | None = None,
    **named: Any,
) -> Attention:
    """Compute attention of ``(batch, length, 3, heads, width)``, or of heads of queries, keys and values in one dim."""
    if num_heads_q is None:
        q, k, v = qkv.unbind(2)
    else:
        others = (qkv.shape[2] - num_heads_q) // 2
        q, k, v = qkv.split([num_heads_q, others, others], dim=2)
    return _third(q, k, v, softmax_scale, causal, **named)


def _two_results(attention: Callable[..., Attention]) -> Callable[..., Tensor | tuple[Tensor, Tensor]]:
    """Return a form of FlashAttention 3, which returns the output and, if asked, the log-sum-exp."""

    def call(*args: object, **named: object) -> Tensor | tuple[Tensor, Tensor]:
        result = attention(*args, **named)
        return result if isinstance(result, Tensor) else result[:2]

    return call


def flash_attn_unpadded_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float | None = None,
    causal: bool = False,
    return_attn_probs: bool = False,
    deterministic: bool = False,
) -> Attention:
    """Compute attention of a packed batch as FlashAttention 1 does."""
    return flash_attn_varlen_func(
        *(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal),
        return_attn_probs=return_attn_probs,
    )


def flash_attn_unpadded_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float | None = None,
    causal: bool = False,
    return_attn_probs: bool = False,
    deterministic: bool = False,
) -> Attention:
    """Compute attention of a packed batch as FlashAttention 1 does, of keys and values in one tensor."""
    k, v = kv.unbind(1)
    return flash_attn_varlen_func(
        *(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal),
        return_attn_probs=return_attn_probs,
    )


def flash_attn_unpadded_qkvpacked_func(
    qkv: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    dropout_p: float,
    softmax_scale: float | None = None,
    causal: bool = False,
    return_attn_probs: bool = False,
    deterministic: bool = False,
) -> Attention:
    """Compute attention of a packed batch as FlashAttention 1 does, of queries, keys and values in one tensor."""
    q, k, v = qkv.unbind(1)
    return flash_attn_varlen_func(
        *(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, dropout_p, softmax_scale, causal),
        return_attn_probs=return_attn_probs,
    )


_FUNCTIONS: Names = {
    function.__name__: function
    for function in (
        flash_attn_func,
        flash_attn_varlen_func,
        flash_attn_qkvpacked_func,
        flash_attn_kvpacked_func,
        flash_attn_varlen_qkvpacked_func,
        flash_attn_varlen_kvpacked_func,
        flash_attn_with_kvcache,
    )
}
_THIRD: Names = {
    "flash_attn_func": _two_results(_third),
    "flash_attn_varlen_func": _two_results(_third_of_packed),
    "flash_attn_qkvpacked_func": _two_results(_third_of_qkv),
    "flash_attn_with_kvcache": flash_attn_with_kvcache,
    **flash_attn_kernels.NAMES_OF_THIRD,
}
_INSTEAD_OF_UNPADDED: Names = {
    "flash_attn_unpadded_func": flash_attn_unpadded_func,
    "flash_attn_unpadded_qkvpacked_func": flash_attn_unpadded_qkvpacked_func,
    "flash_attn_unpadded_kvpacked_func": flash_attn_unpadded_kvpacked_func,
}
"""The names of version 1."""

EXTENSIONS: dict[str, Names] = {
    "flash_attn": {
        "__version__": "2.8.3",
        **_FUNCTIONS,
        **{f"flash_attn_interface.{name}": value for name, value in {**_FUNCTIONS, **_INSTEAD_OF_UNPADDED}.items()},
        **flash_attn_kernels.NAMES,
        **flash_attn_padding.NAMES,
        **flash_attn_layers.NAMES,
        **flash_attn_modules.NAMES,
    },
    "flash_attn_interface": {"__version__": "3.0.0", **_THIRD},
    "flash_attn_3": {
        "__version__": "3.0.0",
        **{f"flash_attn_interface.{name}": value for name, value in _THIRD.items()},
    },
}
