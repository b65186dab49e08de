"""`check_call`: errors of gloo and NCCL for reductions, dtypes, layouts and shapes that they do not support.

Each error has torch's class, and torch's message if that says what is wrong. The rules of gloo were measured with
torch 2.9, 2.13 and 2.15; ``test_refusals.py`` compares them with real ranks. The rules of NCCL are those of
``torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from dsexplore._internal.torch_internals.process_groups import reduce_op_name

GLOO, NCCL = "gloo", "nccl"
_BITWISE = ("BAND", "BOR", "BXOR")
_COMPLEX_REDUCTIONS = ("SUM", "AVG", "PREMUL_SUM")
"""Reductions that torch supports for complex numbers."""
_MESSAGES = ("send", "recv_", "recv_any_source_")
_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_DTYPES = {*_FLOATS, torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool, torch.complex64, torch.complex128}
"""Dtypes for which both backends support every collective; gloo gathers no complex numbers."""
_FLOAT8 = {dtype for name, dtype in vars(torch).items() if name.startswith("float8") and isinstance(dtype, torch.dtype)}
_CPP_NAMES = {
    torch.int8: "Char",
    torch.uint8: "Byte",
    torch.int16: "Short",
    torch.int32: "Int",
    torch.int64: "Long",
    torch.bool: "Bool",
}


def check_call(backend: str, op: str, arguments: Mapping[str, Any], size: int) -> None:
    """Check that a backend supports a call of a c10d op.

    Args:
        backend: backend of the group; those other than `GLOO` and `NCCL` accept everything.
        op: name of the op, ``"allreduce_"``.
        arguments: arguments of the op, by name.
        size: number of ranks of the group.

    Raises:
        RuntimeError, TypeError, ValueError: the backend does not support the call; the class is torch's.
    """
    if backend == GLOO:
        _check_gloo(op, arguments, size)
    elif backend in (NCCL, "cuda:nccl"):
        _check_nccl(op, arguments, size)
    if op == "alltoall_base_" and backend in (GLOO, NCCL, "cuda:nccl"):
        _check_splits(arguments["input"], arguments["input_split_sizes"], size)
        _check_splits(arguments["output"], arguments["output_split_sizes"], size)


def _check_splits(tensor: torch.Tensor, splits: Sequence[int], size: int) -> None:
    """Raise torch's error if the split sizes do not divide a tensor's first dim among the ranks; empty ones may."""
    if splits and len(splits) != size:
        raise RuntimeError("Number of tensor splits not equal to group size")
    if splits and sum(splits) != tensor.shape[0]:
        raise RuntimeError("Split sizes doesn't match total dim 0 size")


def _check_gloo(op: str, arguments: Mapping[str, Any], size: int) -> None:
    """Raise an error if gloo does not support a call."""
    reduction = _reduction(arguments)
    for tensor in _tensors(arguments.values()):
        if tensor.is_sparse:
            if reduction not in ("SUM", ""):
                raise RuntimeError(
                    "ProcessGroupGloo::allreduce: unsupported reduction operation (allreduce of sparse tensors only "
                    "works with ReduceOp.SUM)"
                )
            continue
        if op in _MESSAGES:
            if not tensor.is_contiguous():
                raise RuntimeError("input tensor has to be contiguous")
        elif op == "alltoall_base_" and not tensor.is_contiguous():
            raise ValueError("Tensors must be contiguous")
        elif tensor.dtype not in _DTYPES or (op == "gather_" and tensor.is_complex()):
            raise RuntimeError(f"Invalid scalar type: gloo has no {op.strip('_')} of {tensor.dtype}")
        if reduction:
            _check_gloo_reduction(op, reduction, tensor)
    try:
        _check_root_and_lists("ProcessGroupGloo", op, arguments, size)
    except ValueError as error:  # NCCL's class
        raise RuntimeError(str(error)) from None
    if op == "_allgather_base_":
        _check_whole(arguments["output_tensor"], arguments["input_tensor"], size)
    elif op == "_reduce_scatter_base_":
        _check_reduced(arguments["input_tensor"], arguments["output_tensor"], size)
    elif op == "alltoall_base_":
        has_splits = arguments["input_split_sizes"] or arguments["output_split_sizes"]
        if not has_splits and arguments["input"].numel() != arguments["output"].numel():
            raise RuntimeError("all_to_all_single: gloo enforces in->size == out->size for a call without splits")


def _check_gloo_reduction(op: str, reduction: str, tensor: torch.Tensor) -> None:
    if reduction == "PREMUL_SUM":
        raise RuntimeError("Cannot use ReduceOp.PREMUL_SUM with Gloo")
    _check_complex(op, reduction, tensor)
    if reduction in _BITWISE and tensor.is_floating_point():
        raise RuntimeError(f"Cannot use ReduceOp.{reduction} with non-integral dtype")
    if reduction == "AVG" and not tensor.is_floating_point() and not tensor.is_complex():
        raise RuntimeError(f"result type Float can't be cast to the desired output type {_cpp_name(tensor.dtype)}")


_WHOLE_AND_PART = {  # op: argument with a part for each rank, argument with this rank's part
    "allgather_": ("output_tensors", "input_tensors"),
    "gather_": ("output_tensors", "input_tensors"),
    "scatter_": ("input_tensors", "output_tensors"),
    "reduce_scatter_": ("input_tensors", "output_tensors"),
}


def _check_root_and_lists(backend: str, op: str, arguments: Mapping[str, Any], size: int) -> None:
    """Check that the root exists, and that there is a part for each rank, all of one shape.

    Args:
        backend: class name of the backend, with which torch's messages begin.
        op: name of the op, ``"scatter_"``.
        arguments: arguments of the op, by name.
        size: number of ranks of the group.

    Raises:
        ValueError: the root does not exist, or a part is missing or has another shape.
    """
    name = op.strip("_")
    root = arguments.get("root_rank", 0)
    if not 0 <= root < size:
        raise ValueError(f"{backend}::{name}: invalid root rank: {root}")
    if op not in _WHOLE_AND_PART:
        return
    whole, part_name = _WHOLE_AND_PART[op]
    for parts, part in zip(arguments[whole], arguments[part_name], strict=False):
        if len(parts) != size:
            raise ValueError(f"{backend}::{name}: {_wrong_length(name, whole.partition('_')[0], len(parts), size)}")
        for index, tensor in enumerate(parts):
            if tensor.shape != part.shape:
                note = "" if op in ("gather_", "scatter_") else ": gloo requires parts of one shape, NCCL does not"
                raise ValueError(
                    f"{backend}::{name}: invalid tensor size at index {index} (expected {_sizes(part)}, got "
                    f"{_sizes(tensor)}){note}"
                )


def _wrong_length(name: str, side: str, length: int, size: int) -> str:
    if name == "allgather":
        return f"invalid output tensor list at index 0 (expected length {size}, got {length})"
    should = f"{side.capitalize()} list size should be {size}, same as size of the process group."
    return f"Incorrect {side} list size {length}. {should}"


def _check_whole(whole: torch.Tensor, part: torch.Tensor, size: int) -> None:
    """Raise gloo's error unless `whole` has the shape of all parts concatenated along the first dim."""
    if whole.dtype != part.dtype:
        raise RuntimeError(
            f"ProcessGroupGloo::allgather: invalid tensor type at index 0 (expected {part.dtype}, got {whole.dtype})"
        )
    if part.dim() == 0 or whole.shape != (size * part.shape[0], *part.shape[1:]):
        raise RuntimeError(
            f"all_gather_into_tensor: gloo concatenates {size} parts of shape {tuple(part.shape)} along the first dim, "
            f"and the output has the shape {tuple(whole.shape)}; NCCL accepts any shape with as many elements"
        )


