"""Stand-ins for ``bitsandbytes.nn`` and ``bitsandbytes.functional``: weights in 4 and 8 bits, in blocks.

Weights have the shapes and dtypes of the kernels', so that what is sent of them is as large. Products are computed in
the dtype of the input, which is not quantized.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from dsexplore._internal.worlds.extensions.registry import Names

_NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634),
    *(0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
_FP4_POSITIVE = (0.0, 0.0625 / 12, 8 / 12, 1.0, 4 / 12, 6 / 12, 2 / 12, 3 / 12)
_CODES = {"nf4": _NF4, "fp4": (*_FP4_POSITIVE, *(-value for value in _FP4_POSITIVE))}
_LARGEST_INT8 = 127


@dataclass
class QuantState:
    """What undoes a quantization: the largest of each block, and the values of the codes."""

    absmax: Tensor
    shape: Any = None
    code: Any = None
    blocksize: Any = None
    quant_type: str | None = None
    dtype: torch.dtype | None = None
    offset: Tensor | None = None
    state2: QuantState | None = None


def create_dynamic_map(signed: bool = True, max_exponent_bits: int = 7, total_bits: int = 8) -> Tensor:
    """Return the 256 values of the dynamic 8-bit type: decades, the higher the finer."""
    values = [0.0, 1.0]
    for exponent in range(7):
        bounds = torch.linspace(0.1, 1, 2 ** (exponent + (not signed)) + 1)
        decade = ((bounds[:-1] + bounds[1:]) / 2 * 10.0 ** (exponent - 6)).tolist()
        values += [*decade, *(-value for value in decade)] if signed else decade
    return torch.tensor(sorted(values))


def _normalize_blocks(values: Tensor, blocksize: int) -> tuple[Tensor, Tensor]:
    """Return the values, each divided by the largest of its block, and these."""
    blocks = pad(values.flatten().float(), (0, -values.numel() % blocksize)).view(-1, blocksize)
    absmax = blocks.abs().amax(1)
    scaled = blocks / absmax.clamp(min=torch.finfo(torch.float32).tiny).unsqueeze(1)
    return scaled.flatten()[: values.numel()], absmax


def _nearest(scaled: Tensor, code: Tensor) -> Tensor:
    """Return the number of the code next to each value."""
    ordered, order = code.sort(stable=True)
    return order[torch.bucketize(scaled, (ordered[1:] + ordered[:-1]) / 2)].to(torch.uint8)


def _dequantize(numbers: Tensor, state: QuantState) -> Tensor:
    factors = state.absmax.repeat_interleave(state.blocksize)[: numbers.numel()]
    values: Tensor = (state.code[numbers.long()] * factors).view(state.shape).to(state.dtype)
    return values


def quantize_blockwise(
    A: Tensor,
    code: Tensor | None = None,
    absmax: Tensor | None = None,
    out: Tensor | None = None,
    blocksize: int = 4096,
    nested: bool = False,
) -> tuple[Tensor, QuantState]:
    """Return the numbers of codes in 8 bits, of the shape of the tensor, and what undoes it."""
    code = (create_dynamic_map() if code is None else code).to(A.device)
    scaled, largest = _normalize_blocks(A, blocksize)
    state = QuantState(largest, A.shape, code, blocksize, "dynamic", A.dtype)
    return _nearest(scaled, code).view(A.shape), state


def dequantize_blockwise(A: Tensor, quant_state: QuantState | None = None, *more: Any, **options: Any) -> Tensor:
    """Return the values of what `quantize_blockwise` returned.

    Raises:
        NotImplementedError: there is no ``quant_state``.
    """
    return _dequantize(A.flatten(), _given(quant_state))


def _given(state: QuantState | None) -> QuantState:
    if state is None:
        raise NotImplementedError("quant_state=None: values are found by the state alone here; give it")
    return state


def quantize_4bit(
    A: Tensor,
    absmax: Tensor | None = None,
    out: Tensor | None = None,
    blocksize: int | None = None,
    compress_statistics: bool = False,
    quant_type: str = "fp4",
    quant_storage: torch.dtype = torch.uint8,
) -> tuple[Tensor, QuantState]:
    """Return two codes a byte, ``(bytes, 1)`` in ``quant_storage``, and what undoes it.

    ``compress_statistics`` changes nothing: the largest of each block stay in fp32.
    """
    blocksize = blocksize or 64
    code = torch.tensor(_CODES[quant_type], device=A.device)
    scaled, largest = _normalize_blocks(A, blocksize)
    pairs = pad(_nearest(scaled, code), (0, A.numel() % 2)).view(-1, 2)
    packed = (pairs[:, 0] * 16 + pairs[:, 1]).view(quant_storage).unsqueeze(1)
    return packed, QuantState(largest, A.shape, code, blocksize, quant_type, A.dtype)


def dequantize_4bit(A: Tensor, quant_state: QuantState | None = None, *more: Any, **options: Any) -> Tensor:
    """Return the values of what `quantize_4bit` returned; transposed if that is.

    Raises:
        NotImplementedError: there is no ``quant_state``.
    """
    quant_state = _given(quant_state)
    packed = A.flatten().view(torch.uint8)
    numbers = torch.stack((packed // 16, packed % 16), 1).flatten()[: quant_state.shape.numel()]
    values = _dequantize(numbers, quant_state)
    return values.T if A.shape[0] == 1 else values


def matmul_4bit(
    A: Tensor, B: Tensor, quant_state: QuantState, out: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """Return the product with a quantized matrix."""
    return linear(A, dequantize_4bit(B, quant_state).to(A.dtype).T, bias)


def int8_vectorwise_quant(A: Tensor, threshold: float = 0.0) -> tuple[Tensor, Tensor, None]:
    """Return rows in 8 bits, and the largest of each."""
    largest = A.float().abs().amax(-1)
    scaled = A.float() / largest.clamp(min=torch.finfo(torch.float32).tiny).unsqueeze(-1)
    return (scaled * _LARGEST_INT8).round().to(torch.int8), largest, None


def int8_vectorwise_dequant(A: Tensor, stats: Tensor) -> Tensor:
    """Return the values of rows in 8 bits."""
    return A * stats.unsqueeze(-1) / _LARGEST_INT8


class Params4bit(nn.Parameter):
    """A weight that `Linear4bit` quantizes when it is moved to a GPU."""

    quant_state: QuantState | None

    def __new__(
        cls, data: Tensor | None = None, requires_grad: bool = False, quant_state: Any = None, **options: Any
    ) -> Params4bit:
        """Return the weight."""
        weight = super().__new__(cls, torch.empty(0) if data is None else data, requires_grad)
        weight.quant_state = quant_state
        return weight


class Int8Params(nn.Parameter):
    """A weight that `Linear8bitLt` quantizes when it is moved to a GPU."""

    def __new__(cls, data: Tensor | None = None, requires_grad: bool = True, **options: Any) -> Int8Params:
        """Return the weight."""
        return super().__new__(cls, torch.empty(0) if data is None else data, requires_grad)


class _Quantized(nn.Linear):
    """A linear layer that quantizes its weight when it is moved to a GPU, once."""

    is_quantized = False

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Any:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.weight.device.type == "cuda" and not self.is_quantized and self._quantizes():
            self.is_quantized = True
            with torch.no_grad():
                self.weight.requires_grad_(False).data = self._quantize(self.weight.data)
        return self

    def _quantizes(self) -> bool:
        return True

    def _quantize(self, weight: Tensor) -> Tensor:
        raise NotImplementedError


class Linear4bit(_Quantized):
    """A linear layer whose frozen weight has 4 bits a value on a GPU, kept and sent as ``quant_storage``."""

    def __init__(
        self,
        input_features: int,
        output_features: int,
        bias: bool = True,
        compute_dtype: torch.dtype | None = None,
        compress_statistics: bool = True,
        quant_type: str = "fp4",
        quant_storage: torch.dtype = torch.uint8,
        device: Any = None,
    ) -> None:
        super().__init__(input_features, output_features, bias, device)
        self.weight = Params4bit(self.weight.data)
        self.compute_dtype, self.quant_type, self.quant_storage = compute_dtype, quant_type, quant_storage
        self.quant_state: QuantState | None = None

    def _quantize(self, weight: Tensor) -> Tensor:
        packed, state = quantize_4bit(weight, quant_type=self.quant_type, quant_storage=self.quant_storage)
        self.quant_state = state
        return packed

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output, in the dtype of its input."""
        dtype = self.compute_dtype or x.dtype
        weight = self.weight if self.quant_state is None else dequantize_4bit(self.weight.data, self.quant_state)
        bias = None if self.bias is None else self.bias.to(dtype)
        return linear(x.to(dtype), weight.to(dtype), bias).to(x.dtype)


