"""How long kernels take on one GPU: products by their shape, attention, and all else by the bytes that it moves.

A kernel takes the longer of its arithmetic and its memory traffic (the roofline), and a fixed time besides.

* Products: the stated FLOP/s × the part that the best product reaches (both of the cluster's file) × what ordinary
  shapes reach of that × how well its tiles fill the GPU. That is of a GPU that has computed for a while. One that has
  not is not at the limit of its power yet, and its clocks are higher: see `cost.kernels.product_time`.
* Attention: the stated FLOP/s × what published kernels reach, in blocks of queries: see
  `cost.kernels.attention_time`. Torch takes FlashAttention-2 for bf16. With few queries, the bytes of keys and values
  count.
* Memory: bytes read and written once per op at the bandwidth that copies reach; of compiled modules, ops between two
  products are one kernel that moves what goes in and out.

GPUs of one kind are not equally fast, and the ranks of a job wait for the slowest at each collective: `slowest_of`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from types import MappingProxyType
from typing import Any, Literal

from dsexplore._internal.cost.cluster import Cluster
from dsexplore._internal.cost.kernels.attention_time import block_attention_seconds, decode_seconds, decodes
from dsexplore._internal.cost.kernels.gpu_generations import GENERATIONS
from dsexplore._internal.cost.kernels.product_time import (
    ProductFactors,
    heat,
    is_known_alone,
    product_alone,
    shape_efficiency,
    stated_rate,
)

Attention = Literal["flash-2", "cudnn"]
"""The attention kernels that run: those of FlashAttention-2, or of cuDNN where they are faster."""

_TILE = 128
"""Queries, and keys, that one block of an attention kernel takes at a time: it computes whole tiles."""
_ORDINARY = 0.88
"""Large products of ordinary shapes beside the fastest of all shapes, which is what files call achievable: where both
other dims are 4096 the best of many numbers of rows reaches 80 to 90 % of it (stas00/ml-engineering,
compute/accelerator/benchmarks/README.md, 2026-11-23), of which a k of 4096 explains 3 %."""
_UNALIGNED = {"aligned to 2 bytes": 0.19, "aligned to 4 bytes": 0.42, "aligned to 8 bytes": 0.42}
"""Products on Hopper whose rows do not begin at multiples of 16 bytes, beside ordinary ones: cuBLAS takes kernels of
older generations. Of the three products with a vocabulary of 50,257 an H100 computed 96 to 152 TFLOP/s, of those with
30,522 254 to 271, where ordinary ones are expected to reach 640 (benchmarks/data/gpu_steps.json). Nothing was measured
on Blackwell, which is taken to do the same, and older GPUs run these kernels as their own."""
_SHARES: Mapping[str, float] = MappingProxyType(
    {
        "_to_copy": 0.81,
        "sum": 0.42,
        "native_layer_norm": 0.58,
        "native_layer_norm_backward": 0.62,
        **dict.fromkeys(("index", "index_put", "gather", "scatter_add", "embedding_dense_backward"), 0.63),
    }
)
"""Ops whose kernels move bytes more slowly than plain copies do, and how fast beside them, without the time from one
kernel to the next: casts load one number at a time, sums over rows and gathers read scattered ones, layer norms read
rows again. Sums over 30 programs of torch 2.11 on an H100 (benchmarks/gpu_step.py prints them, with that time)."""
_LISTS_OF_TENSORS = 0.80
"""The same of ops on lists of tensors, those of optimizers among them."""
KERNEL_GAP = 2e-6
"""Seconds from the last store of a kernel to the first load of the next on one stream."""
_CACHED = 5.0
"""Bandwidth of the cache beside that of the memory, on generations that have a `cache`: by the same look as
`Generation.block_start`."""
OPTIMIZER_TENSORS = 50
"""Parameters that one launch of a multi-tensor kernel takes: torch.optim's default on GPUs, where a CPU takes one."""


@dataclass(frozen=True)
class Speed:
    """Factors on the expected times of kernels.

    Attributes:
        matmul: of products.
        attention: of attention.
        memory: of all else.
        host: of the CPU's work for an op, beside a bare launch: torch's dispatcher and autograd, the program's Python.
        spread: by how much the times of GPUs of one kind differ: their standard deviation, as a part of their mean.
        start: of the time in which attention and its blocks begin and end, and other kernels that move bytes.
    """

    matmul: float = 1.0
    attention: float = 1.0
    memory: float = 1.0
    host: float = 6.6
    spread: float = 0.015
    start: float = 1.0


