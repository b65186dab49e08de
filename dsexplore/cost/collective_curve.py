"""`Curve`: time of one op in one group as a function of message bytes, non-decreasing in bytes and in nodes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from dsexplore.cost.cluster import Cluster, known_clusters
from dsexplore.cost.collective_mechanism import GroupShape, mechanism_time
from dsexplore.cost.interpolation import interpolated
from dsexplore.cost.measured_points import MeasuredFactors, evidence
from dsexplore.cost.range import Range

SMALLEST = 8.0
PER_OCTAVE = 4
OCTAVES = 38
"""Computed sizes, 8 B to 2 TiB; beyond, time is proportional to bytes."""
_PER_RANK = frozenset({"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"})
"""Ops whose message bytes are summed over all ranks."""


@dataclass(frozen=True)
class Uncertainty:
    """The known error of predictions of one kind: four of five measured times lie within it.

    Attributes:
        below: how far times are shorter, as a fraction of the prediction.
        above: how far they are longer.
        why: the source of the error, in words.
    """

    below: float
    above: float
    why: str


MEASURED = Uncertainty(0.12, 0.25, "measured on such a cluster")
MEASURED_NETWORK = Uncertainty(0.30, 0.30, "measured on such a cluster, over a network like its own")
RELATED = Uncertainty(0.20, 0.25, "from measured times of a related op, group or cluster")
MECHANISM = Uncertainty(0.20, 0.30, "from latencies and bandwidths alone")
NETWORK = Uncertainty(0.30, 0.50, "over a network that nobody measured")
SHARED = Uncertainty(0.20, 0.25, "measured on such a machine, whose cores other programs use too")
SHARED_RELATED = Uncertainty(0.30, 0.45, "from measured times of other ops, on cores that other programs use too")
HOST = Uncertainty(0.50, 7.00, "between processes of a machine that nobody measured, on fewer processors perhaps")
PCIE = Uncertainty(0.55, 3.00, "over PCIe, with and without peer access between the GPUs, which differ five times")
LAUNCH = 7e-6
"""Maximal seconds per rank that one process needs to launch a collective on all ranks of a node: 3.4 to 8 µs on ten
machines of 2, 4 and 8 GPUs."""
LAUNCHED = 8
"""Maximal number of ranks that one process drives."""
OUTSIDE = 0.01
"""Weight of a size that was not measured when decreasing times are averaged."""
BEYOND = 4.0
"""Factor on the largest measured size beyond which a prediction counts as related instead of measured."""


@dataclass(frozen=True)
class Curve:
    """Seconds by message bytes.

    Attributes:
        sizes: message bytes, ascending.
        low: low ends of the ranges at each size, non-decreasing.
        expected: predictions.
        high: high ends.
        error: known error at the sizes that matter most.
    """

    sizes: tuple[float, ...]
    low: tuple[float, ...]
    expected: tuple[float, ...]
    high: tuple[float, ...]
    error: Uncertainty

    def at(self, message_bytes: float) -> Range:
        """Return the predicted seconds of a collective with this many message bytes."""
        size = max(message_bytes, self.sizes[0])
        beyond = max(size / self.sizes[-1], 1.0)
        low, expected, high = (
            interpolated(self.sizes, ys, size) * beyond for ys in (self.low, self.expected, self.high)
        )
        return Range(low, expected, high)


def curve(cluster: Cluster, op: str, group: GroupShape) -> Curve:
    """Return the curve of an op for a group of two or more ranks."""
    return _curve(cluster, op, group)


@lru_cache(maxsize=512)
def _curve(cluster: Cluster, op: str, group: GroupShape) -> Curve:
    if group.nodes == 1:
        return _raw(cluster, op, group)
    below, above = _rungs(cluster, op, group)
    if above is None:
        raw = _raw(cluster, op, group)
        return raw if below is None else _not_below(raw, _curve(cluster, op, below))
    assert below is not None  # two nodes are always a rung, see `_rungs`
    return _between(_curve(cluster, op, below), _curve(cluster, op, above), op, (below, group, above))


def _rungs(cluster: Cluster, op: str, group: GroupShape) -> tuple[GroupShape | None, GroupShape | None]:
    """Return the reference groups below and above: the next lower node count, and the next higher one or None.

    Reference node counts are the powers of two and those for which this op was measured; `group` needs no upper one if
    its own is among them. Each costs at least what the one below does, and times between two are interpolated. So more
    nodes never cost less.
    """
    here = {table.nodes for table in cluster.measured if table.op == op and table.ranks_per_node == group.per_node}
    rungs = sorted(here | {1 << power for power in range(group.nodes.bit_length() + 1)})
    lower = [nodes for nodes in rungs if nodes < group.nodes and nodes * group.per_node > 1]
    below = group._replace(nodes=lower[-1]) if lower else None
    if group.nodes in rungs:
        return below, None
    return below, group._replace(nodes=min(nodes for nodes in rungs if nodes > group.nodes))


def _not_below(curve: Curve, fewer: Curve) -> Curve:
    """Return the curve, raised to that of fewer nodes wherever it is below.

    The bytes that cross a node's own links grow with the nodes at the same message bytes, in a ring, a tree and a
    pairwise exchange: ranks that pass messages through CPU memory do so on several nodes too.
    """
    floors = [fewer.at(size) for size in curve.sizes]
    return Curve(
        curve.sizes,
        tuple(max(a, floor.low) for a, floor in zip(curve.low, floors, strict=True)),
        tuple(max(a, floor.expected) for a, floor in zip(curve.expected, floors, strict=True)),
        tuple(max(a, floor.high) for a, floor in zip(curve.high, floors, strict=True)),
        curve.error,
    )


def _between(fewer: Curve, more: Curve, op: str, groups: tuple[GroupShape, GroupShape, GroupShape]) -> Curve:
    """Interpolate the curve of a node count between those of a lower and a higher one, at the same bytes per rank."""
    below, here, above = (float(group.nodes) for group in groups)
    share = math.log(here / below) / math.log(above / below)
    scales = (below / here, above / here) if op in _PER_RANK else (1.0, 1.0)
    pairs = [(fewer.at(size * scales[0]), more.at(size * scales[1])) for size in fewer.sizes]
    return Curve(
        fewer.sizes,
        tuple(a.low * (b.low / a.low) ** share for a, b in pairs),
        tuple(a.expected * (b.expected / a.expected) ** share for a, b in pairs),
        tuple(a.high * (b.high / a.high) ** share for a, b in pairs),
        more.error,
    )


def _raw(cluster: Cluster, op: str, group: GroupShape) -> Curve:
    """Return the mechanism's times scaled by measured evidence, made non-decreasing in bytes."""
    factors = evidence(cluster, op, group)
    sizes = tuple(SMALLEST * 2 ** (step / PER_OCTAVE) for step in range(OCTAVES * PER_OCTAVE + 1))
    seconds = [mechanism_time(cluster, op, size, group) * (factors.factor(size) if factors else 1.0) for size in sizes]
    errors = [uncertainty_of(cluster, group, factors, size) for size in sizes]
    launch = launching(cluster, group)
    measured = [factors is None or factors.reach[0] <= size <= factors.reach[1] for size in sizes]
    weights = [1.0 if inside else OUTSIDE for inside in measured]
    return Curve(
        sizes,
        ascending([time * (1 - error.below) for time, error in zip(seconds, errors, strict=True)], weights),
        ascending(seconds, weights),
        ascending(
            [max(time * (1 + error.above), launch) for time, error in zip(seconds, errors, strict=True)], weights
        ),
        uncertainty_of(cluster, group, factors, 1 << 20),
    )


