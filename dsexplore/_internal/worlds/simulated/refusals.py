"""Calls that gloo and NCCL refuse, though a simulated group could run them: reductions, dtypes, layouts and shapes.

Each raises the same class of error as torch, with torch's message if it says what is wrong. The rules of gloo were
measured with torch 2.9, 2.13 and 2.15; ``test_refusals.py`` compares them with real ranks. The rules of NCCL are those
of ``torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from dsexplore._internal.torch_internals.process_groups import reduce_op_name

GLOO, NCCL = "gloo", "nccl"
_BITWISE = ("BAND", "BOR", "BXOR")
_OF_COMPLEX = ("SUM", "AVG", "PREMUL_SUM")
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


def check_call(backend: str, op: str, arguments: Mapping[str, Any]) -> None:
    """Check that a backend supports a call of a c10d op.

    Args:
        backend: of the group; backends other than `GLOO` and `NCCL` accept everything.
        op: ``"allreduce_"``.
        arguments: of the op, by name.

    Raises:
        RuntimeError, TypeError, ValueError: it does not; the class is torch's.
    """
    if backend == GLOO:
        _check_gloo(op, arguments)
    elif backend in (NCCL, "cuda:nccl"):
        _check_nccl(op, arguments)


def _check_gloo(op: str, arguments: Mapping[str, Any]) -> None:
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
                raise RuntimeError(f"{'input' if op == 'send' else 'output'} tensor has to be contiguous")
        elif op == "alltoall_base_" and not tensor.is_contiguous():
            raise ValueError("Tensors must be contiguous")
        elif tensor.dtype not in _DTYPES or (op == "gather_" and tensor.is_complex()):
            raise RuntimeError(f"Invalid scalar type: gloo has no {op.strip('_')} of {tensor.dtype}")
        if reduction:
            _check_gloo_reduction(op, reduction, tensor)
    if op in ("allgather_", "gather_"):
        _check_parts(op, arguments["output_tensors"], arguments["input_tensors"])
    elif op == "_allgather_base_":
        _check_whole(arguments["output_tensor"], arguments["input_tensor"])


def _check_gloo_reduction(op: str, reduction: str, tensor: torch.Tensor) -> None:
    if reduction == "PREMUL_SUM":
        raise RuntimeError("Cannot use ReduceOp.PREMUL_SUM with Gloo")
    _check_complex(op, reduction, tensor)
    if reduction in _BITWISE and tensor.is_floating_point():
        raise RuntimeError(f"Cannot use ReduceOp.{reduction} with non-integral dtype")
    if reduction == "AVG" and not tensor.is_floating_point() and not tensor.is_complex():
        raise RuntimeError(f"result type Float can't be cast to the desired output type {_cpp_name(tensor.dtype)}")


def _check_parts(op: str, outputs: Iterable[Iterable[torch.Tensor]], inputs: Iterable[torch.Tensor]) -> None:
    for gathered, part in zip(outputs, inputs, strict=False):
        for index, tensor in enumerate(gathered):
            if tensor.shape != part.shape:
                name = "all_gather" if op == "allgather_" else "gather"
                raise RuntimeError(
                    f"{name}: gloo takes parts of one shape, and tensor {index} of the list is {tuple(tensor.shape)} "
                    f"where this rank's part is {tuple(part.shape)}; NCCL takes any shapes"
                )


def _check_whole(whole: torch.Tensor, part: torch.Tensor) -> None:
    """Raise gloo's error if `whole` is not a concatenation of parts along the first dim, along which gloo gathers."""
    if part.dim() == 0 or whole.dim() != part.dim() or whole.shape[1:] != part.shape[1:]:
        raise RuntimeError(
            f"all_gather_into_tensor: gloo gathers along the first dim, and the output is {tuple(whole.shape)} where "
            f"this rank's part is {tuple(part.shape)}; NCCL takes any shape of as many elements"
        )


def _check_nccl(op: str, arguments: Mapping[str, Any]) -> None:
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
    # A list of outputs is gathered into memory of NCCL's own, and copied.
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
    if tensor.is_complex() and reduction not in _OF_COMPLEX:
        raise RuntimeError(f"{op.strip('_')} does not support ReduceOp.{reduction} on complex tensors")


def _reduction(arguments: Mapping[str, Any]) -> str:
    """Return the name of a call's reduction; empty if it has none or torch does not tell."""
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
