"""Matrix products in tiles: how well they fill a GPU, and their time where it is not at the limit of its power.

A product is cut into tiles, and where these are few, k into parts, whose sums are added. Each multiprocessor computes
one tile at a time, so the last wave of tiles is partly empty (``dl-performance-matrix-multiplication`` at
docs.nvidia.com). A tile needs some steps along k before it multiplies, and a small one waits for the bytes that it
reads: (rows + columns) × k numbers for rows × columns × k multiplications.

Products of numbers of 8 and 4 bits (``torch._scaled_mm``) multiply twice and four times as much in a step. Their
kernels do not divide k, their small tiles wait longer, as each byte is multiplied by as many more, and they read scales
first.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from dsexplore._internal.cost.cluster import Cluster
from dsexplore._internal.cost.kernels.gpu_generations import GENERATIONS

_UNITS = {"bfloat16": "bf16", "float16": "fp16", "tf32": "tf32", "float32": "fp32", "float64": "fp32"}
_NARROW_UNITS = {"float8": "fp8", "float4": "fp4"}
_WIDER = {"fp4": "fp8", "fp8": "bf16", "fp16": "bf16", "tf32": "fp32"}


class Tiling(NamedTuple):
    """How libraries cut products into tiles, and k into parts.

    Attributes:
        tiles: rows and columns of each tile, and how fast it is beside the largest.
        prologue: steps along k for which a tile multiplies nothing: it fills its buffers, and writes its result.
        parts: numbers of parts of k.
        least_part: steps along k of the shortest part.
        most_waves: waves of tiles up to which k is divided.
    """

    tiles: tuple[tuple[int, int, float], ...]
    prologue: int
    parts: tuple[int, ...] = (1,)
    least_part: int = 0
    most_waves: int = 0


def _tiles(power: float) -> tuple[tuple[int, int, float], ...]:
    """Return the tiles of libraries, slower than the largest by a power of their intensity beside its own."""
    largest = 256 * 128 / (256 + 128)
    sizes = (256, 128), (128, 128), (128, 192), (64, 256), (128, 64), (64, 64)
    both = dict.fromkeys(tile for rows, columns in sizes for tile in ((rows, columns), (columns, rows)))
    return tuple((r, c, min(1.0, (r * c / (r + c) / largest) ** power)) for r, c in both)


SUSTAINED = Tiling(
    ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.93), (128, 64, 0.80), (64, 128, 0.80), (64, 64, 0.62)),
    128,
    (1, 2, 4, 8),
    1024,
    2,
)
"""Of a GPU at the limit of its power: small tiles read more for each multiplication, which takes power from others.

It is not `_SINGLE`, by which NeMo's 17 published steps are 5.1 % off in place of 4.4 %, and others up to 0.6 % nearer.
"""
_SINGLE = Tiling(_tiles(0.1), 192, (1, 2, 4, 8, 16), 512, 3)
"""Of single products. Its numbers were chosen by a look at one table, of torch's linear layers on an H100
(aiconfigurator-core 0.12.0, Apache-2.0, PyPI: systems/data/h100_sxm/gemm/vllm, bf16, 35,742 products);
benchmarks/gemm_accuracy.py predicts the others."""
_JOINING = 2.5e-6
"""Seconds in which the parts of a product that was split along k are added."""
_NARROW_BURST = {"fp8": 0.70, "fp4": 0.65}
"""What FP8 and FP4 reach of their stated rates, beside what bf16 does of its own: they reach the limit of power sooner.

These, and the three numbers below, were chosen by a look at 250 products each of vLLM's and TensorRT-LLM's fp8 on an
H100, and of vLLM's fp8 and nvfp4 on a B200 (systems/data/*/gemm there); benchmarks/narrow_accuracy.py predicts others.
"""
_NARROW = Tiling(_tiles(0.6), 384)
_NARROW_START = 2e-6
"""Seconds in which a kernel reads its scales."""
_NARROW_DOUBT = 1.25
"""Power of the factors of a narrow product's range: a range of 79 % of the tables above became one of 85 %, since other
libraries are farther off than those by which the numbers were chosen."""
_BORROWED_DOUBT = 1.5
"""Power of the factors of the range where `Generation.burst` and ``start`` are `borrowed`: half as much doubt again."""
_COOL, _HOT = 1e-3, 1e-2
"""Seconds of products up to which clocks are at their highest, and from which they are at their lowest."""


class ProductFactors(NamedTuple):
    """Factors on the expected times of a product.

    Attributes:
        arithmetic: on what multiplies.
        memory: on what reads and writes.
        start: on what a kernel takes besides.
    """

    arithmetic: float = 1.0
    memory: float = 1.0
    start: float = 1.0


def stated_rate(dtype: str, cluster: Cluster) -> float:
    """Return the FLOP/s in the vendor's specification; for a dtype without a rate, that of the next wider one."""
    return cluster.compute.dense[_unit(dtype, cluster)]


