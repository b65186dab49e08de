"""Stand-ins for the layers of ``transformer_engine.pytorch``, with its parameters and its tensor parallelism.

Arguments are Transformer Engine's; those that choose kernels have no effect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from dsexplore._internal.worlds.extensions.fused_norms import PlainLayerNorm, PlainRMSNorm, Shape, layer_norm, rms_norm
from dsexplore._internal.worlds.extensions.parallel_linear import parallel_linear
from dsexplore._internal.worlds.extensions.plain_attention import Form, attend

_GATES: dict[str, Callable[[Tensor], Tensor]] = {
    "swiglu": functional.silu,
    "geglu": lambda x: functional.gelu(x, approximate="tanh"),
    "reglu": functional.relu,
}
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
    "silu": functional.silu,
    "srelu": lambda x: functional.relu(x).square(),
}


class RMSNorm(PlainRMSNorm):
    """RMS norm; options that choose kernels have no effect."""

    def __init__(self, normalized_shape: Shape | None = None, eps: float = 1e-5, **options: Any) -> None:
        super().__init__(
            _shape(normalized_shape, options), eps, device=options.get("device", "cuda"), dtype=_dtype(options)
        )


class LayerNorm(PlainLayerNorm):
    """Layer norm; options that choose kernels have no effect."""

    def __init__(self, normalized_shape: Shape | None = None, eps: float = 1e-5, **options: Any) -> None:
        super().__init__(
            _shape(normalized_shape, options), eps, device=options.get("device", "cuda"), dtype=_dtype(options)
        )


def _shape(normalized_shape: Shape | None, options: dict[str, Any]) -> Shape:
    """Return the shape of a norm, which older versions name ``hidden_size``."""
    shape: Shape = options["hidden_size"] if normalized_shape is None else normalized_shape
    return shape


def initialize_weight(weight: Tensor) -> None:
    """Initialize a weight as Transformer Engine does by default."""
    nn.init.normal_(weight, std=0.023)


def _dtype(options: dict[str, Any]) -> torch.dtype | None:
    return options.get("params_dtype") or options.get("dtype")


class _Layer(nn.Module):
    """Base class of linear layers: parameters, norm, and the group that the weights are sharded over.

    Args:
        options: keyword arguments that all layers take.
    """

    layer_norm_weight: Tensor
    layer_norm_bias: Tensor | None

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.tp_group: dist.ProcessGroup | None = options.get("tp_group")
        self.tp_size = dist.get_world_size(self.tp_group) if self.tp_group is not None else options.get("tp_size", 1)
        self.sequence_parallel = bool(options.get("sequence_parallel", False)) and self.tp_size > 1
        self.options = options

    def set_tensor_parallel_group(self, tp_group: dist.ProcessGroup) -> None:
        """Set the group that the weights are sharded over; its size is the ``tp_size`` of the constructor."""
        self.tp_group = tp_group

    def _parameter(self, name: str, *shape: int, fill: float | None = None) -> None:
        """Register a parameter, filled with a constant if given, else initialized as a weight."""
        tensor = torch.empty(shape, device=self.options.get("device", "cuda"), dtype=_dtype(self.options))
        parameter = nn.Parameter(tensor)
        self.register_parameter(name, parameter)
        with torch.no_grad():
            if fill is not None:
                nn.init.constant_(parameter, fill)
            else:
                (self.options.get("init_method") or initialize_weight)(parameter)

    def _bias(self, name: str, size: int) -> None:
        """Register a bias; None for a layer without biases."""
        if self.options.get("bias", True):
            self._parameter(name, size, fill=0.0)
        else:
            self.register_parameter(name, None)

    def _norm(self, width: int) -> None:
        """Register the parameters of the layer's norm."""
        self._parameter("layer_norm_weight", width, fill=1.0)
        if self.options.get("normalization", "LayerNorm") == "LayerNorm":
            self._parameter("layer_norm_bias", width, fill=0.0)
        else:
            self.register_parameter("layer_norm_bias", None)

    def _apply_norm(self, x: Tensor, eps: float) -> Tensor:
        if self.options.get("normalization", "LayerNorm") == "LayerNorm":
            return layer_norm(x, self.layer_norm_weight, self.layer_norm_bias, eps)
        return rms_norm(x, self.layer_norm_weight, eps)


