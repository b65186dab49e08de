"""The time of attention kernels: of many queries in blocks, and of a decoder's few queries.

Many queries are computed in blocks of 128, each of which goes through the keys that its queries see. A multiprocessor
computes one block at a time, in tiles of 128 queries and 64 keys. It reads the queries before and writes the results
after, with its part of the memory's bandwidth, and multiplies nothing meanwhile. In causal attention the first block
sees 128 keys and the last one all, so blocks end at different times: the last of them computes while other
multiprocessors are idle. This is the loss of short sequences, of few heads, and of sequences that are no multiple of
128.

Whole tiles would be nearly empty with the few queries of a decoder's next token. Its kernels put the query heads that
share a head of keys into one tile, and divide the keys among multiprocessors (FlashAttention, ``flash_fwd_splitkv``):
they take as long as reading keys and values does, plus a time for each wave of blocks and for joining the parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dsexplore._internal.cost.kernels.gpu_generations import Generation

BLOCK = 128
"""Queries of a block."""
_KEYS = 64
"""Keys of a tile: whole tiles are computed."""
_TAIL = 0.5
"""The part of the longest block for which most multiprocessors have nothing left at the end, where each had several:
fitted together with the starts of `GENERATIONS`."""
_WIDE = 1.13
"""FLOP/s with heads of 256 beside heads of 128, fitted together with the starts of `GENERATIONS`."""
_FEW = 32
"""Queries of a sequence up to which it counts as decoding."""
_ROWS = 16
"""Queries of the smallest product of tensor cores."""
_DECODE_START = 8e-6
"""Seconds in which both kernels of decoding start and join their parts.

Source: fitted by eye to vLLM's table on H100, see benchmarks/decode_attention_accuracy.py.
"""
_WAVE = 2.5e-6
"""Seconds of a wave of blocks, of which there is one for each sequence and head of keys.

Source: as `_DECODE_START`.
"""


def block_attention_seconds(
    shape: Sequence[int],
    flops: float,
    causal: bool,
    generation: Generation,
    rate: float,
    bandwidth: float,
    start: float = 1.0,
) -> float:
    """Return the seconds of one attention of many queries in 16 bits.

    Args:
        shape: batch, heads, queries, keys, head width.
        flops: of all pairs of a query and a key that it sees.
        causal: whether query i sees the keys 0 to i only.
        generation: of the GPU.
        rate: FLOP/s of the whole GPU in the middle of long blocks of heads of 128.
        bandwidth: B/s that large copies reach.
        start: factor on the time in which the call and its blocks begin and end.

    Examples:
        >>> from dsexplore._internal.cost.kernels.gpu_generations import GENERATIONS
        >>> def seconds(queries):
        ...     flops = 4 * 32 * queries * (queries + 1) / 2 * 128
        ...     shape = (1, 32, queries, queries, 128)
        ...     return block_attention_seconds(shape, flops, True, GENERATIONS["hopper"], 5e14, 3e12)
        >>> 3 < seconds(4096) / seconds(2048) < 4  # four times the FLOPs
        True
    """
    from dsexplore._internal.capture.kernels.op_costs import causal_pairs  # here, as it loads torch's formulas of FLOPs

    batch, heads, queries, keys, width = map(int, shape)
    processors = generation.multiprocessors
    blocks = -(-queries // BLOCK)
    padded_keys = -(-keys // _KEYS) * _KEYS
    keys_seen = padded_keys * blocks
    if causal:
        fewer = min(blocks, padded_keys // BLOCK)  # blocks that see fewer keys than there are
        keys_seen = BLOCK * fewer * (fewer + 1) // 2 + padded_keys * (blocks - fewer)
    pairs = causal_pairs(queries, keys) if causal else queries * keys
    seconds_per_key = (
        flops / (batch * heads * pairs) * BLOCK * processors / (rate * _width_efficiency(width, generation))
    )
    block_bytes = max(_ROWS, queries / blocks) * width * 2 * 2  # queries and results
    active = min(processors, batch * heads * blocks)
    block_start = start * (generation.block_start + block_bytes * active / bandwidth)
    longest_block = padded_keys * seconds_per_key + block_start
    if batch * heads * blocks <= processors:
        return start * generation.attention_start + longest_block
    busy = batch * heads * (keys_seen * seconds_per_key + blocks * block_start) / processors
    return start * generation.attention_start + max(longest_block, busy + _TAIL * longest_block)


def _width_efficiency(width: int, generation: Generation) -> float:
    """Return FLOP/s with heads of `width` beside those with heads of 128, which have more products per exponential."""
    if width <= 128:
        return max(0.25, generation.narrow + (1 - generation.narrow) * (width - 64) / 64)
    return 1 + (_WIDE - 1) * min(1.0, (width - 128) / 128)


def decodes(shape: Sequence[int]) -> bool:
    """Return True if an attention has one query, or few to more keys.

    Args:
        shape: batch, heads, queries, keys, head width.
    """
    return len(shape) == 5 and (shape[2] == 1 or (shape[2] <= _FEW and shape[2] < shape[3]))


def decode_seconds(row: Mapping[str, Any], processors: int, rate: float, bandwidth: float, start: float = 1.0) -> float:
    """Return the seconds of a row of `schema.KERNELS` whose attention decodes.

    Args:
        row: a row of the table, by column.
        processors: multiprocessors of the GPU.
        rate: FLOP/s of long attention.
        bandwidth: B/s that large copies reach.
        start: factor on the time in which the kernels and waves of blocks begin.
    """
    count, shape = int(row["count"]), tuple(map(int, row["shape"]))
    batch, heads, queries, keys, width = shape
    kv_heads = _heads_of_keys(shape, row["read_bytes"] / count, 4 if row["dtype"] == "float32" else 2)
    rows = _ROWS * -(-queries * heads // (kv_heads * _ROWS))
    arithmetic = 4 * batch * kv_heads * rows * keys * width / rate
    moving = (row["read_bytes"] + row["written_bytes"]) / count / bandwidth
    waves = -(-batch * kv_heads // processors)
    return float(count * (start * (_DECODE_START + waves * _WAVE) + max(arithmetic, moving)))


def _heads_of_keys(shape: Sequence[int], read_bytes: float, item_size: int) -> int:
    """Return the number of heads of the keys, computed from the bytes of queries, keys and values together."""
    batch, heads, queries, keys, width = shape
    rest = read_bytes / item_size - batch * heads * queries * width
    return min(heads, max(1, round(rest / (2 * batch * keys * width))))
