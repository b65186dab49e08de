"""The cost of one aten op: its FLOPs, and the bytes that it reads and writes.

FLOPs of products and convolutions come from torch's formulas (``torch.utils.flop_counter``). Attention has a formula
here, because causal attention computes half of the scores, and grouped queries have fewer heads of keys and values.
Bytes are those of the tensors that the op takes and returns, each once. A view costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Final, Literal, NamedTuple

import torch
from torch.utils.flop_counter import flop_registry

from dsexplore._internal.capture.collectives.ops import tensors_in
from dsexplore._internal.torch_internals.dispatch import OpOverload, schema_of
from dsexplore._internal.torch_internals.tensors import parts_of_sparse

Kind = Literal["matmul", "attention", "memory", "dispatch", "wait"]
"""``matmul``: a matrix product or convolution. ``attention``: a fused attention op. ``memory``: any other op, whose
time is that of its bytes. ``dispatch``: the dispatch of ops on DTensors, which takes CPU time and moves no bytes.
``wait``: the compute stream waits for a collective."""

FREE: Final = 0  # starts no kernel
COMMUNICATION: Final = 1
WAIT: Final = 2  # for a collective
PRODUCT: Final = 3  # a matrix product or convolution
ATTENTION: Final = 4
MEMORY: Final = 5  # any other op

_COMMUNICATION = {"c10d", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "_dtensor", "symm_mem"}
_NOTHING = {
    *("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "resize_", "set_"),
    *("_unsafe_view", "detach", "detach_", "alias", "lift_fresh", "lift", "_local_scalar_dense", "is_same_size"),
    *("sym_size", "sym_stride", "sym_numel", "sym_storage_offset", "_has_compatible_shallow_copy_type", "device"),
    *("record_stream", "_nested_tensor_size", "is_pinned", "_conj", "_neg_view", "equal", "_to_copy_meta"),
}
"""Ops that start no kernel worth counting: they allocate, read metadata, or return their argument."""
_ROWS_ONLY = {"embedding", "index_select", "gather", "index", "take_along_dim", "nll_loss_forward", "slice_backward"}
"""Ops that read as many bytes of their first argument as they return."""
_PRODUCTS = {
    *("mm", "addmm", "bmm", "baddbmm", "_grouped_mm"),
    *("_scaled_mm", "_scaled_mm_v2", "_scaled_grouped_mm", "_scaled_grouped_mm_v2"),
}
"""Matrix products, as opposed to convolutions."""


class OpCost(NamedTuple):
    """One op: what it computes and moves."""

    kind: Kind
    op: str
    """``"mm"``; for attention with the suffix ``", causal"`` if half of the scores are omitted."""
    dtype: str
    """``"bfloat16"``; ``"tf32"`` for products of float32 numbers that TF32 units multiply, see `multiplies_in_tf32`."""
    shape: tuple[int, ...] = ()
    """For a product: batch, m, n, k. For attention: batch, heads, queries, keys, head dim. Else empty."""
    flops: int = 0
    read: int = 0
    """Bytes."""
    written: int = 0
    """Bytes."""


class AtenOp(NamedTuple):
    """The facts about an op that do not depend on its arguments."""

    role: int
    """`FREE`, `COMMUNICATION`, `WAIT`, `PRODUCT`, `ATTENTION` or `MEMORY`."""
    name: str
    """The name without namespace and overload, ``"mm"``."""
    parameters: tuple[Any, ...] = ()
    """The arguments in its schema, with name, default value and alias annotations."""
    writes: bool = False
    """True if it writes into an argument."""


@cache
def read_op(func: Any) -> AtenOp:
    """Return the facts about an op: an ``OpOverload``, or a higher-order operator."""
    if not isinstance(func, OpOverload):
        name = str(func)
        return AtenOp(ATTENTION if "flex_attention" in name else MEMORY, name)
    schema, name = schema_of(func), func.overloadpacket.__name__
    role = _role(func, name, schema.returns)
    return AtenOp(role, name, parameters=tuple(schema.arguments), writes=schema.is_mutable)


def _role(func: OpOverload, name: str, returns: Sequence[Any]) -> int:
    """Return the role of an op, from its namespace, its name and the results in its schema."""
    if func.namespace in _COMMUNICATION:
        return WAIT if name == "wait_tensor" else COMMUNICATION
    if "attention" in name and func.namespace == "aten":
        return ATTENTION
    if func.overloadpacket in flop_registry or name in _PRODUCTS:
        return PRODUCT
    if name in _NOTHING or func.namespace in ("prim", "profiler") or _are_views(returns):
        return FREE
    return MEMORY


def _are_views(returns: Sequence[Any]) -> bool:
    """Return True if all results of an op alias arguments that it does not write."""
    return bool(returns) and all(result.alias_info is not None and not result.alias_info.is_write for result in returns)


def written_arguments(op: AtenOp, args: Sequence[Any], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Return the arguments that an op writes into."""
    if not op.writes:
        return []
    values = [
        args[place] if place < len(args) else kwargs.get(parameter.name)
        for place, parameter in enumerate(op.parameters)
        if parameter.alias_info is not None and parameter.alias_info.is_write
    ]
    return list(tensors_in(values))


