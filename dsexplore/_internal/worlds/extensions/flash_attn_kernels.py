"""Stand-ins for FlashAttention's internal functions that ring attention calls: forward and backward, separately.

Signatures and results are those of flash_attn 2.8 and of FlashAttention 3. A backward writes the gradients into tensors
that it gets. It uses the log-sum-exp that it gets, which in ring attention is that of all keys, not only of these.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dsexplore._internal.worlds.extensions.plain_attention import (
    Form,
    attend,
    gradients_of_attention,
    log_sum_exp,
    packed_mask,
)
from dsexplore._internal.worlds.extensions.registry import Names

Results = tuple[Tensor, Tensor, Tensor, Tensor]
"""Output and log-sum-exp; empty tensors in place of dropout's weights and random state."""


def _flash_attn_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    return_softmax: bool,
) -> Results:
    """Compute attention of tensors (batch, length, heads, width), without a graph."""
    form = Form(
        scale=softmax_scale,
        causal=causal,
        window=(window_size_left, window_size_right),
        softcap=softcap,
        dropout=dropout_p,
        alibi_slopes=alibi_slopes,
    )
    return _forward(q, k, v, form)


def _flash_attn_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    deterministic: bool,
    rng_state: Tensor | None = None,
) -> Tensor:
    """Write the gradients of `_flash_attn_forward`, and return the sum of ``dout * out`` over the width."""
    form = Form(
        scale=softmax_scale,
        causal=causal,
        window=(window_size_left, window_size_right),
        softcap=softcap,
        alibi_slopes=alibi_slopes,
    )
    return _backward(dout, q, k, v, out, softmax_lse, (dq, dk, dv), form)


def _flash_attn_varlen_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    return_softmax: bool = False,
    block_table: Tensor | None = None,
    leftpad_k: Tensor | None = None,
    seqused_k: Tensor | None = None,
    zero_tensors: bool = False,
) -> Results:
    """Compute attention of packed sequences, shape (tokens, heads, width), without a graph."""
    form = Form(
        scale=softmax_scale,
        causal=causal,
        window=(window_size_left, window_size_right),
        softcap=softcap,
        dropout=dropout_p,
        alibi_slopes=alibi_slopes,
    )
    return _forward(q, k, v, form, (cu_seqlens_q, cu_seqlens_k))


def _flash_attn_varlen_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    deterministic: bool,
    rng_state: Tensor | None = None,
    zero_tensors: bool = False,
) -> Tensor:
    """Write the gradients of `_flash_attn_varlen_forward`, and return the sum of ``dout * out`` over the width."""
    form = Form(
        scale=softmax_scale,
        causal=causal,
        window=(window_size_left, window_size_right),
        softcap=softcap,
        alibi_slopes=alibi_slopes,
    )
    return _backward(dout, q, k, v, out, softmax_lse, (dq, dk, dv), form, (cu_seqlens_q, cu_seqlens_k))


def _forward_3(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_new: Tensor | None = None,
    v_new: Tensor | None = None,
    qv: Tensor | None = None,
    out: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    *tuning: object,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    **named: object,
) -> Results:
    """Compute attention as FlashAttention 3 does, without a graph."""
    window = _window(window_size, window_size_left, window_size_right)
    form = Form(scale=softmax_scale, causal=causal, window=window, softcap=softcap)
    return _forward(q, k, v, form, _offsets(cu_seqlens_q, cu_seqlens_k))


def _backward_3(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    sequed_q: Tensor | None = None,
    sequed_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    dq: Tensor | None = None,
    dk: Tensor | None = None,
    dv: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    deterministic: bool = False,
    sm_margin: int = 0,
    *,
    window_size_left: int = -1,
    window_size_right: int = -1,
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor]:
    """Write the gradients of FlashAttention 3's forward; return them and the sum of ``dout * out`` over the width."""
    window = _window(window_size, window_size_left, window_size_right)
    form = Form(scale=softmax_scale, causal=causal, window=window, softcap=softcap)
    offsets = _offsets(cu_seqlens_q, cu_seqlens_k)
    return dq, dk, dv, _backward(dout, q, k, v, out, softmax_lse, (dq, dk, dv), form, offsets)


Offsets = tuple[Tensor, Tensor]
"""Offsets of packed sequences, of queries and of keys."""


def _offsets(queries: Tensor | None, keys: Tensor | None) -> Offsets | None:
    return None if queries is None or keys is None else (queries, keys)


def _window(both: tuple[int, int], left: int, right: int) -> tuple[int, int]:
    """Return the window, which some versions get as one argument, and others as two."""
    return both if (left, right) == (-1, -1) else (left, right)


@torch.no_grad()
def _forward(q: Tensor, k: Tensor, v: Tensor, form: Form, offsets: Offsets | None = None) -> Results:
    """Compute attention of a batch or, with offsets, of packed sequences."""
    unused = torch.empty(0, dtype=q.dtype, device=q.device), torch.empty(2, dtype=torch.int64, device=q.device)
    if offsets is None:
        return attend(q, k, v, form), log_sum_exp(q, k, form), *unused
    mask = packed_mask(offsets[0], q.shape[0], offsets[1], k.shape[0], form)
    q, k, v = (tensor.unsqueeze(0) for tensor in (q, k, v))
    return attend(q, k, v, form, mask).squeeze(0), log_sum_exp(q, k, form, mask).squeeze(0), *unused


@torch.no_grad()
def _backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    targets: tuple[Tensor | None, Tensor | None, Tensor | None],
    form: Form,
    offsets: Offsets | None = None,
) -> Tensor:
    """Write the gradients of attention, and return the sum of ``dout * out`` over the width.

    Args:
        dout: gradient of the output.
        q: queries.
        k: keys.
        v: values.
        out: output of attention over all keys.
        lse: log-sum-exp of the scores of all keys.
        targets: tensors for the gradients of queries, keys and values; None for a gradient that is not needed.
        form: how scores become weights.
        offsets: offsets of packed sequences; None for a batch.
    """
    mask, tensors = None, (dout, q, k, v, out, lse)
    if offsets is not None:
        mask = packed_mask(offsets[0], q.shape[0], offsets[1], k.shape[0], form)
        tensors = tuple(tensor.unsqueeze(0) for tensor in tensors)  # type: ignore[assignment]
    for target, gradient in zip(targets, gradients_of_attention(*tensors, form, mask), strict=True):
        if target is not None:
            target.copy_(gradient if offsets is None else gradient.squeeze(0))
    return (dout * out).sum(-1, dtype=lse.dtype).transpose(-1, -2)


NAMES: Names = {
    f"flash_attn_interface.{wrapped}{function.__name__}": function
    for function in (
        _flash_attn_forward,
        _flash_attn_backward,
        _flash_attn_varlen_forward,
        _flash_attn_varlen_backward,
    )
    for wrapped in ("", "_wrapped")
}
NAMES_3: Names = {"_flash_attn_forward": _forward_3, "_flash_attn_backward": _backward_3}
