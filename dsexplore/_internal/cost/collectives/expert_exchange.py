"""Dispatch and combine of DeepEP: how tokens go to the ranks of their experts and come back, in kernels of their own.

DeepEP (github.com/deepseek-ai/DeepEP, version 1; SGLang, vLLM and TensorRT-LLM call it) takes the place of two
all_to_alls. Its normal kernels, for training and prompts, send a token once to each node that has some of its experts,
over the network, and from there once to each of their ranks, over NVLink, with as many multiprocessors as they are
given: the slowest of the three decides. Its low-latency kernels, for a decoder's next tokens, send a token once for
each of its experts, straight to the expert's rank, with one multiprocessor for each expert.

The bandwidths that it reaches of a network, and the times of the low-latency kernels between nodes, are those that its
authors published (docs/legacy.md there, H800); the other constants were chosen by the tables of H100, and of H200
between nodes, that benchmarks/deepep_accuracy.py names.
"""

from __future__ import annotations

from math import comb, inf, log2
from typing import Literal

from dsexplore._internal.cost.cluster import Cluster, HardwareLike, as_cluster
from dsexplore._internal.cost.collectives.collective_mechanism import rank_bandwidth
from dsexplore._internal.cost.kernels.gpu_generations import GENERATIONS
from dsexplore._internal.cost.range import Range
from dsexplore._internal.errors import UsageError
from dsexplore._internal.signatures import names_arguments

_NETWORK = 0.96
"""Bandwidth that DeepEP reaches over a network, beside that of NCCL's large messages."""
_NVLINK = {"dispatch": 0.85, "combine": 0.88}
"""The same over NVLink, normal kernels."""
_NVLINK_LOW_LATENCY = {"dispatch": 0.72, "combine": 0.62}
_PROCESSOR = {"dispatch": (17.5e9, 12.5e9), "combine": (20e9, 10e9)}
"""B/s of received tokens for each multiprocessor of normal kernels: in one node, and where they pass a network too."""
_START = {"dispatch": 26e-6, "combine": 48e-6}
"""Seconds of the two kernels of a normal call, of which the first counts the tokens, and of their barriers."""
_FLAGS = 10
"""Latencies of NVLink that low-latency kernels wait for."""
_EXPERT = 13e-9
"""Seconds that they take for the count of each expert."""
_NETWORK_FLAGS = 1.5
"""Latencies of the network that low-latency kernels wait for; normal ones wait for `_NETWORK_BARRIER` each time that
the number of nodes doubles."""
_NETWORK_BARRIER = 4.6
_CAST = 2e9
"""Numbers that a multiprocessor casts and sends in a second, token after token."""
_SCALE = 4 / 128
"""Bytes of scales for each fp8 number."""
_HEADER = 16
"""Bytes that low-latency kernels send with a token."""
_BELOW, _ABOVE = 0.25, 0.45
"""The known error: benchmarks/deepep_accuracy.py."""
_WHY = "DeepEP was measured on GPUs of other nodes, and no other constants are known for this one"