def dense_tensors(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return tensors, with the indices and values of sparse ones in their place.

    Tensors in oneDNN's layout are omitted, as torch has no access to their memory.
    """
    dense: list[torch.Tensor] = []
    for tensor in tensors:
        dense += [tensor] if tensor.layout is torch.strided else parts_of_sparse(tensor)
    return dense


def moved_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes moved to read or write a tensor; each element of an expanded one counts once."""
    if tensor.layout is not torch.strided:
        return sum(map(moved_bytes, parts_of_sparse(tensor)))
    if tensor.is_nested:
        return tensor.numel() * tensor.element_size()
    strides = tensor.stride()
    if 0 not in strides:
        return tensor.numel() * tensor.element_size()
    size = 1
    for length, stride in zip(tensor.shape, strides, strict=True):
        size *= length if stride or length == 0 else 1
    return size * tensor.element_size()


def cost_of(
    func: Any,
    op: AtenOp,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    result: Any,
    sources: Sequence[torch.Tensor],
    returned: Sequence[torch.Tensor],
) -> OpCost:
    """Return FLOPs and bytes of one op that has run.

    Args:
        func: the op.
        op: the facts about it, from `read_op`.
        args: its positional arguments.
        kwargs: its keyword arguments.
        result: its result.
        sources: the tensors among its arguments.
        returned: the tensors in its result.
    """
    name = op.name
    into = written_arguments(op, args, kwargs)
    if op.role == ATTENTION:
        return _attention(op, args, kwargs, sources, returned)
    written = sum(map(moved_bytes, into or returned))
    if name in _ROWS_ONLY:
        read = written
    elif name.endswith("_like"):
        read = 0
    else:
        overwritten = {id(tensor) for tensor in into} if name in _OVERWRITING else set()
        read = sum(moved_bytes(tensor) for tensor in _distinct(sources) if id(tensor) not in overwritten)
    if name in _READ_TWICE:
        read *= 2
    if name in _SOFTMAX and len(returned) == 1:
        read += softmax_reads(name, returned[0]) * moved_bytes(returned[0])
    if op.role == PRODUCT and not _has_no_rows([*tensors_in(args), *returned]):
        matrices = _multiplied(name, args)
        shape, dtype = _product_shape(name, *matrices)
        alignment = alignment_of([*matrices, *returned]) if shape else 16
        full_name = name if alignment >= 16 else f"{name}, aligned to {alignment} bytes"
        flops = _flops(func, args, kwargs, result) * packed_numbers(matrices[0].dtype)
        return OpCost(kind="matmul", op=full_name, dtype=dtype, shape=shape, flops=flops, read=read, written=written)
    dtype = str((returned or sources)[0].dtype).removeprefix("torch.") if returned or sources else ""
    return OpCost(kind="memory", op=name, dtype=dtype, shape=(), flops=0, read=read, written=written)


def _has_no_rows(tensors: Iterable[torch.Tensor]) -> bool:
    """Return True if a tensor is sparse, nested or not strided; the time of such a product is that of its bytes."""
    return any(tensor.layout is not torch.strided or tensor.is_nested for tensor in tensors)


_READ_TWICE = {
    *("native_batch_norm", "cudnn_batch_norm", "_batch_norm_with_update", "_native_batch_norm_legit"),
    *("native_batch_norm_backward", "cudnn_batch_norm_backward", "batch_norm_backward"),
    *("native_layer_norm_backward", "native_group_norm_backward", "_fused_rms_norm_backward"),
}
"""Ops that read their arguments twice on a GPU, in two kernels. For batch norm, the first finds mean and variance. For
the backward of all norms, one of them sums the gradients of weight and bias
(``aten/src/ATen/native/cuda/Normalization.cuh``, ``layer_norm_kernel.cu``)."""
_SOFTMAX = {"_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data"}
_SHARED_MEMORY = 48 << 10
"""Bytes of the longest row that a softmax kernel keeps in a multiprocessor's shared memory."""


def softmax_reads(name: str, result: torch.Tensor) -> int:
    """Return how many more times than once a GPU reads a softmax's argument: none if a row fits in shared memory.

    For longer rows, forward reads it to find the maximum, the sum and the result. Backward reads it to find the sum of
    the gradients and the result (``aten/src/ATen/native/cuda/PersistentSoftmax.cuh`` and ``SoftMax.cu``).
    """
    row = result.shape[-1] * result.element_size() if result.dim() else 0
    if row <= _SHARED_MEMORY:
        return 0
    return 1 if "backward" in name else 2


def alignment_of(matrices: Iterable[torch.Tensor]) -> int:
    """Return the alignment in bytes, at most 16, of the rows of a product's matrices.

    Example: rows of 50,257 numbers of two bytes are aligned to two bytes.
    """
    alignment = 16
    for matrix in matrices:
        if matrix.dim() > 1:
            *_, outer, inner = matrix.stride()
            alignment = math.gcd(alignment, (outer if inner == 1 else inner) * matrix.element_size())
    return alignment


_OVERWRITING = {
    *("copy_", "fill_", "zero_", "split_with_sizes_copy", "chunk_cat", "_foreach_copy_", "normal_", "uniform_"),
}
"""Ops that write into an argument without reading it."""


def _distinct(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return list({id(tensor): tensor for tensor in tensors}.values())


def _flops(func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> int:
    """Return the FLOPs of a product by torch's formula."""
    formula = flop_registry.get(func.overloadpacket)
    if formula is None:  # a grouped product, which multiplies each row by one of the matrices
        return 2 * int(args[0].numel()) * int(args[1].shape[-1])
    flops: int = formula(*args, **kwargs, out_val=result)
    return flops


def _multiplied(name: str, args: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the two tensors that a product multiplies, without scales and addends."""
    left, right = args[1:3] if name in ("addmm", "baddbmm") else args[:2]
    return left, right


def _product_shape(name: str, left: torch.Tensor, right: torch.Tensor) -> tuple[tuple[int, ...], str]:
    """Return the shape (batch, m, n, k) of a product, empty for a convolution, and the dtype of its numbers."""
    is_convolution = name not in _PRODUCTS
    dtype = "tf32" if multiplies_in_tf32(left.dtype, is_convolution) else str(left.dtype).removeprefix("torch.")
    if is_convolution:
        return (), dtype
    batch = int(left.shape[0]) if left.dim() == 3 else 1
    return (batch, int(left.shape[-2]), int(right.shape[-1]), int(left.shape[-1]) * packed_numbers(left.dtype)), dtype


def packed_numbers(dtype: torch.dtype) -> int:
    """Return the count of numbers that one element holds: 2 for ``float4_e2m1fn_x2``, else 1."""
    return 2 if str(dtype).endswith("_x2") else 1


def multiplies_in_tf32(dtype: torch.dtype, is_convolution: bool) -> bool:
    """Return True if a CUDA GPU would multiply numbers of this dtype with its TF32 units.

    torch does so for convolutions by default, and for matrix products if
    ``torch.set_float32_matmul_precision("high")``, or the settings of ``torch.backends.cuda.matmul``, allow it.
    """
    if dtype != torch.float32:
        return False
    backends: Any = torch.backends  # torch's types lack `conv`
    backend = backends.cudnn.conv if is_convolution else backends.cuda.matmul
    return bool(backend.fp32_precision == "tf32")


def _attention(
    op: AtenOp,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    sources: Sequence[torch.Tensor],
    returned: Sequence[torch.Tensor],
) -> OpCost:
    """Return the cost of fused attention: two matrix products in forward, five in backward.

    Causal attention skips the part above the diagonal.
    """
    is_backward = "backward" in op.name
    query, key, value = sources[1:4] if is_backward else sources[:3]  # backward has the gradient first
    batch, heads, queries, width = (int(size) for size in query.shape)
    keys, value_width = int(key.shape[-2]), int(value.shape[-1])
    is_causal = bool(_argument(op, "is_causal", args, kwargs))
    pairs = causal_pairs(queries, keys) if is_causal else queries * keys
    products = batch * heads * pairs * 2
    flops = products * (3 * width + 2 * value_width) if is_backward else products * (width + value_width)
    return OpCost(
        kind="attention",
        op=op.name.removeprefix("_scaled_dot_product_") + (", causal" if is_causal else ""),
        dtype=str(query.dtype).removeprefix("torch."),
        shape=(batch, heads, queries, keys, width),
        flops=flops,
        read=sum(map(moved_bytes, _distinct(sources))),
        written=sum(map(moved_bytes, returned)),
    )


def causal_pairs(queries: int, keys: int) -> int:
    """Return the number of (query, key) pairs that causal attention computes: query i sees the keys 0 to i.

    Example: 3 queries and 2 keys give 1 + 2 + 2 = 5.
    """
    triangle = min(queries, keys)
    return triangle * (triangle + 1) // 2 + (queries - triangle) * keys


def _argument(op: AtenOp, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return the value of an op's argument by name, or its default; None if the op has no such argument."""
    if name in kwargs:
        return kwargs[name]
    for place, parameter in enumerate(op.parameters):
        if parameter.name == name:
            return args[place] if place < len(args) else parameter.default_value
    return None