SPEEDS = (
    Speed(matmul=0.88, attention=0.70, memory=0.90, host=1.0, spread=0.0, start=0.65),
    Speed(),
    Speed(matmul=1.22, attention=1.25, memory=1.35, host=10.0, spread=0.041, start=1.7),
)
"""Low, expected and high. Products: best published rates against sustained ones under a power limit. Attention: with
cuDNN or FlashAttention-3 against FlashAttention-2. Memory: ops that fit into the cache against strided ones. Host: a
bare launch takes the 5 µs of the clusters' files. Seventeen eager steps that waited for the CPU took 26 to 44 µs for
each kernel, 34 in the geometric mean, on the machines of an H100 and of an H200 (benchmarks/data/gpu_steps.json and
gpu_steps_h200.json: those whose kernels take less than four fifths of the step). Spread:
"Not All GPUs Are Created Equal" (SC22, arXiv 2208.11035) measured the same programs on more than 90 % of the V100,
RTX 5000 and MI60 of five clusters: 8 % of variation on average, 22 % at most, outliers apart. Both are read as the
width of box plots from whisker to whisker, which is 5.4 standard deviations; for newer GPUs nothing is published.
Start: nine tenths of the rows of the tables that were looked at (benchmarks/prefill_attention_accuracy.py) are within
0.75 and 1.7; 0.65 is the middle one of three that were tried when the others had been seen."""


def kernel_seconds(
    row: Mapping[str, Any],
    cluster: Cluster,
    speed: Speed,
    compiled: bool,
    attention: Attention = "flash-2",
    busy: float = 0.0,
) -> float:
    """Return the seconds that one row of `schema.KERNELS` keeps the compute stream busy.

    Args:
        row: a row of the table, by column.
        cluster: whose GPU.
        speed: factors on the times.
        compiled: whether ops are fused as by torch.compile.
        attention: the implementation of attention.
        busy: seconds for which the GPU multiplies in such a step; 0 for a kernel by itself.
    """
    kind, count, of_one = row["kind"], int(row["count"]), float("inf")
    if kind in ("dispatch", "wait"):
        return 0.0
    traffic = int(row["read_bytes"] + row["written_bytes"])
    if kind == "memory":
        if compiled:
            traffic, count = row["fused_bytes"], row["fused_count"]
        elif row["phase"] == "optimizer":
            count = -(-count // OPTIMIZER_TENSORS)
        share = 1.0 if compiled or cluster.generation == "cpu" else _share_of_bandwidth(row)
        moving = _memory_seconds(traffic, cluster, traffic / max(1, count)) / share
        return speed.memory * moving + speed.start * count * _fixed(cluster)
    if kind == "attention":
        if cluster.generation != "cpu" and decodes(row["shape"]):
            return _decode_seconds(row, cluster, speed)
        arithmetic, of_one = _attention_seconds(row, cluster, attention, speed), traffic / count
    else:
        shape, alignment = tuple(row["shape"]), row["op"].partition(", ")[2]
        rate = _product_rate(row["dtype"], shape, alignment, cluster)
        arithmetic = speed.matmul * int(row["flops"]) / rate
        if is_known_alone(row["dtype"], shape, alignment, cluster):
            sustained = max(arithmetic, speed.memory * _memory_seconds(traffic, cluster)) + count * _fixed(cluster)
            factors = ProductFactors(speed.matmul, speed.memory, speed.start)
            alone = count * product_alone(shape, row["dtype"], traffic / count, cluster, factors)
            heated = heat(max(busy, alone))
            return float(alone ** (1 - heated) * sustained**heated)
    return max(arithmetic, speed.memory * _memory_seconds(traffic, cluster, of_one)) + count * _fixed(cluster)


def host_seconds(row: Mapping[str, Any], cluster: Cluster, speed: Speed, compiled: bool) -> float:
    """Return the seconds that the CPU takes to launch one row of `schema.KERNELS`; arguments as in `kernel_seconds`."""
    kind, count = row["kind"], int(row["count"])
    # A CPU's own ranks compute where they launch, which a measured step shows as one.
    launch = cluster.launch_overhead * (1.0 if cluster.generation == "cpu" else speed.host)
    if kind == "wait":
        return 0.0
    if kind == "dispatch":
        return 0.0 if compiled else count * DTENSOR_LAUNCHES * launch
    if kind == "memory" and compiled:
        return float(row["fused_count"] * launch)
    if kind == "memory" and row["phase"] == "optimizer":
        return -(-count // OPTIMIZER_TENSORS) * launch
    return count * launch


DTENSOR_LAUNCHES = 0.7
"""CPU time of an op on DTensors besides that of its kernel, relative to a kernel: 17 to 30 µs more once its sharding is
cached (benchmarks/dtensor_dispatch.py), where 33 are expected for a kernel."""
COLLECTIVE_LAUNCHES = 3.0
"""CPU time to issue a collective, relative to a kernel: in a profile of torch 2.4 all_reduce took 89 µs, reduce_scatter
122 and all_gather 131 (pytorch/pytorch issue 138773), where 34 are expected for a kernel."""


def issue_seconds(cluster: Cluster, speed: Speed) -> float:
    """Return the seconds that the CPU takes to issue a collective on a GPU.

    The times of collectives between processes of one machine's CPU include it.
    """
    if cluster.generation == "cpu":
        return 0.0
    return COLLECTIVE_LAUNCHES * cluster.launch_overhead * speed.host


def slowest_of(ranks: int, cluster: Cluster, speed: Speed) -> float:
    """Return the expected compute time of the slowest of `ranks` ranks, relative to the mean rank.

    Times are assumed to be normally distributed; the expected maximum of n is the quantile (n - 0.375) / (n + 0.25)
    (Blom, Statistical Estimates and Transformed Beta-Variables, 1958). Ranks on one machine's CPU are equally fast.
    """
    if cluster.generation == "cpu":
        return 1.0
    return 1.0 + speed.spread * NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))


