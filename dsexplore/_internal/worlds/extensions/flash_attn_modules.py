"""Stand-ins for ``flash_attn.modules``: multi-head attention with its projections, and a transformer block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm as torch_layer_norm

from dsexplore._internal.errors import UsageError
from dsexplore._internal.worlds.extensions.flash_attn_layers import RotaryEmbedding
from dsexplore._internal.worlds.extensions.fused_layers import Dense, FusedMLP, GatedMlp, Mlp, dense, swiglu
from dsexplore._internal.worlds.extensions.plain_attention import Form, attend, packed_mask
from dsexplore._internal.worlds.extensions.registry import Names


class MHA(nn.Module):
    """Multi-head attention with projections of queries, keys and values, and of the output.

    With ``cross_attn``, keys and values are projected from another input. With ``return_residual`` the input is
    returned too.

    Raises:
        UsageError: ``dwconv=True``, a convolution that is not computed here.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_heads_kv: int | None = None,
        cross_attn: bool = False,
        qkv_proj_bias: bool = True,
        out_proj_bias: bool = True,
        dropout: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        *,
        rotary_emb_dim: int = 0,
        rotary_emb_base: float = 10000.0,
        rotary_emb_interleaved: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        return_residual: bool = False,
        device: Any = None,
        dtype: Any = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if options.get("dwconv"):
            raise UsageError(
                "flash_attn is not installed, and the stand-in for its MHA has no convolution: add one with "
                "dsexplore.register_extension"
            )
        self.num_heads, self.num_heads_kv = num_heads, num_heads_kv or num_heads
        self.head_dim = embed_dim // num_heads
        self.dropout, self.return_residual, self.cross_attn = dropout, return_residual, cross_attn
        self.form = Form(scale=softmax_scale, causal=causal, window=window_size)
        kv_width = 2 * self.head_dim * self.num_heads_kv
        factory: Any = {"device": device, "dtype": dtype}
        if cross_attn:
            self.Wq = nn.Linear(embed_dim, embed_dim, qkv_proj_bias, **factory)
            self.Wkv = nn.Linear(embed_dim, kv_width, qkv_proj_bias, **factory)
        else:
            self.Wqkv = nn.Linear(embed_dim, embed_dim + kv_width, qkv_proj_bias, **factory)
        self.out_proj = nn.Linear(embed_dim, embed_dim, out_proj_bias, **factory)
        if rotary_emb_dim:
            self.rotary_emb = RotaryEmbedding(rotary_emb_dim, rotary_emb_base, rotary_emb_interleaved, device=device)

    def forward(
        self,
        x: Tensor,
        x_kv: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        max_seqlen: int | None = None,
        mixer_subset: Any = None,
        inference_params: Any = None,
        **packing: Any,
    ) -> Any:
        """Return the output; with ``return_residual`` also the input.

        Args:
            x: input, shape (batch, length, width), or (tokens, width) for a packed batch.
            x_kv: input for keys and values of cross attention; None for ``x``.
            key_padding_mask: True for keys that take part, shape (batch, length).
            cu_seqlens: offsets of the packed sequences, shape (sequences + 1,); None for a batch with padding.
            max_seqlen: length of the longest sequence; has no effect here.
            mixer_subset: positions to compute the output of, with cross attention; None for all.
            inference_params: cache for generation, which is not supported here.
            packing: ``cu_seqlens_k``, the offsets of the packed sequences of keys.

        Raises:
            UsageError: ``inference_params`` are given.
        """
        if inference_params is not None:
            raise UsageError(
                "flash_attn is not installed, and the stand-in for its MHA has no cache for generation: call it "
                "without inference_params"
            )
        mask = None if key_padding_mask is None else key_padding_mask[:, None, None, :]
        if cu_seqlens is None:
            out = self._attend(x, x_kv, mixer_subset, mask, self.form)
        else:
            keys = x if x_kv is None else x_kv
            cu_seqlens_k: Tensor = packing.get("cu_seqlens_k", cu_seqlens)
            mask = packed_mask(cu_seqlens, len(x), cu_seqlens_k, len(keys), self.form)
            batch_kv = None if x_kv is None else x_kv.unsqueeze(0)
            out = self._attend(x.unsqueeze(0), batch_kv, None, mask, Form(scale=self.form.scale)).squeeze(0)
        return (out, x) if self.return_residual else out

    def _attend(self, x: Tensor, x_kv: Tensor | None, subset: Any, mask: Tensor | None, form: Form) -> Tensor:
        """Project, attend, and project the output; arguments as for `forward`, with a mask and a form."""
        heads_per_part = (self.num_heads, self.num_heads_kv, self.num_heads_kv)
        if self.cross_attn:
            q = self.Wq(x if subset is None else x[:, subset]).unflatten(-1, (-1, self.head_dim))
            k, v = self.Wkv(x if x_kv is None else x_kv).unflatten(-1, (-1, self.head_dim)).split(heads_per_part[1:], 2)
        else:
            heads = self.Wqkv(x).unflatten(-1, (-1, self.head_dim))
            if hasattr(self, "rotary_emb"):
                heads = self.rotary_emb(heads, num_heads_q=self.num_heads)
            q, k, v = heads.split(heads_per_part, 2)
        if mask is not None and form.causal:
            mask = mask & torch.ones(q.shape[1], k.shape[1], dtype=torch.bool, device=x.device).tril(
                k.shape[1] - q.shape[1]
            )
        out = torch.dropout(attend(q, k, v, form, mask), self.dropout, self.training)
        projected: Tensor = self.out_proj(out.flatten(2))
        return projected


