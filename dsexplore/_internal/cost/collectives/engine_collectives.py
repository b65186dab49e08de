"""All_reduce as inference engines do it for short messages, in a kernel of their own in place of NCCL's.

The ranks of one node read each other's memory over NVLink (vLLM, ``csrc/custom_all_reduce.cuh``; SGLang and
TensorRT-LLM have the same). In one shot each rank reads the messages of all others, and adds them. In two shots each
rank adds one part of all messages, then reads the sums of the others. Ranks meet by flags before they read, between two
shots, and at the end. Longer messages are left to NCCL.
"""

from __future__ import annotations

from dsexplore._internal.cost.cluster import Cluster, HardwareLike, as_cluster
from dsexplore._internal.cost.collectives.collective_duration import collective_time
from dsexplore._internal.cost.kernels.gpu_generations import GENERATIONS
from dsexplore._internal.cost.range import Range
from dsexplore._internal.errors import UsageError
from dsexplore._internal.signatures import names_arguments
from dsexplore._internal.trace.collectives import bus_factor

_START = 2.6e-6
"""Seconds in which a kernel starts, where no table of single kernels was published: as on Hopper."""
_READ = 0.8
"""Bandwidth of such reads beside that of NCCL's large messages: the engines' kernels take few multiprocessors."""
_BELOW, _ABOVE = 0.25, 0.55
"""The known error: benchmarks/custom_all_reduce_accuracy.py."""
_WHY = "engines' own all_reduce differs between them and their versions"


@names_arguments
def custom_all_reduce_time(message_bytes: float, world_size: int, hardware: HardwareLike = "h100") -> Range:
    """Return the seconds of an all_reduce in an inference engine, launched by a CUDA graph.

    Args:
        message_bytes: of the tensor that is reduced.
        world_size: number of ranks, of one node.
        hardware: a GPU, a cluster, the path of a cluster's file, or a `Cluster`.

    Returns:
        the expected time and its range; that of NCCL where this is shorter.

    Raises:
        UsageError: ranks or bytes that cannot be, or ranks whose GPUs cannot read each other's memory over a switch.

    Examples:
        >>> own = custom_all_reduce_time(64 << 10, 8)
        >>> own.expected < collective_time("all_reduce", 64 << 10, 8).expected / 2
        True
    """
    machine = as_cluster(hardware)
    if machine.topology != "switch":
        raise UsageError(
            f"{machine.name} has no switch over which each GPU reads the memory of all others: engines take NCCL "
            "there, whose time is that of collective_time"
        )
    library = collective_time("all_reduce", message_bytes, world_size, world_size, machine)
    if world_size == 1:
        return library
    return Range.within(_kernel_seconds(message_bytes, world_size, machine), _BELOW, _ABOVE, why=_WHY).at_most(library)


def _kernel_seconds(size: float, ranks: int, cluster: Cluster) -> float:
    """Return the seconds of the better of one shot and two."""
    flag = cluster.node.latency
    rate = cluster.node.bandwidth * cluster.node.achievable * _READ
    start = GENERATIONS[cluster.generation].start or _START
    one_shot = start + 2 * flag + size * (ranks - 1) / rate
    two = start + 3 * flag + size * bus_factor("all_reduce", ranks) / rate
    return min(one_shot, two)
