"""Stand-ins for ``bitsandbytes.nn`` and ``bitsandbytes.functional``: weights quantized by blocks to 4 and 8 bits.

Quantized weights have the same shapes and dtypes as with the kernels, so that as many bytes are sent. Inputs are not
quantized: products are computed in their dtype.
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
    """The data that dequantize a tensor.

    Attributes:
        absmax: largest absolute value of each block, fp32.
        shape: shape of the tensor.
        code: the values that codes stand for.
        blocksize: number of elements of a block.
        quant_type: ``"nf4"``, ``"fp4"`` or ``"dynamic"``.
        dtype: data type of the tensor.
        offset: mean of ``absmax`` in nested quantization; unused here.
        state2: state of ``absmax`` in nested quantization; unused here.
    """

    absmax: Tensor
    shape: Any = None
    code: Any = None
    blocksize: Any = None
    quant_type: str | None = None
    dtype: torch.dtype | None = None
    offset: Tensor | None = None
    state2: QuantState | None = None


def create_dynamic_map(signed: bool = True, max_exponent_bits: int = 7, total_bits: int = 8) -> Tensor:
    """Return the 256 values of the dynamic 8-bit type: seven decades, the higher the finer."""
    values = [0.0, 1.0]
    for exponent in range(7):
        count = 2 ** (exponent + (not signed))
        decade = [(0.1 + 0.9 * (index + 0.5) / count) * 10.0 ** (exponent - 6) for index in range(count)]
        values += [*decade, *(-value for value in decade)] if signed else decade
    return torch.tensor(sorted(values))


def _normalize_blocks(values: Tensor, blocksize: int) -> tuple[Tensor, Tensor]:
    """Return the values divided by the largest absolute value of their block, flat, and these largest values."""
    blocks = pad(values.flatten().float(), (0, -values.numel() % blocksize)).view(-1, blocksize)
    absmax = blocks.abs().amax(1)
    scaled = blocks / absmax.clamp(min=torch.finfo(torch.float32).tiny).unsqueeze(1)
    return scaled.flatten()[: values.numel()], absmax


def _nearest(scaled: Tensor, code: Tensor) -> Tensor:
    """Return the index of the nearest code of each value, uint8."""
    ordered, order = code.sort(stable=True)
    middles = (ordered[1:] + ordered[:-1]) / 2
    return order.to(torch.uint8)[torch.bucketize(scaled, middles, out_int32=True)]


def _dequantize(indices: Tensor, state: QuantState) -> Tensor:
    """Return the tensor of which these are the flat indices of codes."""
    factors = state.absmax.repeat_interleave(state.blocksize)[: indices.numel()]
    values: Tensor = (state.code[indices.int()] * factors).view(state.shape).to(state.dtype)
    return values


def quantize_blockwise(
    A: Tensor,
    code: Tensor | None = None,
    absmax: Tensor | None = None,
    out: Tensor | None = None,
    blocksize: int = 4096,
    nested: bool = False,
) -> tuple[Tensor, QuantState]:
    """Quantize a tensor to 8 bits: return the indices of codes, of the tensor's shape, and the state to dequantize."""
    code = (create_dynamic_map() if code is None else code).to(A.device)
    scaled, largest = _normalize_blocks(A, blocksize)
    state = QuantState(
        absmax=largest, shape=A.shape, code=code, blocksize=blocksize, quant_type="dynamic", dtype=A.dtype
    )
    return _nearest(scaled, code).view(A.shape), state


def dequantize_blockwise(A: Tensor, quant_state: QuantState | None = None, *more: Any, **options: Any) -> Tensor:
    """Dequantize a tensor that `quantize_blockwise` has quantized.

    Raises:
        NotImplementedError: there is no ``quant_state``.
    """
    return _dequantize(A.flatten(), _required(quant_state))


def _required(state: QuantState | None) -> QuantState:
    """Return the state.

    Raises:
        NotImplementedError: it is None.
    """
    if state is None:
        raise NotImplementedError("quant_state=None: only the state can dequantize a tensor here; give it")
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
    """Quantize a tensor to 4 bits: return two codes per byte, shape (bytes, 1), and the state to dequantize.

    The bytes are viewed as ``quant_storage``. ``compress_statistics`` has no effect: the largest values of blocks stay
    in fp32.
    """
    blocksize = blocksize or 64
    code = torch.tensor(_CODES[quant_type], device=A.device)
    scaled, largest = _normalize_blocks(A, blocksize)
    pairs = pad(_nearest(scaled, code), (0, A.numel() % 2)).view(-1, 2)
    packed = (pairs[:, 0] * 16 + pairs[:, 1]).view(quant_storage).unsqueeze(1)
    state = QuantState(
        absmax=largest, shape=A.shape, code=code, blocksize=blocksize, quant_type=quant_type, dtype=A.dtype
    )
    return packed, state