class LinearFP4(Linear4bit):
    """A linear layer of 4-bit floating-point values."""

    _type = "fp4"

    def __init__(
        self,
        input_features: int,
        output_features: int,
        bias: bool = True,
        compute_dtype: torch.dtype | None = None,
        compress_statistics: bool = True,
        quant_storage: torch.dtype = torch.uint8,
        device: Any = None,
    ) -> None:
        super().__init__(
            *(input_features, output_features, bias, compute_dtype, compress_statistics),
            *(self._type, quant_storage, device),
        )


class LinearNF4(LinearFP4):
    """A linear layer of 4-bit values at the quantiles of a normal distribution."""

    _type = "nf4"


class Linear8bitLt(_Quantized):
    """A linear layer whose weight has 8 bits a value on a GPU; with ``has_fp16_weights`` it is trained in its dtype."""

    def __init__(
        self,
        input_features: int,
        output_features: int,
        bias: bool = True,
        has_fp16_weights: bool = True,
        threshold: float = 0.0,
        index: Any = None,
        device: Any = None,
    ) -> None:
        super().__init__(input_features, output_features, bias, device)
        self.has_fp16_weights = has_fp16_weights
        self.weight = Int8Params(self.weight.data, requires_grad=has_fp16_weights)

    def _quantizes(self) -> bool:
        return not self.has_fp16_weights

    def _quantize(self, weight: Tensor) -> Tensor:
        rows, self.largest_of_rows, _ = int8_vectorwise_quant(weight)
        return rows

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output, in the dtype of its input."""
        weight: Tensor = self.weight
        if self.is_quantized:
            weight = int8_vectorwise_dequant(weight.data, self.largest_of_rows)
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return linear(x, weight.to(x.dtype), bias)


class Embedding(nn.Embedding):
    """An embedding that begins as Xavier's uniform distribution."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: Tensor | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            *(num_embeddings, embedding_dim, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse, _weight),
            device=device,
            dtype=dtype,
        )

    def reset_parameters(self) -> None:
        """Set the weight to its beginning."""
        nn.init.xavier_uniform_(self.weight)
        if self.padding_idx is not None:
            with torch.no_grad():
                self.weight[self.padding_idx].fill_(0)