def _check_reduced(whole: torch.Tensor, part: torch.Tensor, size: int) -> None:
    """Raise an error unless `whole` consists of one part for each rank; in that case, gloo ends the process."""
    if whole.dtype != part.dtype:
        raise RuntimeError(
            f"reduce_scatter_tensor: gloo ends the process if the output is {part.dtype} and the input {whole.dtype}"
        )
    if part.dim() == 0 or whole.dim() == 0 or whole.shape[0] != size * part.shape[0]:
        raise RuntimeError(
            f"reduce_scatter_tensor: gloo ends the process unless the first dim of the input, {tuple(whole.shape)}, is "
            f"{size} times that of the output, {tuple(part.shape)}"
        )


def _sizes(tensor: torch.Tensor) -> str:
    return f"({', '.join(map(str, tensor.shape))})"


def _check_nccl(op: str, arguments: Mapping[str, Any], size: int) -> None:
    """Raise an error if NCCL does not support a call."""
    reduction = _reduction(arguments)
    for tensor in _tensors(arguments.values()):
        if tensor.is_sparse:
            raise RuntimeError(
                "NCCL does not support all_reduce with sparse tensors. Please use dense tensors instead."
            )
        if tensor.dtype not in _DTYPES and tensor.dtype not in _FLOAT8:
            raise TypeError(
                f"Input tensor data type is not supported for NCCL process group: {_cpp_name(tensor.dtype)}"
            )
        if reduction:
            _check_nccl_reduction(op, reduction, tensor)
    if op in _MESSAGES:
        return
    if op in ("gather_", "scatter_"):
        _check_root_and_lists("ProcessGroupNCCL", op, arguments, size)
    elif op == "_allgather_base_" and arguments["output_tensor"].dtype != arguments["input_tensor"].dtype:
        raise TypeError("output tensor must have the same type as input tensor")
    elif op == "_reduce_scatter_base_" and arguments["output_tensor"].dtype != arguments["input_tensor"].dtype:
        raise TypeError("input tensor must be the same type as the output tensor.")
    # Lists of outputs may have any layout: NCCL gathers into its own memory, and copies.
    for tensor in _tensors(value for value in arguments.values() if not _is_list_of_lists(value)):
        if not _is_dense(tensor):
            raise ValueError("Tensors must be contiguous")


