"""Attention as fused kernels compute it, in plain torch; tensors have the shape (batch, length, heads, width)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


@dataclass(frozen=True, kw_only=True)
class Form:
    """Options of attention: how scores become weights.

    Attributes:
        scale: factor of the scores; None for 1 / √width.
        causal: True if a query sees keys only up to its own position; the last query is at the last key.
        window: numbers of keys to the left and right that a query sees; None or -1 for all.
        softcap: scores become softcap · tanh(score / softcap); 0 for no cap.
        dropout: dropout probability of the weights.
        alibi_slopes: slopes by which scores decrease with distance, shape (heads,) or (batch, heads); None for none.
    """

    scale: float | None = None
    causal: bool = False
    window: tuple[int | None, int | None] = (-1, -1)
    softcap: float = 0.0
    dropout: float = 0.0
    alibi_slopes: Tensor | None = None


def attend(query: Tensor, key: Tensor, value: Tensor, form: Form, mask: Tensor | None = None) -> Tensor:
    """Return attention, shape (batch, queries, heads, width of values).

    Args:
        query: queries, shape (batch, queries, heads, width).
        key: keys, shape (batch, keys, heads, width); fewer heads are each shared by several heads of queries.
        value: values, shape (batch, keys, heads, width of values).
        form: how scores become weights.
        mask: True for keys that a query sees, or a bias that is added to the scores; shape (batch or 1, heads or 1,
            queries, keys). None to see all keys that the form allows.
    """
    query, key, value = (tensor.transpose(1, 2) for tensor in (query, *_grouped(query, key, value)))
    is_plain = mask is None and form.alibi_slopes is None and not form.softcap and not _has_window(form)
    if is_plain and (not form.causal or query.shape[2] == key.shape[2]):
        out = scaled_dot_product_attention(
            query, key, value, dropout_p=form.dropout, is_causal=form.causal, scale=form.scale
        )
    elif not form.softcap:
        bias = _bias(query, key, form, mask)
        out = scaled_dot_product_attention(query, key, value, attn_mask=bias, dropout_p=form.dropout, scale=form.scale)
        out = out.masked_fill(_sees_nothing(bias), 0)
    else:
        scores = _scores(query, key, form, mask)
        weights = scores.softmax(-1).nan_to_num()
        out = torch.dropout(weights, form.dropout, train=True).to(value.dtype) @ value
    return out.transpose(1, 2)


def log_sum_exp(query: Tensor, key: Tensor, form: Form, mask: Tensor | None = None) -> Tensor:
    """Return the log-sum-exp of each query's scores, shape (batch, heads, queries); arguments as for `attend`."""
    query, key = (tensor.transpose(1, 2) for tensor in (query, _grouped(query, key)[0]))
    return _scores(query, key, form, mask).logsumexp(-1)