def _unit(dtype: str, cluster: Cluster) -> str:
    """Return the key of the rate at which a GPU multiplies numbers of a dtype: of the narrowest that hold them."""
    unit = _NARROW_UNITS.get(dtype[:6]) or _UNITS.get(dtype, "fp32")
    while unit not in cluster.compute.dense:
        unit = _WIDER.get(unit, "fp32")
    return unit


def heat(busy: float) -> float:
    """Return how hot a GPU runs: 0 at its highest clocks, 1 at those that it can sustain.

    Args:
        busy: seconds for which it multiplies in a step.
    """
    return min(1.0, max(0.0, math.log(max(busy, 1e-12) / _COOL) / math.log(_HOT / _COOL)))


def is_known_alone(dtype: str, shape: tuple[int, ...], alignment: str, cluster: Cluster) -> bool:
    """Return True if it is known how fast single products of such numbers are, by tables of this GPU or of others."""
    is_short = dtype[:6] in _NARROW_UNITS or dtype in ("bfloat16", "float16")
    ordinary = not alignment or cluster.generation not in ("hopper", "blackwell")
    return is_short and ordinary and len(shape) == 4 and GENERATIONS[cluster.generation].burst > 0


def product_alone(
    shape: tuple[int, ...], dtype: str, traffic: float, cluster: Cluster, factors: ProductFactors | None = None
) -> float:
    """Return the seconds of one matrix product on a GPU whose clocks are at their highest.

    Arithmetic and memory traffic overlap but for where they take equally long: the root of the sum of their cubes.

    Args:
        shape: batch, m, n, k.
        dtype: of its matrices, of 16 bits or fewer.
        traffic: bytes read and written.
        cluster: whose GPU.
        factors: on the expected times.

    Example:
        >>> h100 = Cluster.load("dgx-h100")
        >>> round(product_alone((1, 4096, 4096, 4096), "bfloat16", 3 * 2 * 4096**2, h100) * 1e6)
        166
    """
    factors = factors or ProductFactors()
    generation, narrow = GENERATIONS[cluster.generation], _NARROW_BURST.get(_unit(dtype, cluster))
    flops = _tiled_flops(shape, generation.multiprocessors, _SINGLE if narrow is None else _NARROW)
    memory = factors.memory * traffic / (cluster.memory.bandwidth * cluster.memory.achievable)
    rate, start = stated_rate(dtype, cluster) * generation.burst, generation.start
    doubt = _BORROWED_DOUBT if generation.borrowed else 1.0
    if narrow is None:
        arithmetic = math.pow(factors.arithmetic, doubt) * flops / rate
        if _tiled_flops(shape, generation.multiprocessors, _SINGLE._replace(parts=(1,))) > flops:
            start += _JOINING
    else:
        doubt *= _NARROW_DOUBT
        # Libraries of narrow products differ from one another twice as much.
        arithmetic = math.pow(factors.arithmetic, 2 * doubt) * flops / (rate * narrow)
        start += _NARROW_START
    start *= math.pow(factors.start, doubt)
    return math.cbrt(arithmetic**3 + memory**3) + start


def shape_efficiency(shape: tuple[int, ...], generation: str) -> float:
    """Return the sustained rate of a product of this shape as a fraction of that of large products, at most 1.

    Args:
        shape: batch, m, n, k; empty if unknown, which counts as large.
        generation: of the GPU.

    Example:
        133 tiles take 132 multiprocessors two waves, or smaller tiles, which are slower.

        >>> [round(shape_efficiency((1, 256 * tiles, 128, 8192), "hopper"), 2) for tiles in (132, 133)]
        [0.98, 0.63]
    """
    processors = GENERATIONS[generation].multiprocessors
    if len(shape) != 4 or processors == 1:
        return 1.0
    batch, m, n, k = shape
    return 2 * batch * m * n * k / _tiled_flops(shape, processors, SUSTAINED)


@lru_cache(maxsize=4096)
def _tiled_flops(shape: tuple[int, ...], processors: int, tiling: Tiling) -> float:
    """Return the FLOPs that a GPU could have computed while it computes a product in the best of tiles and parts.

    Args:
        shape: batch, m, n, k.
        processors: of the GPU.
        tiling: tiles and parts to choose from.
    """
    batch, m, n, k = shape
    best = float("inf")
    for rows, columns, relative in tiling.tiles:
        tiles = batch * -(-m // rows) * -(-n // columns)
        for parts in tiling.parts:
            if parts > 1 and (k < parts * tiling.least_part or tiles * parts > tiling.most_waves * processors):
                break
            waves = -(-tiles * parts // processors)
            steps = -(-k // parts) + tiling.prologue
            best = min(best, waves * processors * 2 * rows * columns * steps / relative)
    return best
