"""How long kernels take.

Modules: ``cost/kernels/compute.py``, ``cost/kernels/gpu_generations.py``.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsexplore._internal.cost.cluster import Cluster, known_clusters
from dsexplore._internal.cost.kernels.compute import (
    SPEEDS,
    Speed,
    host_seconds,
    issue_seconds,
    kernel_seconds,
    slowest_of,
)
from dsexplore._internal.cost.kernels.gpu_generations import GENERATIONS

H100 = Cluster.load("dgx-h100")


def row(**values: Any) -> dict[str, Any]:
    """Return a row of the kernels' table."""
    empty = dict.fromkeys(("flops", "read_bytes", "written_bytes", "fused_bytes", "fused_count"), 0)
    return {
        **empty,
        "kind": "memory",
        "op": "add",
        "dtype": "bfloat16",
        "shape": [],
        "count": 1,
        "phase": "forward",
        **values,
    }


def product(m: int, n: int, k: int, dtype: str = "bfloat16") -> dict[str, Any]:
    return row(kind="matmul", op="mm", dtype=dtype, shape=[1, m, n, k], flops=2 * m * n * k)


def test_large_products_reach_what_ordinary_ones_do() -> None:
    """ml-engineering: 80 to 90 % of the best product's rate where both other dims are 4096."""
    best = H100.compute.flops("bf16")
    one = product(16384, 4096, 4096)
    assert 0.80 <= one["flops"] / kernel_seconds(one, H100, Speed(), False, busy=1.0) / best <= 0.90


@pytest.mark.parametrize(
    ("shape", "microseconds"),
    [((1, 4096, 4096), 15.0), ((17, 8192, 8192), 46.4), ((1025, 8192, 8192), 166.3), ((3585, 4096, 4096), 147.1)],
)
def test_a_single_product_takes_what_the_table_of_kernels_says(
    shape: tuple[int, int, int], microseconds: float
) -> None:
    """aiconfigurator-core 0.12.0, systems/data/h100_sxm/gemm/vllm: torch's linear, bf16; seen."""
    m, n, k = shape
    one = product(m, n, k) | {"read_bytes": 2 * (m * k + n * k), "written_bytes": 2 * m * n}
    assert kernel_seconds(one, H100, Speed(), False) * 1e6 == pytest.approx(microseconds, rel=0.12)


@given(m=st.integers(1, 9000), n=st.integers(1, 9000), k=st.integers(1, 9000), busy=st.floats(0, 1))
def test_a_gpu_that_computes_longer_is_no_faster(m: int, n: int, k: int, busy: float) -> None:
    """In a step of a second of products clocks are those that the GPU can keep."""
    one = product(m, n, k) | {"read_bytes": 2 * (m * k + n * k), "written_bytes": 2 * m * n}
    low, high = sorted(kernel_seconds(one, H100, Speed(), False, busy=time) for time in (busy, 1.0))
    assert low > 0
    assert high < 4 * low


def test_a_narrow_product_is_bound_by_memory() -> None:
    narrow = row(kind="matmul", op="mm", shape=[1, 1, 8192, 8192], flops=2 * 8192**2, read_bytes=2 * 8192**2)
    floor = narrow["read_bytes"] / (H100.memory.bandwidth * H100.memory.achievable)
    assert kernel_seconds(narrow, H100, Speed(), False) >= floor


def test_dtypes_have_their_own_rates_and_a_missing_one_the_next_wider() -> None:
    seconds = {
        name: kernel_seconds(product(8192, 8192, 8192, name), H100, Speed(), False)
        for name in ("float8_e4m3fn", "bfloat16", "float32")
    }
    assert seconds["float8_e4m3fn"] < seconds["bfloat16"] < seconds["float32"]
    a100, b200 = Cluster.load("dgx-a100"), Cluster.load("b200")
    fp4, fp8, bf16 = (product(8192, 8192, 8192, name) for name in ("float4_e2m1fn_x2", "float8_e4m3fn", "bfloat16"))
    for busy in (0.0, 1.0):
        times = [kernel_seconds(one, b200, Speed(), False, busy=busy) for one in (fp4, fp8, bf16)]
        assert 1.5 * times[0] < times[1] < times[2] / 1.2
        assert kernel_seconds(fp4, H100, Speed(), False, busy=busy) == kernel_seconds(
            fp8, H100, Speed(), False, busy=busy
        )
        assert kernel_seconds(fp8, a100, Speed(), False, busy=busy) == kernel_seconds(
            bf16, a100, Speed(), False, busy=busy
        )


def test_tf32_has_its_own_rate_where_the_gpu_has_such_units() -> None:
    tf32, fp32 = (product(8192, 8192, 8192, name) for name in ("tf32", "float32"))
    assert kernel_seconds(tf32, H100, Speed(), False) < kernel_seconds(fp32, H100, Speed(), False) / 5
    v100 = Cluster.load("dgx1-v100")
    assert kernel_seconds(tf32, v100, Speed(), False) == kernel_seconds(fp32, v100, Speed(), False)


