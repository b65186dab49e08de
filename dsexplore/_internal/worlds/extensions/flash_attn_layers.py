"""Stand-ins for the layers of ``flash_attn``: rotary embeddings, norms and losses."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dsexplore._internal.worlds.extensions.fused_norms import (
    PlainRMSNorm,
    layer_norm,
    layer_norm_fn,
    rms_norm,
    rms_norm_fn,
)
from dsexplore._internal.worlds.extensions.registry import Names
from dsexplore._internal.worlds.extensions.vocabulary_loss import cross_entropy_of_shards


def rotated(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    """Return the input with its first elements rotated in pairs; the elements without a pair are unchanged.

    Args:
        x: input, shape (..., length, heads, width).
        cos: cosines of the angles, shape (..., length, pairs).
        sin: sines of the angles, shape (..., length, pairs).
        interleaved: True if a pair is two neighbors, False if it is an element of each half.
    """
    width = 2 * cos.shape[-1]
    pairs = x[..., :width].unflatten(-1, (-1, 2) if interleaved else (2, -1))
    first, second = pairs.unbind(-1 if interleaved else -2)
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
    both = (first * cos - second * sin, first * sin + second * cos)
    out = torch.stack(both, -1 if interleaved else -2).flatten(-2).to(x.dtype)
    return torch.cat((out, x[..., width:]), -1)


def _tables(
    x: Tensor, cos: Tensor, sin: Tensor, offsets: int | Tensor, cu_seqlens: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the rows of both tables for the positions of the tokens in their sequences, plus the offsets."""
    length = x.shape[0] if cu_seqlens is not None else x.shape[1]
    positions = torch.arange(length, device=cos.device)
    if cu_seqlens is not None:
        sequence = torch.bucketize(positions, cu_seqlens[1:].to(positions.dtype), right=True)
        positions = (positions - cu_seqlens.to(positions.dtype)[sequence]).clamp(max=cos.shape[0] - 1)
    if isinstance(offsets, Tensor):
        positions = positions[None] + offsets[:, None]
    elif offsets:
        positions = positions + offsets
    return cos[positions], sin[positions]


def apply_rotary_emb(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool = False,
    inplace: bool = False,
    seqlen_offsets: int | Tensor = 0,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
) -> Tensor:
    """Rotate a tensor of shape (batch, length, heads, width), or (tokens, heads, width) with ``cu_seqlens``."""
    out = rotated(x, *_tables(x, cos, sin, seqlen_offsets, cu_seqlens), interleaved)
    if inplace:
        x.data.copy_(out.data)
    return out


def apply_rotary(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    seqlen_offsets: int | Tensor = 0,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
    interleaved: bool = False,
    inplace: bool = False,
    conjugate: bool = False,
) -> Tensor:
    """Call `apply_rotary_emb`; with ``conjugate`` rotate in the other direction."""
    sin = -sin if conjugate else sin
    return apply_rotary_emb(x, cos, sin, interleaved, inplace, seqlen_offsets, cu_seqlens, max_seqlen)


def apply_rotary_emb_qkv_(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    cos_k: Tensor | None = None,
    sin_k: Tensor | None = None,
    interleaved: bool = False,
    seqlen_offsets: int | Tensor = 0,
    num_heads_q: int | None = None,
) -> Tensor:
    """Rotate in place the queries and keys of a tensor of queries, keys and values.

    Its shape is (batch, length, 3, heads, width), or (batch, length, heads of all three, width).
    """
    cos_k, sin_k = cos if cos_k is None else cos_k, sin if sin_k is None else sin_k
    if qkv.dim() == 5:
        query, key, value = qkv.unbind(2)
    else:
        num_heads_q = num_heads_q or qkv.shape[2] // 3
        num_heads_k = (qkv.shape[2] - num_heads_q) // 2
        query, key, value = qkv.split((num_heads_q, num_heads_k, num_heads_k), 2)
    query = apply_rotary_emb(query, cos, sin, interleaved, seqlen_offsets=seqlen_offsets)
    key = apply_rotary_emb(key, cos_k, sin_k, interleaved, seqlen_offsets=seqlen_offsets)
    out = torch.stack((query, key, value), 2) if qkv.dim() == 5 else torch.cat((query, key, value), 2)
    qkv.data.copy_(out.data)
    return out


def apply_rotary_emb_kv_(
    kv: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, seqlen_offsets: int | Tensor = 0
) -> Tensor:
    """Rotate in place the keys of a tensor of keys and values, shape (batch, length, 2, heads, width)."""
    key, value = kv.unbind(2)
    key = apply_rotary_emb(key, cos, sin, interleaved, seqlen_offsets=seqlen_offsets)
    out = torch.stack((key, value), 2)
    kv.data.copy_(out.data)
    return out