@names_arguments
def deepep_time(
    op: Literal["dispatch", "combine"],
    tokens: int,
    hidden: int,
    experts: int,
    top_k: int,
    world_size: int,
    ranks_per_node: int | None = None,
    hardware: HardwareLike = "h100",
    *,
    low_latency: bool = False,
    token_bytes: float | None = None,
    nodes_per_token: int | None = None,
    multiprocessors: int = 20,
    imbalance: float = 1.0,
) -> Range:
    """Return the seconds in which DeepEP sends tokens to their experts, or their results back.

    Args:
        op: ``"dispatch"`` to the experts, or ``"combine"``, which adds what comes back.
        tokens: of each rank.
        hidden: numbers of a token.
        experts: of all ranks together, of which each token goes to `top_k`, all equally likely.
        top_k: experts of a token.
        world_size: ranks that divide the experts.
        ranks_per_node: how many of them share a node, or an NVLink domain; as a job of so many ranks has by default.
        hardware: a GPU, a cluster, the path of a cluster's file, or a `Cluster`.
        low_latency: the kernels for a decoder's next tokens, in place of those for prompts and training.
        token_bytes: of one token; by default fp8 with a scale for each 128 numbers to the experts, and bf16 back.
        nodes_per_token: the most nodes that a token's experts are on, as DeepSeek-V3's gate limits them to 4.
        multiprocessors: that the normal kernels have.
        imbalance: tokens of the rank that most go to, over the mean: all wait for it.

    Returns:
        the expected time and its range.

    Raises:
        UsageError: an unknown op, numbers that cannot be, or ranks whose GPUs are not joined by a switch.

    Examples:
        >>> fast, normal = (deepep_time("dispatch", 128, 7168, 256, 8, 8, low_latency=low) for low in (True, False))
        >>> print(f"{fast.expected * 1e6:.0f} us, {normal.expected * 1e6:.0f} us")
        38 us, 40 us
    """
    machine = as_cluster(hardware)
    if token_bytes is None:
        token_bytes = hidden * (1 + _SCALE) if op == "dispatch" else 2.0 * hidden
    counts = {"tokens": tokens, "hidden": hidden, "experts": experts, "top_k": top_k, "world_size": world_size}
    if ranks_per_node is None:
        ranks_per_node = min(world_size, machine.domain_of_job(max(world_size, 1)))
    nodes_per_token = nodes_per_token if nodes_per_token is not None else world_size
    counts |= {"ranks_per_node": ranks_per_node, "nodes_per_token": nodes_per_token, "multiprocessors": multiprocessors}
    _check(op, counts, ranks_per_node, {"token_bytes": token_bytes, "imbalance": imbalance}, machine)
    nodes = world_size // ranks_per_node
    if low_latency:
        sent = tokens * top_k * (token_bytes + _HEADER) * imbalance
        seconds = _low_latency(op, sent, (nodes, ranks_per_node), (tokens, hidden, experts), machine)
    else:
        reached = min(nodes, nodes_per_token)
        chosen = experts * reached // nodes
        to_nodes, to_ranks = (
            parts * (1 - _missed(chosen, chosen // parts, top_k)) for parts in (reached, reached * ranks_per_node)
        )
        received = tokens * token_bytes * imbalance
        shape = nodes, ranks_per_node
        seconds = _normal(op, received * to_nodes, received * to_ranks, shape, multiprocessors, machine)
    return Range.within(seconds, _BELOW, _ABOVE, why=_WHY)


def _low_latency(op: str, sent: float, shape: tuple[int, int], layer: tuple[int, int, int], cluster: Cluster) -> float:
    """Return the seconds in which a rank sends so many bytes to the experts of all, and as many come to it.

    Args:
        op: ``"dispatch"`` or ``"combine"``.
        sent: bytes.
        shape: nodes, and ranks of each.
        layer: tokens, the numbers of each, and experts.
        cluster: whose links.
    """
    (nodes, per_node), (tokens, hidden, experts) = shape, layer
    generation = GENERATIONS[cluster.generation]
    start = generation.start + _FLAGS * cluster.node.latency + _EXPERT * experts
    over_nvlink = sent * (per_node - 1) / (nodes * per_node) / (_nvlink(cluster, per_node) * _NVLINK_LOW_LATENCY[op])
    casting = -(-tokens // min(experts, generation.multiprocessors)) * hidden / _CAST if op == "dispatch" else 0.0
    seconds = max(over_nvlink, casting)
    if nodes > 1:
        assert cluster.network is not None
        start += _NETWORK_FLAGS * cluster.network.latency
        seconds = max(seconds, sent * (nodes - 1) / nodes / _network(cluster))
    return start + seconds


def _normal(
    op: str, to_nodes: float, to_ranks: float, shape: tuple[int, int], multiprocessors: int, cluster: Cluster
) -> float:
    """Return the seconds in which a rank's bytes of tokens reach so many nodes' and ranks' worth of them."""
    nodes, per_node = shape
    start = _START[op]
    over_nvlink = to_ranks * (per_node - 1) / per_node / (_nvlink(cluster, per_node) * _NVLINK[op])
    seconds = max(over_nvlink, to_ranks / (multiprocessors * _PROCESSOR[op][nodes > 1]))
    if nodes > 1:
        assert cluster.network is not None
        start += _NETWORK_BARRIER * cluster.network.latency * log2(nodes)
        seconds = max(seconds, to_nodes * (nodes - 1) / nodes / _network(cluster))
    return start + seconds


def _nvlink(cluster: Cluster, per_node: int) -> float:
    return rank_bandwidth(cluster, max(per_node, 2))


def _network(cluster: Cluster) -> float:
    assert cluster.network is not None
    return cluster.network.bandwidth * cluster.network.achievable * _NETWORK


def _missed(experts: int, some: int, top_k: int) -> float:
    """Return the probability that none of `some` experts is among the `top_k` chosen ones of all."""
    return comb(experts - some, top_k) / comb(experts, top_k)


def _check(
    op: str,
    counts: dict[str, int],
    ranks_per_node: int,
    sizes: dict[str, float],
    cluster: Cluster,
) -> None:
    """Raise `UsageError` for what cannot be."""
    if op not in _START:
        raise UsageError(f"op={op!r} is not known: give 'dispatch' or 'combine'")
    for name, count in counts.items():
        if not isinstance(count, int) or count < 1:
            raise UsageError(f"{name}={count!r} cannot be: give a whole number, 1 or more")
    for name, size in sizes.items():
        least = 1 if name == "imbalance" else 0
        if not least <= size < inf:
            raise UsageError(f"{name}={size!r} cannot be: give a finite number, {least} or more")
    experts, top_k, ranks = counts["experts"], counts["top_k"], counts["world_size"]
    if top_k > experts:
        raise UsageError(f"top_k={top_k} of {experts} experts: a token goes to each of them once at most")
    if experts % ranks:
        raise UsageError(f"{experts} experts do not divide into {ranks} ranks of as many each")
    if ranks % ranks_per_node:
        raise UsageError(f"{ranks} ranks do not divide into nodes of {ranks_per_node}")
    on_nodes = experts * min(ranks // ranks_per_node, counts["nodes_per_token"]) * ranks_per_node // ranks
    if top_k > on_nodes:
        raise UsageError(f"top_k={top_k}: nodes_per_token={counts['nodes_per_token']} leaves {on_nodes} experts")
    if cluster.topology != "switch":
        raise UsageError(f"{cluster.name} has no switch over which each GPU writes to all others, which DeepEP needs")
    if ranks_per_node > cluster.ranks_per_domain:
        raise UsageError(
            f"ranks_per_node={ranks_per_node}: the {cluster.domain_kind} has {cluster.ranks_per_domain} ranks"
        )
    if ranks > ranks_per_node and cluster.network is None:
        raise UsageError(
            f"{cluster.name} has no network, so {ranks} ranks do not fit: it has nodes of {ranks_per_node}"
        )
