"""Times of collectives from the algorithms of NCCL, RCCL and gloo: latency of steps, bandwidth, and pipeline ramp-up.

Each algorithm is a straight line in the message bytes S with one bend: ``latency + S / bandwidth + ramp``, where the
ramp grows like S to the power 0.36. On published tables of H100, H200, H20, B200 and A100 nodes, a line alone misses
the middle sizes by a quarter; the exponent is the same for all of them. A tree over two nodes has the ramp of its
file, plus half of it for each further level. Short messages use another protocol with half the ramp and less
bandwidth. A library chooses the algorithm that its own model predicts to be fastest; here the fastest is chosen.

| algorithm | used for | steps of a group of n ranks | bytes over a link |
|---|---|---|---|
| ring | all_reduce, all_gather, reduce_scatter | 2(n−1), n−1, n−1 | S × bus factor |
| chain | broadcast, reduce | n−1 | S |
| tree over nodes, chain inside | all_reduce on several nodes | 2(ranks per node − 1 + log2(nodes)) | S each way |
| switch | all_reduce of 6 or more ranks of an NVSwitch node | as the ring's | S once |
| pairwise | all_to_all, gather, scatter | 1 | S × bus factor |
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from dsexplore._internal.cost.cluster import Cluster, Link
from dsexplore._internal.cost.collectives.host_ranks import file_costs, work
from dsexplore._internal.trace.collectives import bus_factor

RAMP_BYTES = 32 << 20
"""Message bytes for which cluster files state the ramp."""
RAMP_POWER = 0.36
PAIR = 0.9
"""Fraction of a switched link's bandwidth that two ranks reach: they have half as many rings as larger groups."""
CUBE = (1 / 3, 2 / 3)
"""Fraction of a GPU's links to one other GPU, and to three, in a hybrid cube mesh (DGX-1): 2 and 4 of 6."""
PER_PEER = 0.3e-6
"""Seconds that one more peer adds to a pairwise exchange: all_to_all of 8 ranks of H20 takes 1.5 µs more than send."""
PAIRWISE_OVERHEAD = 2.1e-6
"""Seconds by which a pairwise exchange starts later than a ring."""
SHORT_RAMP = 0.5
"""Ramp of short messages as a fraction of the full one."""
MESSAGE_BYTES = 64 << 20
"""Point-to-point messages up to this size use few of NCCL's channels, whatever the link's bandwidth."""
MESSAGE_BANDWIDTH = 85e9
"""B/s of such a message: send on 8 B200 takes 118 µs for 8 MiB, 793 µs for 64 MiB, and 859 µs for 512 MiB."""
RING_STEP_BYTES = 1 << 20
"""Bytes of a ring's step from which on it takes `Link.ring_step` at least; a smaller one takes less in proportion."""
PAIRWISE_NETWORK = 0.75
"""Fraction of the network bandwidth that an all_to_all reaches, in which each rank sends to many others at once."""


class GroupShape(NamedTuple):
    """The ranks of a collective: `per_node` ranks on each of `nodes` nodes.

    Attributes:
        nodes: nodes, or NVLink domains.
        per_node: ranks on each of them.
        aligned: whether the ranks have the same places on each node, so that rings and trees stay on the rails of a
            network that has them.
    """

    nodes: int
    per_node: int
    aligned: bool = True

    @property
    def ranks(self) -> int:
        """Number of ranks of the group."""
        return self.nodes * self.per_node


def mechanism_time(cluster: Cluster, op: str, message_bytes: float, group: GroupShape) -> float:
    """Return the seconds of the fastest algorithm of an op, for a group of two or more ranks."""
    if op == "barrier":
        op, message_bytes = "all_reduce", 4.0
    return min(_times(cluster, op, message_bytes, group))