def slowed_by_communication(cluster: Cluster) -> float:
    """Return the fraction of the multiprocessors, 0 to 1, that a running collective occupies."""
    generation = GENERATIONS[cluster.generation]
    return generation.channels / generation.multiprocessors


def _fixed(cluster: Cluster) -> float:
    return min(KERNEL_GAP, cluster.launch_overhead)


def _memory_seconds(traffic: float, cluster: Cluster, of_one: float = float("inf")) -> float:
    return traffic / _bandwidth(cluster, of_one)


def _bandwidth(cluster: Cluster, of_one: float) -> float:
    """Return B/s of memory traffic, of which one kernel has `of_one` bytes: the cache's where they fit."""
    cache = GENERATIONS[cluster.generation].cache
    return cluster.memory.bandwidth * cluster.memory.achievable * (_CACHED if of_one < cache else 1.0)


def _share_of_bandwidth(row: Mapping[str, Any]) -> float:
    """Return the bandwidth of torch's kernel for an op as a fraction of that of plain copies."""
    if row["phase"] == "optimizer" or row["op"].startswith("_foreach_"):
        return _LISTS_OF_TENSORS
    return _SHARES.get(row["op"], 1.0)


def _product_rate(dtype: str, shape: tuple[int, ...], alignment: str, cluster: Cluster) -> float:
    """Return the FLOP/s of a matrix product of this shape.

    Args:
        dtype: of its matrices.
        shape: batch, m, n, k; empty if unknown.
        alignment: suffix that `op_costs` adds to the op's name if rows do not start at multiples of 16 bytes, else "".
        cluster: whose GPU.
    """
    best = stated_rate(dtype, cluster) * cluster.compute.achievable
    aligned = _UNALIGNED.get(alignment, 1.0) if cluster.generation in ("hopper", "blackwell") else 1.0
    return best * _ORDINARY * shape_efficiency(shape, cluster.generation) * aligned


def _decode_seconds(row: Mapping[str, Any], cluster: Cluster, speed: Speed) -> float:
    generation, traffic = GENERATIONS[cluster.generation], int(row["read_bytes"] + row["written_bytes"])
    rate = stated_rate(row["dtype"], cluster) * generation.flash.forward / speed.attention
    bandwidth = _bandwidth(cluster, traffic / int(row["count"])) / speed.attention
    return decode_seconds(row, generation.multiprocessors, rate, bandwidth, speed.start)


def _attention_seconds(row: Mapping[str, Any], cluster: Cluster, kernels: Attention, speed: Speed) -> float:
    generation = GENERATIONS[cluster.generation]
    rates = generation.cudnn if kernels == "cudnn" and generation.cudnn is not None else generation.flash
    backward = "backward" in row["op"]
    batch, heads, queries, keys, width = map(int, row["shape"])
    rate = stated_rate(row["dtype"], cluster) * (rates.backward if backward else rates.forward)
    if not backward and cluster.generation != "cpu":
        count, causal = int(row["count"]), row["op"].endswith(", causal")
        bandwidth = _bandwidth(cluster, int(row["read_bytes"] + row["written_bytes"]) / count)
        return count * block_attention_seconds(
            row["shape"], int(row["flops"]) / count, causal, generation, rate / speed.attention, bandwidth, speed.start
        )
    rate *= min(1.0, 0.5 + width / 256) / speed.attention  # as the same figures show for heads of 64
    blocks = batch * heads * -(-queries // _TILE)
    waves = -(-blocks // generation.multiprocessors)
    filled = blocks / (waves * generation.multiprocessors)
    used = queries / (-(-queries // _TILE) * _TILE) * keys / (-(-keys // _TILE) * _TILE)
    return float(int(row["flops"]) / (rate * filled * used))
