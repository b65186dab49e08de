"""Measured times of collectives: interpolated between their points, and what they say about others of their kind."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dsexplore.cost.cluster import Cluster, Measured
from dsexplore.cost.collective_mechanism import Group, family, mechanism_time


def interpolated(xs: Sequence[float], ys: Sequence[float], x: float) -> float:
    """The value at x of the line through points, straight in the logarithms; the end values outside of them.

    ``interpolated([1, 4], [10, 40], 2)`` is 20.
    """
    if x <= xs[0]:
        return ys[0]
    if x >= xs[-1]:
        return ys[-1]
    right = bisect.bisect_right(xs, x)
    left = right - 1
    share = math.log(x / xs[left]) / math.log(xs[right] / xs[left])
    return ys[left] * math.pow(ys[right] / ys[left], share)


@dataclass(frozen=True)
class Evidence:
    """How measured times of one group differ from the mechanism, as factors by message bytes.

    Attributes:
        sizes: message bytes, ascending.
        factors: measured seconds over those of the mechanism.
        distance: 0 for the very op and group, larger the less they have in common.
        weight: the power to which a factor is taken over, 0 to 1.
    """

    sizes: tuple[float, ...]
    factors: tuple[float, ...]
    distance: float
    weight: float

    def factor(self, size: float) -> float:
        """By what the mechanism's time of another collective is multiplied."""
        return math.pow(interpolated(self.sizes, self.factors, size), self.weight)


def evidence(cluster: Cluster, op: str, group: Group) -> Evidence | None:
    """The measured table that says most about a collective; None where nothing comparable was measured."""
    return min(_candidates(cluster, op, group), key=lambda found: found.distance, default=None)


def _candidates(cluster: Cluster, op: str, group: Group) -> Iterator[Evidence]:
    relatives = [(cluster, 0.0)]
    if cluster.like:
        relatives.append((Cluster.load(cluster.like), 0.5))
    kind = family(cluster, op, group)
    for relative, further in relatives:
        for table in relative.measured:
            measured = Group(table.nodes, table.ranks_per_node)
            if (measured.nodes > 1) == (group.nodes > 1) and family(relative, table.op, measured) == kind:
                yield _compared(relative, table, measured, further + _distance(op, group, table.op, measured))


def _distance(op: str, group: Group, other: str, measured: Group) -> float:
    """Doublings of nodes and of ranks per node that lie between two groups, and a third of one for another op."""
    nodes = abs(math.log2(group.nodes / measured.nodes))
    return nodes + abs(math.log2(group.per_node / measured.per_node)) + (op != other) / 3


def _compared(cluster: Cluster, table: Measured, group: Group, distance: float) -> Evidence:
    factors = tuple(
        seconds / mechanism_time(cluster, table.op, size, group)
        for size, seconds in zip(table.message_bytes, table.seconds, strict=True)
    )
    weight = 1.0 if distance < 0.9 else 0.5
    return Evidence(tuple(map(float, table.message_bytes)), factors, distance, weight)
