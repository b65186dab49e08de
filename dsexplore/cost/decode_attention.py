"""Attention of few queries to many keys, as a decoder computes for each next token.

Kernels for whole tiles of queries would be nearly empty. Those for decoding put the query heads that share a head of
keys into one tile, and divide the keys among multiprocessors (FlashAttention, ``flash_fwd_splitkv``): they take as long
as keys and values are read. Each wave of blocks takes a time besides, and joining the parts does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_FEW = 32
"""Queries of a sequence up to which it counts as decoding."""
_ROWS = 16
"""Queries of the smallest product of tensor cores."""
_START, _WAVE = 8e-6, 2.5e-6
"""Seconds in which both kernels start and join their parts, and of a wave of blocks, one for each sequence and head of
keys: chosen by a look at vLLM's table on H100, see benchmarks/decode_attention_accuracy.py."""


def decodes(shape: Sequence[int]) -> bool:
    """Return True if an attention of shape batch, heads, queries, keys, head width is of few queries to more keys."""
    return len(shape) == 5 and shape[2] <= _FEW and shape[2] < shape[3]


def decode_seconds(row: Mapping[str, Any], processors: int, rate: float, bandwidth: float) -> float:
    """Return the seconds of a row of `schema.KERNELS` whose attention decodes.

    Args:
        row: a row of the table, by column.
        processors: multiprocessors of the GPU.
        rate: FLOP/s of long attention.
        bandwidth: B/s that large copies reach.
    """
    count, shape = int(row["count"]), tuple(map(int, row["shape"]))
    batch, heads, queries, keys, width = shape
    kv_heads = _heads_of_keys(shape, row["read_bytes"] / count, 4 if row["dtype"] == "float32" else 2)
    rows = _ROWS * -(-queries * heads // (kv_heads * _ROWS))
    arithmetic = 4 * batch * kv_heads * rows * keys * width / rate
    moving = (row["read_bytes"] + row["written_bytes"]) / count / bandwidth
    waves = -(-batch * kv_heads // processors)
    return float(count * (_START + waves * _WAVE + max(arithmetic, moving)))


def _heads_of_keys(shape: Sequence[int], read_bytes: float, item_size: int) -> int:
    """Return the number of heads of the keys, computed from the bytes of queries, keys and values together."""
    batch, heads, queries, keys, width = shape
    rest = read_bytes / item_size - batch * heads * queries * width
    return min(heads, max(1, round(rest / (2 * batch * keys * width))))