def _check_nccl_reduction(op: str, reduction: str, tensor: torch.Tensor) -> None:
    if reduction in _BITWISE:
        raise ValueError(f"Cannot use ReduceOp.{reduction} with NCCL")
    _check_complex(op, reduction, tensor)
    if reduction == "AVG" and tensor.dtype == torch.bool:
        raise TypeError("Cannot use ReduceOp.AVG with boolean inputs")
    if reduction == "PREMUL_SUM" and tensor.dtype not in _FLOATS:
        raise TypeError("PreMulSum Data type must be half, float, bfloat16 or double")


def _check_complex(op: str, reduction: str, tensor: torch.Tensor) -> None:
    if tensor.is_complex() and reduction not in _COMPLEX_REDUCTIONS:
        raise RuntimeError(f"{op.strip('_')} does not support ReduceOp.{reduction} on complex tensors")


def _reduction(arguments: Mapping[str, Any]) -> str:
    """Return the name of a call's reduction; empty if it has none, or torch does not expose it."""
    return reduce_op_name(arguments["reduce_op"]) if "reduce_op" in arguments else ""


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _is_list_of_lists(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and isinstance(value[0], (list, tuple))


def _is_dense(tensor: torch.Tensor) -> bool:
    """Return True if a tensor is dense, contiguous or in channels-last format."""
    if tensor.is_contiguous():
        return True
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return tensor.dim() in formats and tensor.is_contiguous(memory_format=formats[tensor.dim()])


def _cpp_name(dtype: torch.dtype) -> str:
    return _CPP_NAMES.get(dtype, str(dtype).removeprefix("torch."))