def dequantize_4bit(A: Tensor, quant_state: QuantState | None = None, *more: Any, **options: Any) -> Tensor:
    """Dequantize a tensor that `quantize_4bit` has quantized; a transposed one gives the transposed tensor.

    Raises:
        NotImplementedError: there is no ``quant_state``.
    """
    quant_state = _required(quant_state)
    packed = A.flatten().view(torch.uint8)
    indices = torch.stack((packed // 16, packed % 16), 1).flatten()[: quant_state.shape.numel()]
    values = _dequantize(indices, quant_state)
    return values.T if A.shape[0] == 1 else values


def matmul_4bit(
    A: Tensor, B: Tensor, quant_state: QuantState, out: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """Return ``A`` times a matrix that `quantize_4bit` has quantized, plus the bias."""
    return linear(A, dequantize_4bit(B, quant_state).to(A.dtype).T, bias)


def int8_vectorwise_quant(A: Tensor, threshold: float = 0.0) -> tuple[Tensor, Tensor, None]:
    """Quantize rows to int8: return them, the largest absolute value of each row, and None for outlier columns."""
    largest = A.float().abs().amax(-1)
    scaled = A.float() / largest.clamp(min=torch.finfo(torch.float32).tiny).unsqueeze(-1)
    return (scaled * _LARGEST_INT8).round().to(torch.int8), largest, None


def int8_vectorwise_dequant(A: Tensor, stats: Tensor) -> Tensor:
    """Dequantize rows that `int8_vectorwise_quant` has quantized."""
    return A * stats.unsqueeze(-1) / _LARGEST_INT8


class Params4bit(nn.Parameter):
    """A weight that `Linear4bit` quantizes when it is moved to a GPU."""

    quant_state: QuantState | None

    def __new__(
        cls, data: Tensor | None = None, requires_grad: bool = False, quant_state: Any = None, **options: Any
    ) -> Params4bit:
        """Create the parameter."""
        weight = super().__new__(cls, torch.empty(0) if data is None else data, requires_grad)
        weight.quant_state = quant_state
        return weight


class Int8Params(nn.Parameter):
    """A weight that `Linear8bitLt` quantizes when it is moved to a GPU."""

    def __new__(cls, data: Tensor | None = None, requires_grad: bool = True, **options: Any) -> Int8Params:
        """Create the parameter."""
        return super().__new__(cls, torch.empty(0) if data is None else data, requires_grad)


class _Quantized(nn.Linear):
    """Base class of linear layers that quantize their weight when they are first moved to a GPU."""

    is_quantized = False

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Any:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.weight.device.type == "cuda" and not self.is_quantized and self._quantizes():
            self.is_quantized = True
            with torch.no_grad():
                self.weight.requires_grad_(False).data = self._quantize(self.weight.data)
        return self

    def _quantizes(self) -> bool:
        """Return True if the weight is quantized on a GPU."""
        return True

    def _quantize(self, weight: Tensor) -> Tensor:
        """Return the quantized weight, and keep what dequantizes it."""
        raise NotImplementedError


class Linear4bit(_Quantized):
    """A linear layer whose frozen weight has 4 bits per value on a GPU, stored and sent as ``quant_storage``."""

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
            input_features,
            output_features,
            bias,
            compute_dtype,
            compress_statistics,
            quant_type=self._type,
            quant_storage=quant_storage,
            device=device,
        )


class LinearNF4(LinearFP4):
    """A linear layer of 4-bit values at the quantiles of a normal distribution."""

    _type = "nf4"


class Linear8bitLt(_Quantized):
    """A linear layer whose weight has 8 bits per value on a GPU, or stays trainable with ``has_fp16_weights``."""

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
    """An embedding that is initialized with Xavier's uniform distribution."""

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
            num_embeddings,
            embedding_dim,
            padding_idx,
            max_norm,
            norm_type,
            scale_grad_by_freq,
            sparse,
            _weight,
            device=device,
            dtype=dtype,
        )

    def reset_parameters(self) -> None:
        """Initialize the weight."""
        nn.init.xavier_uniform_(self.weight)
        if self.padding_idx is not None:
            with torch.no_grad():
                self.weight[self.padding_idx].fill_(0)


class StableEmbedding(Embedding):
    """An embedding followed by a layer norm, ``norm``."""

    def __init__(self, num_embeddings: int, embedding_dim: int, *more: Any, **options: Any) -> None:
        super().__init__(num_embeddings, embedding_dim, *more, **options)
        self.norm = nn.LayerNorm(embedding_dim, device=options.get("device"))

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 # as torch's
        """Return the layer norm of the embeddings."""
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
