"""Attention of fake tensors with dropout or a learned mask: fused, as on a GPU.

On a CPU ``F.scaled_dot_product_attention`` with dropout, or with a mask that is learned, multiplies all queries by all
keys, whose scores then fill the memory. A GPU has fused ops for it, so a simulated one takes them. Mirrors the choice
in ``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp``: flash attention of half precision without a mask, else
memory-efficient attention. Fake tensors need no kernel of either, only the shapes that torch knows.
"""

from __future__ import annotations

from typing import Any

import torch

from dsexplore.torch_internals.patches import Patches

_aten = torch.ops.aten
_ATTENTION = _aten.scaled_dot_product_attention.default
_WIDEST = 256
"""Numbers of one head that flash attention takes at most."""


def patch_attention_choice(patches: Patches) -> None:
    """Attention with dropout or a learned mask takes a GPU's ops from now on."""
    library = torch.library.Library("aten", "IMPL")
    patches.callback(library._destroy)
    library.impl("scaled_dot_product_attention", _attention, "AutogradCPU")


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
    """``F.scaled_dot_product_attention``."""
    is_learned = attn_mask is not None and attn_mask.requires_grad
    if (dropout_p > 0 or is_learned) and query.dim() == 4:
        if _flash_takes(query, value, attn_mask):
            return _aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, scale=scale)[0]
        if torch.backends.cuda.mem_efficient_sdp_enabled() and query.shape[1] == key.shape[1]:
            bias = None if attn_mask is None else _bias(attn_mask, query, key)
            with_sums = torch.is_grad_enabled() and query.requires_grad
            options = (bias, with_sums, dropout_p, is_causal)
            return _aten._scaled_dot_product_efficient_attention(query, key, value, *options, scale=scale)[0]
    given = (attn_mask, dropout_p, is_causal)
    return _ATTENTION.decompose(query, key, value, *given, scale=scale, enable_gqa=enable_gqa)


def _flash_takes(query: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None) -> bool:
    is_half = query.dtype in (torch.float16, torch.bfloat16)
    width = query.shape[-1]
    return torch.backends.cuda.flash_sdp_enabled() and mask is None and is_half and width == value.shape[-1] <= _WIDEST


def _bias(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """A mask as numbers that are added to the scores, of shape [batch, heads, queries, keys]."""
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(mask.logical_not(), float("-inf"))
    return mask.expand(*query.shape[:3], key.shape[2])