def gradients_of_attention(
    out_gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    form: Form,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, key and value, as kernels compute them: from the log-sum-exp that they get.

    Ring attention calls it with a part of the keys, and the log-sum-exp of all keys.

    Args:
        out_gradient: gradient of the output.
        query: queries, as for `attend`.
        key: keys, as for `attend`.
        value: values, as for `attend`.
        out: output of attention over all keys.
        lse: log-sum-exp of the scores of all keys, shape (batch, heads, queries).
        form: how scores become weights; dropout is not repeated.
        mask: mask or bias, as for `attend`.
    """
    wide = torch.promote_types(query.dtype, torch.float32)
    grouped = _grouped(query, key, value)
    q, k, v, o, g = (tensor.transpose(1, 2).to(wide) for tensor in (query, *grouped, out, out_gradient))
    scores = _scores(q, k, form, mask)
    weights = (scores - lse.to(wide).unsqueeze(-1)).exp()
    score_gradient = weights * (g @ v.transpose(-1, -2) - (g * o).sum(-1, keepdim=True))
    if form.softcap:
        capped = _scores(q, k, replace(form, alibi_slopes=None, causal=False, window=(-1, -1)), None)
        score_gradient = score_gradient * (1 - (capped / form.softcap).square())
    score_gradient = score_gradient * _scale(query, form)
    return (
        _sum_by_group(score_gradient @ k, query),
        _sum_by_group(score_gradient.transpose(-1, -2) @ q, key),
        _sum_by_group(weights.transpose(-1, -2) @ g, value),
    )


def _sum_by_group(gradient: Tensor, tensor: Tensor) -> Tensor:
    """Sum a gradient over the heads of queries that share a head of a tensor, to the tensor's shape and dtype."""
    summed: Tensor = gradient.transpose(1, 2).unflatten(2, (tensor.shape[2], -1)).sum(3)
    return summed.to(tensor.dtype)


def segments(offsets: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Return each packed token's sequence number, and its position counted from that sequence's end.

    Args:
        offsets: begins of the sequences, and the end of the last one, shape (sequences + 1,).
        length: number of tokens.
    """
    tokens = torch.arange(length, device=offsets.device)
    sequence = torch.bucketize(tokens, offsets[1:].to(tokens.dtype), right=True)
    end = offsets.to(tokens.dtype)[(sequence + 1).clamp(max=offsets.shape[0] - 1)]
    return sequence, tokens - end


def packed_mask(query_offsets: Tensor, queries: int, key_offsets: Tensor, keys: int, form: Form) -> Tensor:
    """Return the mask of packed sequences, shape (1, 1, queries, keys): True for visible keys of the same sequence.

    Args:
        query_offsets: offsets of the sequences of queries, shape (sequences + 1,).
        queries: number of queries.
        key_offsets: offsets of the sequences of keys, shape (sequences + 1,).
        keys: number of keys.
        form: which keys of its sequence a query sees.
    """
    query_sequence, query_position = segments(query_offsets, queries)
    key_sequence, key_position = segments(key_offsets, keys)
    distance = key_position[None, :] - query_position[:, None]
    seen = (query_sequence[:, None] == key_sequence[None, :]) & _seen_keys(distance, form)
    return seen[None, None]


def _grouped(query: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """Repeat the heads of keys and values for the heads of queries that share them."""
    repeats = query.shape[2] // others[0].shape[2]
    if repeats == 1:
        return others
    return tuple(other.repeat_interleave(repeats, dim=2) for other in others)


def _has_window(form: Form) -> bool:
    return any(side is not None and side >= 0 for side in form.window)


def _seen_keys(distance: Tensor, form: Form) -> Tensor:
    """Return True for visible keys, from how far they are to the right of the query."""
    left, right = form.window
    if form.causal:
        right = 0
    seen = torch.ones_like(distance, dtype=torch.bool)
    if left is not None and left >= 0:
        seen = seen & (distance >= -left)
    if right is not None and right >= 0:
        seen = seen & (distance <= right)
    return seen


def _distance(query: Tensor, key: Tensor) -> Tensor:
    """Return how far each key is to the right of each query, shape (queries, keys); the last ones are aligned."""
    queries, keys = query.shape[2], key.shape[2]
    positions = torch.arange(queries, device=query.device)[:, None] + (keys - queries)
    return torch.arange(keys, device=query.device)[None, :] - positions


def _bias(query: Tensor, key: Tensor, form: Form, mask: Tensor | None) -> Tensor:
    """Return the bias added to the scores, shape (batch or 1, heads or 1, queries, keys); -inf for invisible keys."""
    bias = torch.zeros((), dtype=query.dtype, device=query.device)
    if mask is not None and mask.dtype != torch.bool:
        bias = mask.to(query.dtype)
    distance = _distance(query, key)
    if form.alibi_slopes is not None:
        slopes = form.alibi_slopes.reshape(-1, form.alibi_slopes.shape[-1], 1, 1)
        bias = bias - (slopes * distance.abs()).to(query.dtype)
    seen = mask if mask is not None and mask.dtype == torch.bool else _seen_keys(distance, form)[None, None]
    return torch.where(seen, bias, torch.full_like(bias, -math.inf))


def _sees_nothing(bias: Tensor) -> Tensor:
    """Return True for queries that see no key."""
    return (bias == -math.inf).all(-1, keepdim=True)


def _scores(query: Tensor, key: Tensor, form: Form, mask: Tensor | None) -> Tensor:
    """Return the scores with their bias, in fp32 or wider, shape (batch, heads, queries, keys)."""
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = (query.to(wide) @ key.to(wide).transpose(-1, -2)) * _scale(query, form)
    if form.softcap:
        scores = form.softcap * torch.tanh(scores / form.softcap)
    return scores + _bias(query, key, form, mask).to(wide)


def _scale(query: Tensor, form: Form) -> float:
    return form.scale if form.scale is not None else query.shape[-1] ** -0.5
