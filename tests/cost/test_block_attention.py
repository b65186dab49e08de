"""Attention of many queries: blocks of 128, whose number and whose keys decide how long it takes.

Modules: ``cost/attention_time.py``.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsexplore.cost.attention_time import block_attention_seconds
from dsexplore.cost.cluster import Cluster
from dsexplore.cost.compute import Speed, kernel_seconds

H100 = Cluster.load("dgx-h100")
PROCESSORS, RATE = 132, 5e14


def seconds(batch: int, heads: int, queries: int, keys: int, width: int = 128, causal: bool = True) -> float:
    pairs = min(queries, keys) * (min(queries, keys) + 1) // 2 + max(0, queries - keys) * keys
    flops = 4.0 * batch * heads * (pairs if causal else queries * keys) * width
    return block_attention_seconds((batch, heads, queries, keys, width), flops, causal, PROCESSORS, RATE)


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


def test_short_prompts_take_their_start_and_few_heads_the_longest_block() -> None:
    assert seconds(1, 1, 16, 16) < 8e-6
    assert seconds(1, 1, 8192, 8192) == pytest.approx(seconds(1, 2, 8192, 8192))


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