class BlockOfMixer(nn.Module):
    """A transformer block: a mixer, such as attention, and an MLP, each with a norm before (``prenorm``) or after it.

    With ``prenorm`` the residual is returned beside the output, in fp32 with ``residual_in_fp32``. Without it, and with
    ``return_residual``, mixer and MLP return their residuals. ``drop_path1`` and ``drop_path2`` have no effect.
    """

    def __init__(
        self,
        dim: int,
        mixer_cls: Callable[..., nn.Module] | None = None,
        mlp_cls: Callable[..., nn.Module] | None = None,
        norm_cls: Callable[..., nn.Module] = nn.LayerNorm,
        dropout_cls: Callable[..., nn.Module] = nn.Dropout,
        prenorm: bool = True,
        resid_dropout1: float = 0.0,
        resid_dropout2: float = 0.0,
        drop_path1: float = 0.0,
        drop_path2: float = 0.0,
        fused_dropout_add_ln: bool = False,
        return_residual: bool = False,
        residual_in_fp32: bool = False,
        sequence_parallel: bool = False,
        mark_shared_params: bool = False,
    ) -> None:
        super().__init__()
        self.prenorm, self.return_residual, self.residual_in_fp32 = prenorm, return_residual, residual_in_fp32
        self.mixer = mixer_cls(dim) if mixer_cls is not None else MHA(dim, dim // 64)
        self.mlp = mlp_cls(dim) if mlp_cls is not None else Mlp(dim)
        self.dropout1, self.norm1 = dropout_cls(resid_dropout1), norm_cls(dim)
        if not isinstance(self.mlp, nn.Identity):
            self.dropout2, self.norm2 = dropout_cls(resid_dropout2), norm_cls(dim)

    def forward(
        self,
        hidden_states: Tensor,
        residual: Tensor | None = None,
        mixer_subset: Any = None,
        mixer_kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Return the output; with ``prenorm`` also the residual for the next block."""
        has_mlp = not isinstance(self.mlp, nn.Identity)
        mixer_kwargs = mixer_kwargs or {}
        if not self.prenorm:
            hidden = self._add_and_norm(
                self.norm1, self.dropout1, self.mixer(hidden_states, **mixer_kwargs), hidden_states
            )
            return self._add_and_norm(self.norm2, self.dropout2, self.mlp(hidden), hidden) if has_mlp else hidden
        hidden, residual = self._normed(self.norm1, self.dropout1(hidden_states), residual)
        hidden = self.mixer(hidden, **mixer_kwargs)
        if has_mlp:
            hidden, residual = self._normed(self.norm2, self.dropout2(hidden), residual)
            hidden = self.mlp(hidden)
        return hidden, residual

    def _add_and_norm(self, norm: nn.Module, dropout: nn.Module, out: Any, residual: Tensor) -> Tensor:
        """Return the norm of a layer's output plus the residual, which the layer may have returned."""
        out, residual = out if self.return_residual else (out, residual)
        normed: Tensor = norm(dropout(out) + residual)
        return normed

    def _normed(self, norm: nn.Module, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the norm of ``x`` plus the residual, and that sum, the new residual."""
        total = x if residual is None else x + residual
        normed: Tensor = norm(total.to(getattr(norm, "weight", total).dtype))
        return normed, total.float() if self.residual_in_fp32 else total


def dropout_add_layer_norm(
    x0: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    dropout_p: float,
    epsilon: float,
    rowscale: Tensor | None = None,
    layerscale: Tensor | None = None,
    prenorm: bool = False,
    **options: Any,
) -> Any:
    """Return the layer norm of ``x0`` after dropout plus the residual; with ``prenorm`` also that sum."""
    total = torch.dropout(x0, dropout_p, train=True) if dropout_p else x0
    total = total if residual is None else total + residual
    normed = torch_layer_norm(total, weight.shape, weight, bias, epsilon).to(x0.dtype)
    return (normed, total) if prenorm else normed


NAMES: Names = {
    "modules.mha.MHA": MHA,
    "modules.mlp.Mlp": Mlp,
    "modules.mlp.GatedMlp": GatedMlp,
    "modules.mlp.FusedMLP": FusedMLP,
    "modules.block.Block": BlockOfMixer,
    "ops.fused_dense.FusedDense": Dense,
    "ops.fused_dense.FusedMLP": FusedMLP,
    "ops.fused_dense.fused_dense_func": dense,
    "ops.activations.swiglu": swiglu,
    "ops.layer_norm.dropout_add_layer_norm": dropout_add_layer_norm,
}
