"""Attention of few queries: as long as keys are read, with heads that share keys in one tile.

Modules: ``cost/kernels/attention_time.py``.
"""

from __future__ import annotations

from typing import Any

import pytest

from dsexplore._internal.cost.cluster import Cluster
from dsexplore._internal.cost.kernels.attention_time import decodes
from dsexplore._internal.cost.kernels.compute import Speed, kernel_seconds

H100 = Cluster.load("dgx-h100")


def row(batch: int, heads: int, kv_heads: int, queries: int, keys: int, count: int = 1) -> dict[str, Any]:
    """Return a row of kernels of bf16 attention with heads of 128."""
    read = 2 * 128 * batch * (heads * queries + 2 * kv_heads * keys)
    return {
        "kind": "attention",
        "op": "flash",
        "dtype": "bfloat16",
        "shape": [batch, heads, queries, keys, 128],
        "count": count,
        "flops": count * 4 * batch * heads * queries * keys * 128,
        "read_bytes": count * read,
        "written_bytes": count * 2 * 128 * batch * heads * queries,
        "phase": "forward",
    }


def seconds(*shape: int, count: int = 1) -> float:
    return kernel_seconds(row(*shape, count=count), H100, Speed(), False)


def test_long_caches_take_as_long_as_they_are_read() -> None:
    bandwidth = H100.memory.bandwidth * H100.memory.achievable
    more = seconds(8, 32, 8, 1, 1 << 17) - seconds(8, 32, 8, 1, 1 << 16)
    assert more == pytest.approx(2 * 128 * 8 * 2 * 8 * (1 << 16) / bandwidth, rel=1e-3)


def test_heads_that_share_keys_read_them_once() -> None:
    shared, own = seconds(8, 32, 4, 1, 1 << 16), seconds(8, 32, 32, 1, 1 << 16)
    assert own / shared == pytest.approx(8, rel=0.1)


def test_each_wave_of_blocks_takes_a_time_and_more_of_anything_is_no_faster() -> None:
    times = [seconds(batch, 8, 1, 1, 64) for batch in (1, 132, 133, 264, 265, 1000)]
    assert times[0] <= times[1] < times[2] <= times[3] < times[4] < times[5]
    assert seconds(8, 32, 8, 1, 4096, count=3) == pytest.approx(3 * seconds(8, 32, 8, 1, 4096))


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((1, 8, 1, 64, 128), True),
        ((1, 8, 32, 33, 64), True),
        ((1, 8, 64, 4096, 128), False),
        ((1, 8, 4, 4, 64), False),
        ((1, 8, 1, 1, 64), True),
    ],
)
def test_few_queries_to_more_keys_are_decoding(shape: tuple[int, ...], expected: bool) -> None:
    assert decodes(shape) is expected
