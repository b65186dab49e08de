"""Attention of many queries: blocks of 128, whose number and whose keys decide how long it takes.

Modules: ``cost/kernels/attention_time.py``.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsexplore._internal.cost.cluster import Cluster
from dsexplore._internal.cost.kernels.attention_time import block_attention_seconds
from dsexplore._internal.cost.kernels.compute import SPEEDS, Speed, kernel_seconds
from dsexplore._internal.cost.kernels.gpu_generations import GENERATIONS

H100 = Cluster.load("dgx-h100")
HOPPER, RATE, BANDWIDTH = GENERATIONS["hopper"], 5e14, 3e12
PROCESSORS = HOPPER.multiprocessors


def seconds(batch: int, heads: int, queries: int, keys: int, width: int = 128, causal: bool = True) -> float:
    pairs = min(queries, keys) * (min(queries, keys) + 1) // 2 + max(0, queries - keys) * keys
    flops = 4.0 * batch * heads * (pairs if causal else queries * keys) * width
    return block_attention_seconds((batch, heads, queries, keys, width), flops, causal, HOPPER, RATE, BANDWIDTH)


@pytest.mark.parametrize(
    ("batch", "heads", "tokens", "width", "microseconds"),
    [
        (4, 32, 4096, 128, 1038.5),
        (4, 16, 2048, 128, 140.8),
        (4, 24, 2048, 128, 205.9),
        (4, 32, 2048, 128, 253.7),
        (4, 32, 2048, 64, 183.4),
        (1, 32, 8192, 64, 642.3),
        (1, 32, 2048, 64, 56.5),
    ],
)
def test_cudnn_takes_what_it_took_on_an_h100(
    batch: int, heads: int, tokens: int, width: int, microseconds: float
) -> None:
    """benchmarks/data/gpu_steps.json: 8 layers of 8b, qwen3, lora of llama 3b, qwen3 moe, llama 1b."""
    row: dict[str, Any] = {
        "kind": "attention",
        "op": "cudnn_attention, causal",
        "dtype": "bfloat16",
        "shape": [batch, heads, tokens, tokens, width],
        "count": 1,
        "flops": 4 * batch * heads * width * tokens * (tokens + 1) // 2,
        "read_bytes": 0,
        "written_bytes": 0,
        "phase": "forward",
    }
    assert kernel_seconds(row, H100, Speed(), False, "cudnn") * 1e6 == pytest.approx(microseconds, rel=0.16)


def test_causal_attention_computes_half_but_for_the_diagonal_and_the_blocks_starts() -> None:
    halves = [seconds(4, 32, tokens, tokens) / seconds(4, 32, tokens, tokens, causal=False) for tokens in (512, 16384)]
    assert 0.5 < halves[1] < 0.53 < 0.6 < halves[0] < 0.8


def test_a_block_more_than_multiprocessors_ends_after_two() -> None:
    fits, over = (seconds(1, heads, 128, 4096, causal=False) for heads in (PROCESSORS, PROCESSORS + 1))
    assert 1.1 < over / fits < 2


def test_few_blocks_share_the_bandwidth_and_short_ones_wait_for_it() -> None:
    """Queries and results of 131 further heads of 16 keys: 64 KiB each, past the one multiprocessor that was busy."""
    one, all_busy = seconds(1, 1, 128, 16, causal=False), seconds(1, PROCESSORS, 128, 16, causal=False)
    assert all_busy - one == pytest.approx(131 * 128 * 128 * 4 / BANDWIDTH)


def test_what_fits_in_the_cache_of_a_gpu_with_slow_memory_does_not_wait_for_the_memory() -> None:
    def l40s(batch: int) -> float:
        size = 2 * batch * 8 * 256 * 128
        shape = [batch, 8, 256, 256, 128]
        row = {"kind": "attention", "op": "flash", "dtype": "bfloat16", "shape": shape, "count": 1, "phase": "forward"}
        flops = 4 * batch * 8 * 256 * 256 * 128
        row |= {"flops": flops, "read_bytes": 3 * size, "written_bytes": size}
        return kernel_seconds(row, Cluster.load("8xl40s"), Speed(), False)

    fits, over = l40s(45), l40s(46)  # 94.4 and 96.5 MB of 96
    assert over > 1.5 * fits


def test_the_range_of_short_calls_is_wider_than_that_of_long_ones() -> None:
    def width(tokens: int) -> float:
        row = {"kind": "attention", "op": "flash", "dtype": "bfloat16", "shape": [1, 32, tokens, tokens, 128]}
        row |= {"flops": 4 * 32 * tokens**2 * 128, "count": 1, "read_bytes": 0, "written_bytes": 0, "phase": "forward"}
        low, _, high = (kernel_seconds(row, H100, speed, False) for speed in SPEEDS)
        return high / low

    assert width(128) > width(1024) > width(16384) == pytest.approx(SPEEDS[2].attention / SPEEDS[0].attention, rel=0.02)


def test_short_prompts_take_their_start_and_few_heads_the_longest_block() -> None:
    assert seconds(1, 1, 16, 16) < 10e-6
    assert seconds(1, 1, 8192, 8192) == pytest.approx(seconds(1, 2, 8192, 8192), rel=0.02)


@given(
    st.integers(1, 64),
    st.integers(1, 64),
    st.integers(1, 5000),
    st.integers(1, 5000),
    st.booleans(),
    st.integers(1, 99),
)
def test_more_is_never_faster(batch: int, heads: int, queries: int, keys: int, causal: bool, more: int) -> None:
    times = seconds(batch, heads, queries, keys, 128, causal)
    assert seconds(batch + more, heads, queries, keys, 128, causal) >= times * (1 - 1e-9)
    assert seconds(batch, heads + more, queries, keys, 128, causal) >= times * (1 - 1e-9)
    if not causal:
        assert seconds(batch, heads, queries, keys + more, 128, causal) >= times * (1 - 1e-9)
