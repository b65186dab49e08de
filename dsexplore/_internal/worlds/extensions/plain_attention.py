"""Attention as fused kernels compute it, of tensors ``(batch, length, heads, width)``, in plain torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


@dataclass(frozen=True)
class Form:
    """How scores become weights.

    Attributes:
        scale: of the scores; None for 1 / √width.
        causal: a query sees keys up to its own place, where the last query is at the last key.
        window: numbers of keys to the left and right that a query sees; -1 for all.
        softcap: scores become softcap · tanh(score / softcap); 0 leaves them as they are.
        dropout: the part of the weights that is dropped.
        alibi_slopes: ``(heads,)`` or ``(batch, heads)``: a score loses slope · distance.
    """

    scale: float | None = None
    causal: bool = False
    window: tuple[int | None, int | None] = (-1, -1)
    softcap: float = 0.0
    dropout: float = 0.0
    alibi_slopes: Tensor | None = None


def attend(query: Tensor, key: Tensor, value: Tensor, form: Form, mask: Tensor | None = None) -> Tensor:
    """Return attention, ``(batch, queries, heads, width of values)``.

    Args:
        query: ``(batch, queries, heads, width)``.
        key: ``(batch, keys, heads, width)``; it may have fewer heads, each of which serves several of the queries.
        value: likewise.
        form: how scores become weights.
        mask: what a query sees, True, or what is added to the scores; it has the shape ``(batch or 1, heads or 1,
            queries, keys)``.
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
    """Return the logarithm of the sum of the exponentials of each query's scores, ``(batch, heads, queries)``."""
    query, key = (tensor.transpose(1, 2) for tensor in (query, _grouped(query, key)[0]))
    return _scores(query, key, form, mask).logsumexp(-1)


def gradients_of_attention(
    out_gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    sums: Tensor,
    form: Form,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, key and value, as kernels compute them: with the sums that they are given.

    Ring attention gives those of all keys with a part of them.

    Args:
        out_gradient: of `out`.
        query: as for `attend`.
        key: as for `attend`.
        value: as for `attend`.
        out: attention, of all keys.
        sums: the logarithms of the sums of exponentials of all keys' scores, ``(batch, heads, queries)``.
        form: as for `attend`; its dropout is not repeated.
        mask: as for `attend`.
    """
    wide = torch.promote_types(query.dtype, torch.float32)
    grouped = _grouped(query, key, value)
    q, k, v, o, g = (tensor.transpose(1, 2).to(wide) for tensor in (query, *grouped, out, out_gradient))
    scores = _scores(q, k, form, mask)
    weights = (scores - sums.to(wide).unsqueeze(-1)).exp()
    of_scores = weights * (g @ v.transpose(-1, -2) - (g * o).sum(-1, keepdim=True))
    if form.softcap:
        plain = _scores(q, k, replace(form, alibi_slopes=None, causal=False, window=(-1, -1)), None)
        of_scores = of_scores * (1 - (plain / form.softcap).square())
    of_scores = of_scores * _scale(query, form)
    gradients = of_scores @ k, of_scores.transpose(-1, -2) @ q, weights.transpose(-1, -2) @ g
    return tuple(
        _summed_by_group(gradient.transpose(1, 2), of).to(of.dtype)
        for gradient, of in zip(gradients, (query, key, value), strict=True)
    )  # type: ignore[return-value]


def _summed_by_group(gradient: Tensor, of: Tensor) -> Tensor:
    """Sum over the heads of queries that share a head of keys or values."""
    summed: Tensor = gradient.unflatten(2, (of.shape[2], -1)).sum(3)
    return summed


def segments(ends: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Return each packed token's sequence number, and its position counted from that sequence's end.

    Args:
        ends: ``(sequences + 1,)``: where the sequences begin, and the last one ends.
        length: number of tokens.
    """
    places = torch.arange(length, device=ends.device)
    number = torch.bucketize(places, ends[1:].to(places.dtype), right=True)
    last = ends.to(places.dtype)[(number + 1).clamp(max=ends.shape[0] - 1)]
    return number, places - last


def packed_mask(query_ends: Tensor, queries: int, key_ends: Tensor, keys: int, form: Form) -> Tensor:
    """Return the mask of a packed batch, ``(1, 1, queries, keys)``: True for keys of the query's own sequence."""
    of_query, query_place = segments(query_ends, queries)
    of_key, key_place = segments(key_ends, keys)
    distance = key_place[None, :] - query_place[:, None]
    seen = (of_query[:, None] == of_key[None, :]) & _seen_keys(distance, form)
    return seen[None, None]


def _grouped(query: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """Repeat the heads of keys and values for the queries that share them."""
    repeats = query.shape[2] // others[0].shape[2]
    if repeats == 1:
        return others
    return tuple(other.repeat_interleave(repeats, dim=2) for other in others)


def _has_window(form: Form) -> bool:
    return any(side is not None and side >= 0 for side in form.window)


def _seen_keys(distance: Tensor, form: Form) -> Tensor:
    """Return which keys are seen, by how far they are to the right of the query."""
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
    queries, keys = query.shape[2], key.shape[2]
    places = torch.arange(queries, device=query.device)[:, None] + (keys - queries)
    return torch.arange(keys, device=query.device)[None, :] - places


def _bias(query: Tensor, key: Tensor, form: Form, mask: Tensor | None) -> Tensor:
    """Return the bias added to the scores, ``(batch or 1, heads or 1, queries, keys)``."""
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
    return (bias == -math.inf).all(-1, keepdim=True)


def _scores(query: Tensor, key: Tensor, form: Form, mask: Tensor | None) -> Tensor:
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = (query.to(wide) @ key.to(wide).transpose(-1, -2)) * _scale(query, form)
    if form.softcap:
        scores = form.softcap * torch.tanh(scores / form.softcap)
    return scores + _bias(query, key, form, mask).to(wide)


def _scale(query: Tensor, form: Form) -> float:
    return form.scale if form.scale is not None else query.shape[-1] ** -0.5
