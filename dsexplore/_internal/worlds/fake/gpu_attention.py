"""Fused attention of fake tensors with dropout or a learned mask, as on a GPU.

On a CPU ``F.scaled_dot_product_attention`` with dropout, or with a learned mask, computes the scores of all queries and
keys, which would count as memory. A GPU has fused ops for these cases, so a simulated GPU uses them. The choice is that
of ``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp``: flash attention for half precision without a mask, else
memory-efficient attention. Fake tensors need no kernel, only torch's shape functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dsexplore._internal.torch_internals.aten import efficient_attention, flash_attention
from dsexplore._internal.torch_internals.patches import Entry, Kernel, Parts
from dsexplore._internal.worlds.world_settings import WorldSettings

_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
_LARGEST_HEAD = 256
"""Largest width of a head that flash attention supports."""


def _attention_of_target(parts: Parts) -> Callable[..., Any]:
    """Return the kernel of ``scaled_dot_product_attention``: that of the target, or torch's own decomposition."""
    return _attention if parts[WorldSettings].target == "cuda" else _ATTENTION.decompose


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Compute ``F.scaled_dot_product_attention`` with the op that a GPU would choose."""
    is_learned = attn_mask is not None and attn_mask.requires_grad
    if (dropout_p > 0 or is_learned) and query.dim() == 4:
        if _is_for_flash(query, value, attn_mask):
            return flash_attention(query, key, value, dropout_p, is_causal, scale=scale)[0]
        if torch.backends.cuda.mem_efficient_sdp_enabled() and query.shape[1] == key.shape[1]:
            bias = None if attn_mask is None else _bias(attn_mask, query, key)
            with_sums = torch.is_grad_enabled() and query.requires_grad
            options = (bias, with_sums, dropout_p, is_causal)
            return efficient_attention(query, key, value, *options, scale=scale)[0]
    return _ATTENTION.decompose(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


def _is_for_flash(query: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None) -> bool:
    is_half = query.dtype in (torch.float16, torch.bfloat16)
    is_narrow = query.shape[-1] == value.shape[-1] <= _LARGEST_HEAD
    return torch.backends.cuda.flash_sdp_enabled() and mask is None and is_half and is_narrow


def _bias(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Return a mask as numbers to add to the scores, of shape (batch, heads, queries, keys)."""
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(mask.logical_not(), float("-inf"))
    return mask.expand(*query.shape[:3], key.shape[2])


PATCHES: tuple[Entry, ...] = (
    Kernel(
        "aten::scaled_dot_product_attention",
        "AutogradCPU",
        "a CPU computes all scores if there is dropout or a learned mask",
        _attention_of_target,
        when="fake",
    ),
)
