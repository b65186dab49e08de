"""Stand-ins for FlashAttention 2 (``flash_attn``) and 3 (``flash_attn_interface``).

Signatures and shapes are those of flash_attn 2.8 (https://github.com/Dao-AILab/flash-attention). Unlike the kernels,
these functions accept any dtype, and a packed batch needs a mask of (tokens, tokens).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, int32
from torch.nn.functional import pad

from dsexplore._internal.errors import UsageError
from dsexplore._internal.worlds.extensions import flash_attn_kernels, flash_attn_layers, flash_attn_modules
from dsexplore._internal.worlds.extensions.plain_attention import Form, attend, log_sum_exp, packed_mask
from dsexplore._internal.worlds.extensions.registry import Names

Window = tuple[int, int]
Attention = Tensor | tuple[Tensor, Tensor, Tensor | None]
"""The output; with ``return_attn_probs`` also the log-sum-exp of the scores, and None in place of the weights."""


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
    """Compute attention of tensors (batch, length, heads, width); keys and values may have fewer heads."""
    form = Form(
        scale=softmax_scale,
        causal=causal,
        window=window_size,
        softcap=softcap,
        dropout=dropout_p,
        alibi_slopes=alibi_slopes,
    )
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
    """Compute attention of packed sequences, shape (tokens, heads, width), which begin at ``cu_seqlens``."""
    form = Form(
        scale=softmax_scale,
        causal=causal,
        window=window_size,
        softcap=softcap,
        dropout=dropout_p,
        alibi_slopes=alibi_slopes,
    )
    mask = packed_mask(cu_seqlens_q, q.shape[0], cu_seqlens_k, k.shape[0], form)
    out = attend(q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0), form, mask).squeeze(0)
    if not return_attn_probs:
        return out
    return out, log_sum_exp(q.unsqueeze(0), k.unsqueeze(0), form, mask).squeeze(0), None


def flash_attn_qkvpacked_func(qkv: Tensor, *options: Any, **named: Any) -> Attention:
    """Compute attention of queries, keys and values in one tensor, shape (batch, length, 3, heads, width)."""
    q, k, v = qkv.unbind(2)
    return flash_attn_func(q, k, v, *options, **named)


def flash_attn_kvpacked_func(q: Tensor, kv: Tensor, *options: Any, **named: Any) -> Attention:
    """Compute attention with keys and values in one tensor, shape (batch, length, 2, heads, width)."""
    k, v = kv.unbind(2)
    return flash_attn_func(q, k, v, *options, **named)


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, *options: Any, **named: Any
) -> Attention:
    """Compute attention of packed queries, keys and values in one tensor, shape (tokens, 3, heads, width)."""
    q, k, v = qkv.unbind(1)
    return flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, *options, **named)


def flash_attn_varlen_kvpacked_func(
    q: Tensor, kv: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, *options: Any, **named: Any
) -> Attention:
    """Compute attention of packed sequences with keys and values in one tensor, shape (tokens, 2, heads, width)."""
    k, v = kv.unbind(1)
    return flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, *options, **named)


def flash_attn_with_kvcache(*args: object, **named: object) -> Tensor:
    """Raise an error: programs import this function with the others, but only generation calls it.

    Raises:
        UsageError: always.
    """
    raise UsageError(
        "flash_attn is not installed, and its stand-in does not compute flash_attn_with_kvcache: generate with another "
        "attention, or add it with dsexplore.register_extension"
    )


def _attention_3(
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
    form = Form(scale=softmax_scale, causal=causal, window=window_size, softcap=softcap)
    out = attend(q, k, v, form)
    return (out, log_sum_exp(q, k, form), None) if return_attn_probs else out


def _varlen_attention_3(
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
    """Compute attention of packed sequences as FlashAttention 3 does, without dropout."""
    return flash_attn_varlen_func(
        *(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k),
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=window_size,
        softcap=softcap,
        return_attn_probs=return_attn_probs,
    )


def _qkvpacked_attention_3(
    qkv: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    *descale: Tensor | None,
    num_heads_q: int | None = None,
    **named: Any,
) -> Attention:
    """Compute attention of queries, keys and values in one tensor, as FlashAttention 3 does.

    Its shape is (batch, length, 3, heads, width), or with ``num_heads_q`` (batch, length, heads of all three, width).
    """
    if num_heads_q is None:
        q, k, v = qkv.unbind(2)
    else:
        num_heads_k = (qkv.shape[2] - num_heads_q) // 2
        q, k, v = qkv.split([num_heads_q, num_heads_k, num_heads_k], dim=2)
    return _attention_3(q, k, v, softmax_scale, causal, **named)


def _two_results(attention: Callable[..., Attention]) -> Callable[..., Tensor | tuple[Tensor, Tensor]]:
    """Wrap a function to return only the output and, with ``return_attn_probs``, the log-sum-exp."""

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
    """Compute attention of packed sequences as FlashAttention 1 does."""
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
    """Compute attention of packed sequences with keys and values in one tensor, as FlashAttention 1 does."""
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
    """Compute attention of packed queries, keys and values in one tensor, as FlashAttention 1 does."""
    q, k, v = qkv.unbind(1)
    return flash_attn_varlen_func(
        *(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, dropout_p, softmax_scale, causal),
        return_attn_probs=return_attn_probs,
    )


def index_first_axis(input: Tensor, indices: Tensor) -> Tensor:  # noqa: A002 # as FlashAttention's
    """Return the rows with these indices."""
    return input[indices]


def index_put_first_axis(values: Tensor, indices: Tensor, first_axis_dim: int) -> Tensor:
    """Return rows of zeros, with the values at these indices."""
    return values.new_zeros(first_axis_dim, *values.shape[1:]).index_put((indices,), values)


def index_first_axis_residual(
    input: Tensor,  # noqa: A002 # as FlashAttention's
    indices: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the rows with these indices, and all rows, detached."""
    return input[indices], input.detach()