class RotaryEmbedding(nn.Module):
    """Rotary position embedding that computes its tables of angles; XPos (``scale_base``) is not computed."""

    inv_freq: Tensor

    def __init__(
        self,
        dim: int,
        base: float = 10000.0,
        interleaved: bool = False,
        scale_base: float | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.dim, self.base, self.interleaved, self.scale_base = dim, float(base), interleaved, scale_base
        powers = torch.arange(0, dim, 2, device=device, dtype=torch.float32) / dim
        self.register_buffer("inv_freq", 1.0 / self.base**powers, persistent=False)

    def forward(
        self,
        qkv: Tensor,
        kv: Tensor | None = None,
        seqlen_offset: int | Tensor = 0,
        max_seqlen: int | None = None,
        num_heads_q: int | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Rotate queries and keys packed in ``qkv``; with ``kv`` the queries in ``qkv``, and the keys in ``kv``."""
        offset = seqlen_offset if isinstance(seqlen_offset, int) else (max_seqlen or 0)
        positions = torch.arange(qkv.shape[1] + offset, device=qkv.device, dtype=torch.float32)
        angles = torch.outer(positions, self.inv_freq.float())
        cos, sin = angles.cos().to(qkv.dtype), angles.sin().to(qkv.dtype)
        if kv is None:
            return apply_rotary_emb_qkv_(
                qkv,
                cos,
                sin,
                interleaved=self.interleaved,
                seqlen_offsets=seqlen_offset,
                num_heads_q=num_heads_q,
            )
        query = apply_rotary_emb(qkv, cos, sin, self.interleaved, inplace=True, seqlen_offsets=seqlen_offset)
        return query, apply_rotary_emb_kv_(kv, cos, sin, self.interleaved, seqlen_offset)


def cross_entropy_loss(
    logits: Tensor,
    labels: Tensor,
    precomputed_lse: Tensor | None = None,
    label_smoothing: float = 0.0,
    logit_scale: float = 1.0,
    lse_square_scale: float = 0.0,
    ignore_index: int = -100,
    inplace_backward: bool = False,
    process_group: dist.ProcessGroup | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the loss and the z-loss of each row of logits, shape (rows, vocabulary), both in fp32.

    The z-loss is ``lse_square_scale`` times the squared log-sum-exp, which is computed also if ``precomputed_lse`` is
    given.
    """
    logits = logits.float() * logit_scale
    loss, lse = cross_entropy_of_shards(logits, labels, label_smoothing, ignore_index, process_group)
    z_loss = (lse_square_scale * lse.square()).masked_fill(labels == ignore_index, 0)
    return loss + z_loss, z_loss


class CrossEntropyLoss(nn.Module):
    """Cross entropy; the vocabulary may be sharded over the ranks of ``process_group``.

    The squared log-sum-exp times ``lse_square_scale`` is added to the loss, and returned too with ``return_z_loss``.
    """

    def __init__(
        self,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        logit_scale: float = 1.0,
        lse_square_scale: float = 0.0,
        inplace_backward: bool = False,
        process_group: dist.ProcessGroup | None = None,
        return_z_loss: bool = False,
    ) -> None:
        super().__init__()
        self.ignore_index, self.reduction, self.return_z_loss = ignore_index, reduction, return_z_loss
        self.options = (label_smoothing, logit_scale, lse_square_scale, ignore_index, inplace_backward, process_group)

    def forward(
        self,
        input: Tensor,  # noqa: A002 # as FlashAttention's
        target: Tensor,
        precomputed_lse: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return the loss of logits, shape (rows, vocabulary)."""
        losses = cross_entropy_loss(input, target, precomputed_lse, *self.options)
        loss, z_loss = (self._reduce(rows, target) for rows in losses)
        return (loss, z_loss) if self.return_z_loss else loss

    def _reduce(self, losses: Tensor, target: Tensor) -> Tensor:
        if self.reduction == "none":
            return losses
        total = losses.sum()
        return total if self.reduction == "sum" else total / (target != self.ignore_index).sum()


class FlashRMSNorm(PlainRMSNorm):
    """RMS norm of the last dim."""

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(hidden_size, eps, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Return the norm of ``x``."""
        return rms_norm(x, self.weight, self.eps)


class DropoutRMSNorm(PlainRMSNorm):
    """RMS norm of the last dim, after dropout and the sum with a residual."""

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-5,
        dropout_p: float = 0.0,
        zero_centered_weight: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(hidden_size, eps, device=device, dtype=dtype)
        self.dropout_p, self.zero_centered_weight = dropout_p, zero_centered_weight
        if zero_centered_weight:
            nn.init.zeros_(self.weight)

    def forward(
        self, x: Tensor, residual: Tensor | None = None, prenorm: bool = False, residual_in_fp32: bool = False
    ) -> Any:
        """Return the norm; with ``prenorm`` also its input after dropout and the sum."""
        return rms_norm_fn(
            x,
            self.weight,
            None,
            residual,
            eps=self.eps,
            dropout_p=self.dropout_p if self.training else 0.0,
            prenorm=prenorm,
            residual_in_fp32=residual_in_fp32,
            zero_centered_weight=self.zero_centered_weight,
        )


NAMES: Names = {
    **{
        f"layers.rotary.{function.__name__}": function
        for function in (apply_rotary_emb, apply_rotary_emb_qkv_, apply_rotary_emb_kv_, RotaryEmbedding)
    },
    "layers.rotary.apply_rotary_emb_func": apply_rotary_emb,
    "ops.triton.rotary.apply_rotary": apply_rotary,
    "losses.cross_entropy.CrossEntropyLoss": CrossEntropyLoss,
    "ops.triton.cross_entropy.cross_entropy_loss": cross_entropy_loss,
    "ops.rms_norm.rms_norm": rms_norm,
    "ops.rms_norm.RMSNorm": FlashRMSNorm,
    "ops.layer_norm.layer_norm": layer_norm,
    "ops.triton.layer_norm.RMSNorm": DropoutRMSNorm,
    "ops.triton.layer_norm.layer_norm_fn": layer_norm_fn,
    "ops.triton.layer_norm.rms_norm_fn": rms_norm_fn,
}
