"""Measured times of collectives: interpolation between them, and factors for similar collectives."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from dsexplore._internal.cost.cluster import Cluster, Link, Measured, known_clusters
from dsexplore._internal.cost.collectives.collective_mechanism import GroupShape, family, mechanism_time
from dsexplore._internal.cost.collectives.host_ranks import (
    LARGE,
    STARTED,
    Costs,
    HostWork,
    measured_costs,
    nearest_tables,
    shortest_seconds,
    work,
)
from dsexplore._internal.cost.collectives.interpolation import interpolated
from dsexplore._internal.units import format_bytes, format_rate

FADING = 8.0
"""At this many times below the smallest measured size, a factor counts by its square root."""

NEAR_RELATIVE = 0.9
"""Distance (see `_distance`) below which factors count in full: another op, a similar cluster, or both, but not twice
the nodes or ranks per node. The logarithm of factors at larger distances is halved."""


@dataclass(frozen=True)
class MeasuredFactors:
    """Ratios of measured times of one group to the mechanism's, by message bytes.

    Attributes:
        sizes: message bytes, ascending.
        factors: measured seconds divided by those of the mechanism.
        distance: 0 for the same op and group, larger for less similar ones; see `_distance`.
        weight: exponent of the factors, 0 to 1.
        reach: smallest and largest measured message bytes.
        fades: whether the factors approach 1 below the smallest measured message.
    """

    sizes: tuple[float, ...]
    factors: tuple[float, ...]
    distance: float
    weight: float
    reach: tuple[float, float]
    fades: bool = True

    def factor(self, size: float) -> float:
        """Return the factor on the mechanism's time of a message of `size` bytes.

        Below the smallest measured size, the exponent halves with each `FADING`-fold smaller size: large messages
        measure bandwidth, and short ones take latency alone.
        """
        smallest = self.reach[0] if self.fades else size
        below = math.log(max(smallest / max(size, 1.0), 1.0), FADING)
        return math.pow(interpolated(self.sizes, self.factors, size), self.weight * 2.0**-below)


def evidence(cluster: Cluster, op: str, group: GroupShape) -> MeasuredFactors | None:
    """Return the evidence of the nearest measured tables for a collective; None if nothing comparable was measured."""
    if cluster.topology == "host" and cluster.measured:
        return _single_machine_factors(cluster, op, group)
    near = list(_candidates(cluster, op, group))
    if not near:
        return None
    nearest = min(candidate.distance for candidate in near)
    return _merged([candidate for candidate in near if candidate.distance == nearest])


def _merged(candidates: list[MeasuredFactors]) -> MeasuredFactors:
    """Merge factors of one group: the geometric mean, at each size, of those whose reach includes it."""
    if len(candidates) == 1:
        return candidates[0]
    sizes = sorted({size for candidate in candidates for size in candidate.sizes})
    factors = []
    for size in sizes:
        here = [candidate for candidate in candidates if candidate.reach[0] <= size <= candidate.reach[1]]
        logs = [math.log(interpolated(candidate.sizes, candidate.factors, size)) for candidate in here]
        factors.append(math.exp(math.fsum(logs) / len(logs)))
    return MeasuredFactors(
        tuple(sizes), tuple(factors), candidates[0].distance, candidates[0].weight, (sizes[0], sizes[-1])
    )


def _single_machine_factors(cluster: Cluster, op: str, group: GroupShape) -> MeasuredFactors:
    """Return the factors of an op from all measured ops of the most similar group on one machine.

    Costs per byte and step are fitted to all ops, and corrected by the measured times of the op itself, if any.
    """
    tables = nearest_tables(cluster, group.ranks)
    nearest, costs = tables[0].ranks_per_node, measured_costs(cluster, tables)
    measured = sorted({float(size) for table in tables for size in table.message_bytes})
    sizes = sorted({*measured, *(2.0**power for power in range(3, 41))})
    done = work(op, group.ranks)
    seconds = [costs.seconds(done, size) for size in sizes]
    distance = abs(math.log2(nearest / group.ranks)) + 1 / 3
    table_of_op = next((table for table in tables if table.op == op and nearest == group.ranks), None)
    if table_of_op is not None:
        seconds = _table_seconds(table_of_op, done, costs, sizes)
        distance, measured = 0.0, [float(size) for size in table_of_op.message_bytes]
    factors = tuple(true / mechanism_time(cluster, op, size, group) for true, size in zip(seconds, sizes, strict=True))
    return MeasuredFactors(tuple(sizes), factors, distance, 1.0, (measured[0], measured[-1]), fades=False)


def _table_seconds(table: Measured, done: HostWork, costs: Costs, sizes: Iterable[float]) -> list[float]:
    """Return the seconds at each size: measured ones, extrapolated by the op's start-up time and the costs per byte.

    If the longest measured time is mostly start-up, larger messages take the costs per byte unchanged.
    """
    start = shortest_seconds(table) or costs.start_seconds(done)
    points = {
        float(size): true / (start + costs.byte_seconds(done, size))
        for size, true in zip(table.message_bytes, table.seconds, strict=True)
    }
    if table.seconds[-1] <= STARTED * start:
        points[max(table.message_bytes[-1] * 2, LARGE / done.moved)] = 1.0
    return [
        interpolated([*points], [*points.values()], size) * (start + costs.byte_seconds(done, size)) for size in sizes
    ]


def _candidates(cluster: Cluster, op: str, group: GroupShape) -> Iterator[MeasuredFactors]:
    relatives = [(cluster, 0.0)]
    if cluster.like:
        relatives.append((Cluster.load(cluster.like), 0.5))
    kind = family(cluster, op, group)
    for relative, further in relatives:
        for table in relative.measured:
            measured = GroupShape(table.nodes, table.ranks_per_node)
            if family(relative, table.op, measured) == kind:
                distance = further + _distance(op, group, table.op, measured)
                yield _compared(measured_on(relative, table), table, measured, distance)


def _distance(op: str, group: GroupShape, other: str, measured: GroupShape) -> float:
    """Return the doublings of nodes and of ranks per node between two groups, plus 1/3 for a different op."""
    nodes = abs(math.log2(group.nodes / measured.nodes))
    return nodes + abs(math.log2(group.per_node / measured.per_node)) + (op != other) / 3


def _compared(cluster: Cluster, table: Measured, group: GroupShape, distance: float) -> MeasuredFactors:
    factors = tuple(
        seconds / mechanism_time(cluster, table.op, size, group)
        for size, seconds in zip(table.message_bytes, table.seconds, strict=True)
    )
    weight = 1.0 if distance < NEAR_RELATIVE else 0.5
    sizes = tuple(map(float, table.message_bytes))
    return MeasuredFactors(sizes, factors, distance, weight, (sizes[0], sizes[-1]))


def measured_on(cluster: Cluster, table: Measured) -> Cluster:
    """Return the cluster on whose links a table of `cluster` was measured.

    It is `cluster`, unless the table is an exact copy of a table of this package. A user's file is then a changed copy
    of that cluster; factors relative to the original's links apply to the changed links, so that a faster link never
    makes a collective slower.
    """
    if cluster.name in _shipped() and Cluster.load(cluster.name) is cluster:
        return cluster
    return _tables_of_package().get(_content(table), cluster)


@lru_cache(maxsize=1)
def _shipped() -> frozenset[str]:
    return frozenset(known_clusters())


@lru_cache(maxsize=1)
def _tables_of_package() -> dict[tuple[object, ...], Cluster]:
    """Return {content of a table of this package: its cluster}."""
    clusters = map(Cluster.load, known_clusters())
    return {_content(table): cluster for cluster in clusters for table in cluster.measured}


def _content(table: Measured) -> tuple[object, ...]:
    return table.op, table.nodes, table.ranks_per_node, table.message_bytes, table.seconds


_BELIEVED = (0.6, 2.5)
"""Plausible range of measured divided by expected seconds of large messages; outside, another link was measured."""
_LARGE = 64 << 20
"""Message bytes from which on the time depends on bandwidth alone."""


@lru_cache(maxsize=128)
def contradictions(cluster: Cluster) -> tuple[str, ...]:
    """Return a sentence for each link whose measured times contradict its stated bandwidth.

    Times that are an exact copy of those of a cluster of this package with another bandwidth are scaled to the stated
    one. Other times are used as measured, so the stated bandwidth has little effect.
    """
    sentences: dict[str, str] = {}
    for table in cluster.measured if cluster.topology != "host" else ():
        which = "node" if table.nodes == 1 else "network"
        link = cluster.node if table.nodes == 1 else cluster.network
        if which in sentences or link is None:
            continue
        doubt = _other_link(cluster, table, link, which) or _other_time(cluster, table)
        if doubt:
            sentences[which] = (
                f"{cluster.name} states {format_rate(link.bandwidth)} as the bandwidth of its {which}, but {doubt}"
            )
    return tuple(sentences.values())


def _other_link(cluster: Cluster, table: Measured, link: Link, which: str) -> str:
    """Return a warning if a table is copied from a cluster of this package with another bandwidth; else empty."""
    other = measured_on(cluster, table)
    link_there = other.node if which == "node" else other.network
    if link_there is None or link_there.bandwidth * link_there.achievable == link.bandwidth * link.achievable:
        return ""
    return (
        f"its times of {table.op} are those of {other.name}, which has {format_rate(link_there.bandwidth)}: they are "
        "scaled by what the two links differ, so remove those tables, or measure your own"
    )


def _other_time(cluster: Cluster, table: Measured) -> str:
    """Return a warning if a table's largest message is slower or faster than its links allow; else empty."""
    size, seconds = table.message_bytes[-1], table.seconds[-1]
    group = GroupShape(table.nodes, table.ranks_per_node)
    if size < _LARGE or group.ranks < 2 or cluster.topology == "pcie" or cluster.name in known_clusters():
        return ""
    ratio = seconds / mechanism_time(cluster, table.op, size, group)
    if _BELIEVED[0] <= ratio <= _BELIEVED[1]:
        return ""
    times = f"{ratio:.1f} times as long as" if ratio > 1 else f"{1 / ratio:.1f} times less than"
    return (
        f"{table.op} of {format_bytes(size)} was measured to take {times} that allows: measured times decide what is "
        "predicted, so remove those tables, or state the bandwidth they had"
    )
