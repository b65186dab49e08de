"""Translate names of collectives and dtypes, as torch's recorders and NCCL write them, into torch's plain names."""

from __future__ import annotations

import re
from functools import cache

_OPS = {
    "all_reduce": "all_reduce",
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "allreduce_sparse": "all_reduce",
    "all_reduce_sparse": "all_reduce",
    "all_reduce_barrier": "barrier",
    "barrier": "barrier",
    "monitored_barrier": "barrier",
    "all_gather": "all_gather",
    "allgather": "all_gather",
    "_all_gather_base": "all_gather",
    "_allgather_base": "all_gather",
    "allgather_base": "all_gather",
    "all_gather_single": "all_gather",
    "all_gather_v": "all_gather",
    "allgatherv": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "allgather_coalesced": "all_gather",
    "_allgather_base_coalesced": "all_gather",
    "all_gather_base": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_v": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "reduce_scatter_coalesced": "reduce_scatter",
    "reducescatter": "reduce_scatter",
    "reduce_scatter_base": "reduce_scatter",
    "all2all": "all_to_all",
    "all_to_all": "all_to_all",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "all_to_all_single": "all_to_all",
    "all_to_all_v_single": "all_to_all",
    "all_to_allv": "all_to_all",
    "all_to_allv_single": "all_to_all",
    "alltoallv": "all_to_all",
    "alltoallv_base": "all_to_all",
    "broadcast": "broadcast",
    "_broadcast_oop": "broadcast",
    "reduce": "reduce",
    "_reduce_oop": "reduce",
    "gather": "gather",
    "gather_into_tensor": "gather",
    "scatter": "scatter",
    "send": "send",
    "recv": "recv",
    "recvanysource": "recv",
    "recv_any_source": "recv",
}
_DTYPES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "bfloat16": "bfloat16",
    "long": "int64",
    "long int": "int64",
    "unsigned char": "uint8",
    "signed char": "int8",
    "int": "int32",
    "short": "int16",
    "char": "int8",
    "byte": "uint8",
    "bool": "bool",
    "complexfloat": "complex64",
    "complexdouble": "complex128",
    "float8e4m3": "float8_e4m3fn",
    "float8e5m2": "float8_e5m2",
}
_REDUCED_DTYPE = re.compile(
    r"_(?:Sum|Prod|Max|Min|MinMax|PreMulSum|SumPostDiv|Avg)_(\w+?)(?:_(?:RING|TREE|LL|SIMPLE|COLLNET|NVLS|PAT).*)?$"
)
"""Matches the dtype in the name of an NCCL kernel, after the reduction."""
_KERNEL_DTYPES = {
    "float": "float32",
    "f32": "float32",
    "half": "float16",
    "f16": "float16",
    "double": "float64",
    "f64": "float64",
    "__nv_bfloat16": "bfloat16",
    "rccl_bfloat16": "bfloat16",
    "hip_bfloat16": "bfloat16",
    "bf16": "bfloat16",
    "int8_t": "int8",
    "i8": "int8",
    "uint8_t": "uint8",
    "u8": "uint8",
    "int32_t": "int32",
    "i32": "int32",
    "uint32_t": "uint32",
    "u32": "uint32",
    "int64_t": "int64",
    "i64": "int64",
    "uint64_t": "uint64",
    "u64": "uint64",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
}


@cache
def plain_op(name: str) -> str:
    """Return the plain name of an op: ``all_gather`` for ``_all_gather_base``, ``unknown:…`` for an unknown one."""
    return _OPS.get(name) or _OPS.get(name.lower()) or f"unknown:{name}"


@cache
def plain_dtype(name: str) -> str:
    """Return torch's name of a dtype: ``float32`` for ``Float``, ``float``, ``torch.float32`` or ``ncclFloat32``."""
    plain = name.removeprefix("torch.").removeprefix("c10::").removeprefix("nccl").lower()
    return _DTYPES.get(plain, plain)


@cache
def dtype_in_kernel(name: str) -> str:
    """Return the dtype that an NCCL kernel reduces: ``float32`` for ``ncclKernel_AllReduce_RING_LL_Sum_float``.

    Empty if the name does not tell it: kernels that only move bytes are all named after ``int8_t``.
    """
    match = _REDUCED_DTYPE.search(name) if "reduce" in name.lower() else None
    return _KERNEL_DTYPES.get(match[1], "") if match else ""