def unpad_input(
    hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """Pack a batch.

    Args:
        hidden_states: batch with padding, shape (batch, length, ...).
        attention_mask: nonzero for tokens, shape (batch, length).
        unused_mask: nonzero for further positions to keep, shape (batch, length).

    Returns:
        the packed tokens, their indices in the flat batch, the offsets of the sequences, the longest length, and the
        number of tokens of each sequence.
    """
    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = kept.sum(dim=-1, dtype=int32)
    indices = kept.flatten().nonzero().flatten()
    offsets = pad(lengths.cumsum(0, dtype=int32), (1, 0))
    used = attention_mask.sum(dim=-1, dtype=int32)
    return hidden_states.flatten(0, 1)[indices], indices, offsets, int(lengths.max().item()), used


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """Return packed tokens as a batch with zeros as padding, shape (batch, seqlen, ...)."""
    padded = index_put_first_axis(hidden_states, indices, batch * seqlen)
    return padded.reshape(batch, seqlen, *padded.shape[1:])


_PADDING = (index_first_axis, index_put_first_axis, index_first_axis_residual, unpad_input, pad_input)
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
_FUNCTIONS_3: Names = {
    "flash_attn_func": _two_results(_attention_3),
    "flash_attn_varlen_func": _two_results(_varlen_attention_3),
    "flash_attn_qkvpacked_func": _two_results(_qkvpacked_attention_3),
    "flash_attn_with_kvcache": flash_attn_with_kvcache,
    **flash_attn_kernels.NAMES_3,
}
_FUNCTIONS_1: Names = {
    "flash_attn_unpadded_func": flash_attn_unpadded_func,
    "flash_attn_unpadded_qkvpacked_func": flash_attn_unpadded_qkvpacked_func,
    "flash_attn_unpadded_kvpacked_func": flash_attn_unpadded_kvpacked_func,
}
"""The functions of version 1."""

EXTENSIONS: dict[str, Names] = {
    "flash_attn": {
        "__version__": "2.8.3",
        **_FUNCTIONS,
        **{f"flash_attn_interface.{name}": value for name, value in {**_FUNCTIONS, **_FUNCTIONS_1}.items()},
        **flash_attn_kernels.NAMES,
        **{f"bert_padding.{function.__name__}": function for function in _PADDING},
        **flash_attn_layers.NAMES,
        **flash_attn_modules.NAMES,
    },
    "flash_attn_interface": {"__version__": "3.0.0", **_FUNCTIONS_3},
    "flash_attn_3": {
        "__version__": "3.0.0",
        **{f"flash_attn_interface.{name}": value for name, value in _FUNCTIONS_3.items()},
    },
}
