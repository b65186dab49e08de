"""Plain names of collectives and dtypes."""

from __future__ import annotations

import pytest

from dsexplore._internal.trace.importers.op_names import dtype_in_kernel


@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float", "float32"),
        ("ncclKernel_AllReduce_TREE_LL_Sum___nv_bfloat16", "bfloat16"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "bfloat16"),
        ("ncclDevKernel_ReduceScatter_Sum_f16_RING_LL", "float16"),
        ("ncclDevKernel_Reduce_MinMax_i64_RING_LL", "int64"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", ""),
        ("ncclKernel_Broadcast_RING_LL_Sum_int8_t", ""),
        ("ncclDevKernel_Generic", ""),
    ],
)
def test_a_kernel_of_a_reduction_says_its_dtype(kernel: str, dtype: str) -> None:
    assert dtype_in_kernel(kernel) == dtype
