"""Attention of many queries, in blocks of 128 that each go through the keys that their queries see.

A multiprocessor computes one block at a time, in tiles of 128 queries and 64 keys, and is busy with reading queries and
writing results besides. Of causal attention the first block sees 128 keys and the last all, so that blocks end at
different times: the last of them computes while others have nothing left. This is what short sequences, few heads, and
sequences that are no multiple of 128 lose.
"""

from __future__ import annotations

from collections.abc import Sequence

BLOCK = 128
"""Queries of a block."""
_KEYS = 64
"""Keys of a tile: whole tiles are computed."""
_START = 4e-6
"""Seconds from the start of the kernel to its first block, and from its last: of 24 blocks with two tiles each, in
GPT-2, cuDNN's took 9.8 µs on an H100 (benchmarks/data/gpu_steps.json, 1 × 256)."""
_BLOCK_START = 2e-6
"""Seconds in which a block of 128 queries multiplies nothing, chosen by a look at vLLM's tables on H100 and A100, where
it was 3 µs with the keys' way to the cache (see benchmarks/prefill_attention_accuracy.py), and at cuDNN's kernels on an
H100 (benchmarks/data/gpu_steps.json), where it was 1.5 µs."""
_ROWLESS = 0.2
"""The part of that which a block takes however few queries it has."""
_TAIL = 0.25
"""The part of the longest block for which most multiprocessors have nothing left at the end, where each had several."""


def block_attention_seconds(shape: Sequence[int], flops: float, causal: bool, processors: int, rate: float) -> float:
    """Return the seconds of one attention.

    Args:
        shape: batch, heads, queries, keys, head width.
        flops: of all pairs of a query and a key that it sees.
        causal: whether query i sees the keys 0 to i only.
        processors: multiprocessors of the GPU.
        rate: FLOP/s of all of them in the middle of long blocks.

    Examples:
        >>> def seconds(queries):
        ...     flops = 4 * 32 * queries * (queries + 1) / 2 * 128
        ...     return block_attention_seconds((1, 32, queries, queries, 128), flops, True, 132, 5e14)
        >>> 3 < seconds(4096) / seconds(2048) < 4  # four times the FLOPs
        True
    """
    from dsexplore.capture.op_costs import causal_pairs  # here, as it loads torch's formulas of FLOPs

    batch, heads, queries, keys, _ = map(int, shape)
    blocks = -(-queries // BLOCK)
    whole = -(-keys // _KEYS) * _KEYS
    seen = whole * blocks
    if causal:
        fewer = min(blocks, whole // BLOCK)  # blocks that see fewer keys than there are
        seen = BLOCK * fewer * (fewer + 1) // 2 + whole * (blocks - fewer)
    pairs = causal_pairs(queries, keys) if causal else queries * keys
    per_key = flops / (batch * heads * pairs) * BLOCK * processors / rate
    filled = queries / (blocks * BLOCK)
    start = _BLOCK_START * (_ROWLESS + (1 - _ROWLESS) * filled)
    longest = whole * per_key + start
    if batch * heads * blocks <= processors:
        return _START + longest
    busy = batch * heads * (seen * per_key + blocks * start) / processors
    return _START + max(longest, busy + _TAIL * longest)