def test_compiled_modules_move_what_goes_in_and_out() -> None:
    chain = row(read_bytes=4 << 30, written_bytes=4 << 30, count=8, fused_bytes=2 << 30, fused_count=1)
    eager, fused = (kernel_seconds(chain, H100, Speed(), compiled) for compiled in (False, True))
    assert fused == pytest.approx(eager / 4, rel=0.01)
    assert host_seconds(chain, H100, Speed(), True) == pytest.approx(host_seconds(chain, H100, Speed(), False) / 8)


def test_ops_on_dtensors_cost_the_cpu_alone() -> None:
    one = row(kind="dispatch", count=10)
    assert kernel_seconds(one, H100, Speed(), False) == 0
    assert host_seconds(one, H100, Speed(), False) > 10 * H100.launch_overhead
    assert host_seconds(one, H100, Speed(), True) == 0


def test_long_attention_reaches_the_published_rate() -> None:
    shape = [4, 32, 16384, 16384, 128]
    one = row(kind="attention", op="flash_attention, causal", shape=shape, flops=2 * 4 * 32 * 16384**2 * 128)
    rate = one["flops"] / kernel_seconds(one, H100, Speed(), False)
    assert rate == pytest.approx(GENERATIONS["hopper"].flash.forward * H100.compute.dense["bf16"], rel=0.05)


def test_attention_computes_whole_tiles() -> None:
    """A ViT's 197 tokens take nearly as long as 256, whose FLOPs are 1.7 times as many."""
    seconds = [
        kernel_seconds(
            row(kind="attention", op="flash", shape=[64, 16, n, n, 64], flops=n * n * 10**9), H100, Speed(), False
        )
        for n in (197, 256)
    ]
    assert seconds[0] == pytest.approx(seconds[1], rel=0.1)


@pytest.mark.parametrize(("alignment", "reached"), [(2, 0.12), (4, 0.26)])
def test_products_of_odd_rows_are_as_slow_as_was_measured(alignment: int, reached: float) -> None:
    """benchmarks/data/gpu_steps.json: the products with GPT-2's and BERT's vocabulary, of 989 TFLOP/s."""
    odd = product(16384, 50257, 768) | {"op": f"mm, aligned to {alignment} bytes"}
    rate = odd["flops"] / kernel_seconds(odd, H100, Speed(), False)
    assert rate / H100.compute.dense["bf16"] == pytest.approx(reached, rel=0.15)
    a100 = Cluster.load("dgx-a100")
    assert kernel_seconds(odd, a100, Speed(), False) == kernel_seconds(odd | {"op": "mm"}, a100, Speed(), False)


def test_the_cpu_s_work_has_a_range_but_where_it_computes_too() -> None:
    one = row(count=10)
    least, host, most = (host_seconds(one, H100, speed, False) for speed in SPEEDS)
    assert least == 10 * H100.launch_overhead < host < most
    issues = [issue_seconds(H100, speed) for speed in SPEEDS]
    assert 10e-6 < issues[0] < 89e-6 < issues[1] < 131e-6 < issues[2]
    gloo = Cluster.load("gloo-local")
    assert {issue_seconds(gloo, speed) for speed in SPEEDS} == {0.0}
    assert {host_seconds(one, gloo, speed, False) for speed in SPEEDS} == {10 * gloo.launch_overhead}


@pytest.mark.parametrize("name", known_clusters())
def test_every_cluster_has_a_generation(name: str) -> None:
    assert kernel_seconds(product(4096, 4096, 4096), Cluster.load(name), SPEEDS[1], False) > 0


def test_backward_attention_of_cudnn_is_as_much_faster_as_was_published() -> None:
    """FlashAttention-3 (arXiv 2407.08608), figures 5 and 6: H100, head width 128, 16k."""
    attention = row(kind="attention", op="flash_backward", shape=[1, 32, 16384, 16384, 128], flops=10**15)
    flash, cudnn = (kernel_seconds(attention, H100, Speed(), False, kernels) for kernels in ("flash-2", "cudnn"))
    assert flash / cudnn == pytest.approx(516 / 322, rel=0.01)


def test_attention_of_narrow_heads_is_slower() -> None:
    """FlashAttention-2 and 3: heads of 64 reach about three quarters of the rate of heads of 128."""
    wide, narrow = (row(kind="attention", op="flash", shape=[1, 32, 16384, 16384, w], flops=10**15) for w in (128, 64))
    times = [kernel_seconds(one, H100, Speed(), False) for one in (wide, narrow)]
    assert 0.69 < times[0] / times[1] < 0.76


@pytest.mark.parametrize(("ranks", "deviations"), [(1, 0.0), (2, 0.564), (10, 1.539), (100, 2.508), (1000, 3.241)])
def test_the_slowest_of_many_is_what_tables_of_normal_order_statistics_say(ranks: int, deviations: float) -> None:
    assert slowest_of(ranks, H100, Speed(spread=0.01)) == pytest.approx(1 + 0.01 * deviations, abs=3e-4)


@given(few=st.integers(1, 20000), more=st.integers(1, 20000))
def test_the_slowest_of_more_ranks_is_no_faster(few: int, more: int) -> None:
    few, more = sorted((few, more))
    assert 1 <= slowest_of(few, H100, Speed()) <= slowest_of(more, H100, Speed())


def test_ranks_that_share_a_cpu_are_equally_fast() -> None:
    assert slowest_of(64, Cluster.load("gloo-local"), SPEEDS[2]) == 1