class Linear(_Layer):
    """A linear layer; with ``parallel_mode="column"`` or ``"row"`` its weight is sharded over ``tp_group``.

    With ``return_bias`` the bias is returned and not added.
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        parallel_mode: str | None = None,
        return_bias: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.in_features, self.out_features = in_features, out_features
        self.parallel_mode, self.return_bias = parallel_mode, return_bias
        local_out = out_features // self.tp_size if parallel_mode == "column" else out_features
        local_in = in_features // self.tp_size if parallel_mode == "row" else in_features
        self._parameter("weight", local_out, local_in)
        self._bias("bias", local_out)

    def forward(self, inp: Tensor, is_first_microbatch: bool | None = None, **kernels: Any) -> Any:
        """Return the output; with ``return_bias`` also the bias."""
        bias = None if self.return_bias else self.bias
        out = parallel_linear(inp, self.weight, bias, self.parallel_mode, self.tp_group, self.sequence_parallel)
        return (out, self.bias) if self.return_bias else out


class LayerNormLinear(Linear):
    """A linear layer after a norm; ``normalization`` is ``"LayerNorm"`` or ``"RMSNorm"``."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        eps: float = 1e-5,
        *,
        return_layernorm_output: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(in_features, out_features, **options)
        self.eps, self.return_layernorm_output = eps, return_layernorm_output
        self._norm(in_features)

    def forward(self, inp: Tensor, is_first_microbatch: bool | None = None, **kernels: Any) -> Any:
        """Return the output, followed by the bias and the norm's output if the layer returns them."""
        normed = self._apply_norm(inp, self.eps)
        out = super().forward(normed)
        if not self.return_layernorm_output:
            return out
        return (*out, normed) if isinstance(out, tuple) else (out, normed)