def launching(cluster: Cluster, group: GroupShape) -> float:
    """Return the seconds that one process needs to launch a collective on all ranks of a node; 0 for hosts.

    Predictions expect one process per rank. Half of all published figures are of one process that drives all GPUs of a
    node, where short messages take that long, so the high end of a range is no less.
    """
    return 0.0 if cluster.topology == "host" else LAUNCH * min(group.per_node, LAUNCHED)


def ascending(values: list[float], weights: list[float]) -> tuple[float, ...]:
    """Return the closest non-decreasing values, by the logarithm: decreasing neighbors are averaged with `weights`.

    ``ascending([1.0, 4.0, 1.0, 8.0], [1.0] * 4)`` is ``(1.0, 2.0, 2.0, 8.0)``: libraries that change their algorithm at
    a size are sometimes faster with more bytes, but nobody would plan with that.
    """
    blocks: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        blocks.append((math.log(max(value, 1e-30)), weight, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (right, heavy, many), (left, light, more) = blocks.pop(), blocks.pop()
            blocks.append(((left * light + right * heavy) / (light + heavy), light + heavy, more + many))
    return tuple(math.exp(mean) for mean, _, count in blocks for _ in range(count))


@lru_cache
def _is_shipped(name: str) -> bool:
    """Return True if the cluster's file is part of this package, so its points were measured on another machine.

    Over PCIe these say little about the user's machine.
    """
    return name in known_clusters()


def uncertainty_of(cluster: Cluster, group: GroupShape, measured: MeasuredFactors | None, size: float) -> Uncertainty:
    """Return the known error of a prediction."""
    inside = measured is not None and measured.reach[0] / BEYOND <= size <= measured.reach[1] * BEYOND
    if measured is not None and cluster.topology == "host" and measured.distance < 0.9:
        return SHARED if measured.distance == 0 and inside else SHARED_RELATED
    if cluster.topology == "pcie" and group.nodes == 1 and _is_shipped(cluster.name):
        return PCIE
    if measured is not None and measured.distance == 0 and inside:
        return MEASURED if group.nodes == 1 else MEASURED_NETWORK
    if measured is not None and measured.distance == 0 and group.nodes == 1:
        return RELATED
    if group.nodes > 1:
        return MEASURED_NETWORK if measured is not None and measured.distance < 0.9 else NETWORK
    if cluster.topology in ("pcie", "host"):
        unmeasured = PCIE if cluster.topology == "pcie" else HOST
        return RELATED if measured is not None and inside and measured.distance < 0.9 else unmeasured
    return RELATED if measured is not None and inside else MECHANISM