def family(cluster: Cluster, op: str, group: GroupShape) -> str:
    """Return the family of a collective: measured times of one member inform predictions of the others."""
    several = "network " if group.nodes > 1 else ""
    if op in ("all_gather", "reduce_scatter"):
        return f"{several}gather ring"
    if op in ("broadcast", "reduce"):
        return f"{several}chain"
    if op in ("all_to_all", "gather", "scatter"):
        return f"{several}pairwise"
    if op in ("send", "recv"):
        return f"{several}message"
    reduced = cluster.reduction is not None and group.per_node >= cluster.reduction.smallest_group
    return f"{several}all_reduce {'in the switch' if reduced and not several else 'ring'}"


def _times(cluster: Cluster, op: str, size: float, group: GroupShape) -> Iterator[float]:
    """Yield the seconds of each algorithm that the library might choose."""
    if cluster.topology == "host":
        yield file_costs(cluster).seconds(work(op, group.ranks), size)
    elif op in ("send", "recv"):
        yield from _message(cluster, size, group)
    elif op in ("all_to_all", "gather", "scatter"):
        yield from _pairwise(cluster, op, size, group)
    elif group.nodes == 1:
        yield from _node_seconds(cluster, op, size, group.ranks)
    else:
        yield from _ring_of_nodes(cluster, op, size, group)
        if op == "all_reduce":
            yield from _tree_of_nodes(cluster, size, group)


def _steps(op: str, count: int) -> int:
    return (2 if op == "all_reduce" else 1) * (count - 1)


def _ramp(seconds: float, size: float) -> float:
    return seconds * math.pow(size / RAMP_BYTES, RAMP_POWER)


def rank_bandwidth(cluster: Cluster, ranks: int) -> float:
    """Return the peak B/s that each of `ranks` ranks of one node sends and receives."""
    link = cluster.node
    whole = link.bandwidth * link.achievable
    if cluster.topology == "mesh":
        return whole * (ranks - 1)
    if cluster.topology == "cube":
        return whole * (CUBE[0] if ranks == 2 else CUBE[1] if ranks <= 4 else 1.0)
    return whole * (PAIR if ranks == 2 and cluster.topology == "switch" else 1.0)


def _short_and_long(
    link: Link, start: float, wire_bytes: float, rates: tuple[float, float], size: float
) -> Iterator[float]:
    """Yield the seconds of both protocols: the low-latency one for short messages, and the one at full link speed."""
    short, whole = rates
    yield start + wire_bytes / short + SHORT_RAMP * _ramp(link.ramp, size)
    yield start + wire_bytes / whole + _ramp(link.ramp, size)


def _node_seconds(cluster: Cluster, op: str, size: float, ranks: int) -> Iterator[float]:
    link, wire_bytes = cluster.node, size * bus_factor(op, ranks)
    steps = 2 if _is_direct(cluster, ranks) else _steps(op, ranks)
    start = cluster.collective_overhead + steps * link.latency
    whole = rank_bandwidth(cluster, ranks)
    yield from _short_and_long(link, start, wire_bytes, (min(link.short_bandwidth, whole), whole), size)
    reduction = cluster.reduction
    if op == "all_reduce" and reduction is not None and ranks >= reduction.smallest_group:
        start = cluster.collective_overhead + _steps(op, ranks) * link.latency
        yield start + size / reduction.bandwidth + _ramp(reduction.ramp, size)


def _is_direct(cluster: Cluster, ranks: int) -> bool:
    """Return True if each rank talks to all others at once, as RCCL does if all links of a mesh are present."""
    return cluster.topology == "mesh" and ranks == cluster.ranks_per_domain


def _network(cluster: Cluster, group: GroupShape) -> Link:
    """Return the network that a group of several nodes has: between pods, and between rails, there may be less.

    Only a part of the ranks send to another pod at a time in a ring, but those hold up all others. In a pod, a message
    between ranks of one rail passes one switch, and others pass those above.
    """
    network = cluster.network
    assert network is not None  # collective_time refuses groups of several nodes elsewhere
    in_pod = not network.pod or group.nodes * cluster.ranks_per_domain <= network.pod
    if in_pod and (group.aligned or not network.rails):
        return network
    less = network.oversubscription
    return replace(network, bandwidth=network.bandwidth / less, short_bandwidth=network.short_bandwidth / less)