class LayerNormMLP(_Layer):
    """A norm and two linear layers, whose weights are sharded with ``set_parallel_mode``.

    With a gated activation, such as ``"swiglu"``, the first layer has twice as many outputs.
    """

    fc1_weight: Tensor
    fc1_bias: Tensor | None
    fc2_weight: Tensor
    fc2_bias: Tensor | None

    def __init__(
        self,
        hidden_size: int,
        ffn_hidden_size: int,
        eps: float = 1e-5,
        *,
        activation: str = "gelu",
        return_bias: bool = False,
        return_layernorm_output: bool = False,
        set_parallel_mode: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.eps, self.activation, self.return_bias = eps, activation, return_bias
        self.return_layernorm_output, self.is_parallel = return_layernorm_output, set_parallel_mode
        width = ffn_hidden_size // (self.tp_size if set_parallel_mode else 1)
        self._norm(hidden_size)
        first = 2 * width if activation in _GATES else width
        self._parameter("fc1_weight", first, hidden_size)
        self._bias("fc1_bias", first)
        self._parameter("fc2_weight", hidden_size, width)
        self._bias("fc2_bias", hidden_size)

    def forward(self, inp: Tensor, is_first_microbatch: bool | None = None, **kernels: Any) -> Any:
        """Return the output, followed by the bias and the norm's output if the layer returns them."""
        normed = self._apply_norm(inp, self.eps)
        column, row = ("column", "row") if self.is_parallel else (None, None)
        sharding = (self.tp_group, self.sequence_parallel)
        inner = self._activate(parallel_linear(normed, self.fc1_weight, self.fc1_bias, column, *sharding))
        bias = None if self.return_bias else self.fc2_bias
        results: list[Tensor | None] = [parallel_linear(inner, self.fc2_weight, bias, row, *sharding)]
        if self.return_bias:
            results.append(self.fc2_bias)
        if self.return_layernorm_output:
            results.append(normed)
        return tuple(results) if len(results) > 1 else results[0]

    def _activate(self, x: Tensor) -> Tensor:
        if self.activation not in _GATES:
            return _ACTIVATIONS[self.activation](x)
        gate, up = x.chunk(2, -1)
        return _GATES[self.activation](gate) * up


class DotProductAttention(nn.Module):
    """Attention of tensors (sequence, batch, heads, width) or, with ``"bshd"``, (batch, sequence, heads, width).

    With a causal ``attn_mask_type`` the first query is at the first key; if its name ends in "bottom_right", the last
    query is at the last key. With other mask types every query sees all keys.
    """

    def __init__(
        self,
        num_attention_heads: int,
        kv_channels: int | tuple[int, int],
        *,
        attention_dropout: float = 0.0,
        qkv_format: str = "sbhd",
        attn_mask_type: str = "causal",
        softmax_scale: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.attention_dropout, self.qkv_format = attention_dropout, qkv_format
        self.attn_mask_type, self.softmax_scale = attn_mask_type, softmax_scale

    def forward(
        self, query_layer: Tensor, key_layer: Tensor, value_layer: Tensor, *args: Any, **options: Any
    ) -> Tensor:
        """Return attention; heads and width are flattened into the last dim."""
        layout = options.get("qkv_format") or self.qkv_format
        mask_type = options.get("attn_mask_type") or self.attn_mask_type
        dropout = self.attention_dropout if self.training else 0.0
        is_batch_first = layout == "bshd"
        q, k, v = (x if is_batch_first else x.transpose(0, 1) for x in (query_layer, key_layer, value_layer))
        queries, keys = q.shape[1], k.shape[1]
        is_causal = "causal" in mask_type
        mask = None
        if is_causal and "causal_bottom_right" not in mask_type and queries != keys:
            is_causal, mask = False, torch.ones(1, 1, queries, keys, dtype=torch.bool, device=q.device).tril()
        out = attend(q, k, v, Form(scale=self.softmax_scale, causal=is_causal, dropout=dropout), mask)
        return (out if is_batch_first else out.transpose(0, 1)).flatten(-2)


class MultiheadAttention(nn.Module):
    """Multi-head self-attention, with a norm before it if ``input_layernorm``."""

    def __init__(
        self,
        hidden_size: int,
        num_attention_heads: int,
        kv_channels: int | None = None,
        attention_dropout: float = 0.1,
        layernorm_epsilon: float = 1e-5,
        *,
        num_gqa_groups: int | None = None,
        input_layernorm: bool = False,
        attn_mask_type: str = "causal",
        qkv_format: str = "sbhd",
        set_parallel_mode: bool = False,
        return_bias: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        self.width = kv_channels or hidden_size // num_attention_heads
        groups = num_gqa_groups or num_attention_heads
        column, row = ("column", "row") if set_parallel_mode else (None, None)
        qkv_width = self.width * (num_attention_heads + 2 * groups)
        self.ratio = num_attention_heads // groups
        if input_layernorm:
            self.layernorm_qkv = LayerNormLinear(
                hidden_size, qkv_width, layernorm_epsilon, parallel_mode=column, **options
            )
        else:
            self.qkv = Linear(hidden_size, qkv_width, parallel_mode=column, **options)
        self.core_attention = DotProductAttention(
            num_attention_heads,
            self.width,
            attention_dropout=attention_dropout,
            qkv_format=qkv_format,
            attn_mask_type=attn_mask_type,
        )
        out_width = self.width * num_attention_heads
        self.proj = Linear(out_width, hidden_size, parallel_mode=row, return_bias=return_bias, **options)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **options: Any) -> Any:
        """Return the layer's output."""
        project = self.layernorm_qkv if hasattr(self, "layernorm_qkv") else self.qkv
        heads = project(hidden_states).unflatten(-1, (-1, self.ratio + 2, self.width))
        query, key, value = heads.split((self.ratio, 1, 1), -2)
        out = self.core_attention(query.flatten(-3, -2), key.squeeze(-2), value.squeeze(-2))
        return self.proj(out)


class TransformerLayer(nn.Module):
    """A decoder layer: attention and an MLP, each with a norm before it and a residual connection."""

    def __init__(
        self,
        hidden_size: int,
        ffn_hidden_size: int,
        num_attention_heads: int,
        num_gqa_groups: int | None = None,
        layernorm_epsilon: float = 1e-5,
        hidden_dropout: float = 0.1,
        attention_dropout: float = 0.1,
        *,
        kv_channels: int | None = None,
        self_attn_mask_type: str = "causal",
        attn_input_format: str = "sbhd",
        activation: str = "gelu",
        **options: Any,
    ) -> None:
        super().__init__()
        self.hidden_dropout = hidden_dropout
        self.self_attention = MultiheadAttention(
            hidden_size,
            num_attention_heads,
            kv_channels,
            attention_dropout=attention_dropout,
            layernorm_epsilon=layernorm_epsilon,
            num_gqa_groups=num_gqa_groups,
            input_layernorm=True,
            attn_mask_type=self_attn_mask_type,
            qkv_format=attn_input_format,
            **options,
        )
        self.layernorm_mlp = LayerNormMLP(
            hidden_size, ffn_hidden_size, layernorm_epsilon, activation=activation, **options
        )

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **options: Any) -> Tensor:
        """Return the layer's output."""
        attended = self.self_attention(hidden_states, attention_mask)
        hidden_states = hidden_states + functional.dropout(attended, self.hidden_dropout, self.training)
        out: Tensor = functional.dropout(self.layernorm_mlp(hidden_states), self.hidden_dropout, self.training)
        return hidden_states + out