class StableEmbedding(Embedding):
    """An embedding with a layer norm, ``norm``."""

    def __init__(self, num_embeddings: int, embedding_dim: int, *more: Any, **options: Any) -> None:
        super().__init__(num_embeddings, embedding_dim, *more, **options)
        self.norm = nn.LayerNorm(embedding_dim, device=options.get("device"))

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 # as torch's
        """Return the normed rows."""
        out: Tensor = self.norm(super().forward(input).to(torch.get_default_dtype())).to(self.weight.dtype)
        return out


_LAYERS: Names = {
    kind.__name__: kind
    for kind in (Linear4bit, LinearFP4, LinearNF4, Linear8bitLt, Params4bit, Int8Params, Embedding, StableEmbedding)
}
_FUNCTIONS: Names = {
    function.__name__: function
    for function in (
        QuantState,
        create_dynamic_map,
        quantize_blockwise,
        dequantize_blockwise,
        quantize_4bit,
        dequantize_4bit,
        int8_vectorwise_quant,
        int8_vectorwise_dequant,
    )
}
NAMES: Names = {
    **{f"nn.{name}": kind for name, kind in _LAYERS.items()},
    **{f"nn.modules.{name}": kind for name, kind in _LAYERS.items()},
    **{f"functional.{name}": function for name, function in _FUNCTIONS.items()},
    "matmul_4bit": matmul_4bit,
}