def _ring_of_nodes(cluster: Cluster, op: str, size: float, group: GroupShape) -> Iterator[float]:
    network, wire_bytes = _network(cluster, group), size * bus_factor(op, group.ranks)
    hops = _steps(op, group.nodes)
    inside = _steps(op, group.ranks) - hops
    start = cluster.collective_overhead + inside * cluster.node.latency + hops * network.latency
    whole = group.per_node * network.bandwidth * network.achievable
    if group.per_node > 1:
        whole = min(whole, rank_bandwidth(cluster, group.per_node))
    rate = min(group.per_node * network.short_bandwidth, cluster.node.short_bandwidth, whole)
    least = _steps(op, group.ranks) * network.ring_step * min(1.0, size / group.ranks / RING_STEP_BYTES)
    for seconds in _short_and_long(network, start, wire_bytes, (rate, whole), size):
        yield max(seconds, least)


def _tree_of_nodes(cluster: Cluster, size: float, group: GroupShape) -> Iterator[float]:
    network = _network(cluster, group)
    up = (group.per_node - 1) * cluster.node.latency + math.ceil(math.log2(group.nodes)) * network.latency
    start = cluster.collective_overhead + 2 * up
    whole = group.per_node * network.bandwidth * network.achievable / (1 if group.nodes == 2 else 2)
    if group.per_node > 1:
        whole = min(whole, _tree_bandwidth(cluster, group.per_node))
    short = min(group.per_node * network.short_bandwidth, whole)
    deeper = replace(network, ramp=network.ramp * (1 + math.log2(group.nodes)) / 2)
    yield from _short_and_long(deeper, start, size, (short, whole), size)


def _tree_bandwidth(cluster: Cluster, per_node: int) -> float:
    """Return the message bytes per second that a node's part of a tree passes on."""
    reduction = cluster.reduction
    if reduction is not None and per_node >= reduction.smallest_group:
        return reduction.bandwidth
    return rank_bandwidth(cluster, per_node) / 2


def _pairwise(cluster: Cluster, op: str, size: float, group: GroupShape) -> Iterator[float]:
    link, ranks = cluster.node, group.ranks
    start = cluster.collective_overhead + PAIRWISE_OVERHEAD + (ranks - 2) * PER_PEER
    wire_bytes = size * bus_factor(op, ranks)
    if group.nodes == 1:
        whole = rank_bandwidth(cluster, ranks)
        yield from _short_and_long(link, start, wire_bytes, (min(link.short_bandwidth, whole), whole), size)
        return
    network = _network(cluster, group)
    outside = size * (ranks - group.per_node) / ranks
    away = outside / (network.bandwidth * network.achievable * PAIRWISE_NETWORK)
    if network.rails and network is cluster.network:  # each rank's adapter sends all of it, the switches above a part
        rails = min(group.per_node, network.rails)
        away *= max(1.0, network.oversubscription * (rails - 1) / rails)
    inside = wire_bytes / (rank_bandwidth(cluster, group.per_node) if group.per_node > 1 else math.inf)
    yield start + network.latency + max(away, inside) + _ramp(network.ramp, size)


def _message(cluster: Cluster, size: float, group: GroupShape) -> Iterator[float]:
    link = cluster.node if group.nodes == 1 else _network(cluster, group)
    start = cluster.collective_overhead + PAIRWISE_OVERHEAD + link.latency * (group.nodes > 1)
    whole = rank_bandwidth(cluster, 2) if group.nodes == 1 else link.bandwidth * link.achievable
    alone = min(size, MESSAGE_BYTES) / MESSAGE_BANDWIDTH if cluster.library == "nccl" else 0.0
    yield start + max(size / whole, alone) + _ramp(link.ramp, size)
