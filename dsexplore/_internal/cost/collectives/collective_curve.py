"""`Curve`: time of one op in one group as a function of message bytes, non-decreasing in bytes and in nodes."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from dsexplore._internal.cost.cluster import Cluster
from dsexplore._internal.cost.collectives.collective_mechanism import GroupShape, mechanism_time
from dsexplore._internal.cost.collectives.interpolation import interpolated
from dsexplore._internal.cost.collectives.measured_points import evidence
from dsexplore._internal.cost.collectives.uncertainty import LAUNCHED_BY_ONE, uncertainty_of
from dsexplore._internal.cost.range import Range

SMALLEST = 8.0
PER_OCTAVE = 4
OCTAVES = 38
"""Computed sizes, 8 B to 2 TiB; beyond, time is proportional to bytes."""
_PER_RANK = frozenset({"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"})
"""Ops whose message bytes are summed over all ranks."""


LAUNCH = 7e-6
"""Maximal seconds per rank that one process needs to launch a collective on all ranks of a node: 3.4 to 8 µs on ten
machines of 2, 4 and 8 GPUs."""
LAUNCHED = 8
"""Maximal number of ranks that one process drives."""
OUTSIDE = 0.01
"""Weight of a size that was not measured when decreasing times are averaged."""


@dataclass(frozen=True)
class Curve:
    """Seconds by message bytes.

    Attributes:
        sizes: message bytes, ascending.
        low: low ends of the ranges at each size, non-decreasing.
        expected: predictions.
        high: high ends.
        whys: what makes the range at each size as wide as it is, see `Uncertainty.why`.
    """

    sizes: tuple[float, ...]
    low: tuple[float, ...]
    expected: tuple[float, ...]
    high: tuple[float, ...]
    whys: tuple[str, ...]

    @classmethod
    def of(cls, sizes: tuple[float, ...], ranges: Sequence[Range]) -> Curve:
        """Build a curve from a range of seconds per size."""
        low, expected, high = zip(*((time.low, time.expected, time.high) for time in ranges), strict=True)
        return cls(sizes, low, expected, high, tuple(time.why for time in ranges))

    @property
    def ranges(self) -> list[Range]:
        """Seconds at each size."""
        columns = zip(self.low, self.expected, self.high, self.whys, strict=True)
        return [Range(low, expected, high, why=why) for low, expected, high, why in columns]

    def at(self, message_bytes: float) -> Range:
        """Return the predicted seconds of a collective with this many message bytes."""
        size = max(message_bytes, self.sizes[0])
        beyond = max(size / self.sizes[-1], 1.0)
        low, expected, high = (
            interpolated(self.sizes, ys, size) * beyond for ys in (self.low, self.expected, self.high)
        )
        return Range(low, expected, high, why=self.whys[bisect_left(self.sizes, size, hi=len(self.sizes) - 1)])


@lru_cache(maxsize=512)
def curve(cluster: Cluster, op: str, group: GroupShape) -> Curve:
    """Return the curve of an op for a group of two or more ranks."""
    if group.nodes == 1:
        return _unbounded_curve(cluster, op, group)
    below, above = _reference_groups(cluster, op, group)
    if above is None:
        unbounded = _unbounded_curve(cluster, op, group)
        return unbounded if below is None else _not_below(unbounded, curve(cluster, op, below))
    assert below is not None  # two nodes are always a reference, see `_reference_groups`
    return _between(curve(cluster, op, below), curve(cluster, op, above), op, (below, group, above))


def _reference_groups(cluster: Cluster, op: str, group: GroupShape) -> tuple[GroupShape | None, GroupShape | None]:
    """Return the reference groups below and above: the next lower node count, and the next higher one or None.

    Reference node counts are the powers of two and those for which this op was measured; `group` needs no upper one if
    its own is among them. Each costs at least what the one below does, and times between two are interpolated. So more
    nodes never cost less.
    """
    here = {table.nodes for table in cluster.measured if table.op == op and table.ranks_per_node == group.per_node}
    references = sorted(here | {1 << power for power in range(group.nodes.bit_length() + 1)})
    lower = [nodes for nodes in references if nodes < group.nodes and nodes * group.per_node > 1]
    below = group._replace(nodes=lower[-1]) if lower else None
    if group.nodes in references:
        return below, None
    return below, group._replace(nodes=min(nodes for nodes in references if nodes > group.nodes))


def _not_below(raised: Curve, fewer: Curve) -> Curve:
    """Return the curve, raised to that of fewer nodes wherever it is below.

    The bytes that cross a node's own links grow with the nodes at the same message bytes, in a ring, a tree and a
    pairwise exchange: ranks that pass messages through CPU memory do so on several nodes too.
    """
    floors = map(fewer.at, raised.sizes)
    ranges = [_combine_ends(max, *pair) for pair in zip(raised.ranges, floors, strict=True)]
    return Curve.of(raised.sizes, ranges)


def _between(fewer: Curve, more: Curve, op: str, groups: tuple[GroupShape, GroupShape, GroupShape]) -> Curve:
    """Interpolate the curve of a node count between those of a lower and a higher one, at the same bytes per rank."""
    below, here, above = (float(group.nodes) for group in groups)
    share = math.log(here / below) / math.log(above / below)
    to_fewer, to_more = (below / here, above / here) if op in _PER_RANK else (1.0, 1.0)

    def interpolate(of_fewer: float, of_more: float) -> float:
        return of_fewer * float((of_more / of_fewer) ** share)

    ranges = [_combine_ends(interpolate, fewer.at(size * to_fewer), more.at(size * to_more)) for size in fewer.sizes]
    return Curve.of(fewer.sizes, ranges)


def _combine_ends(function: Callable[[float, float], float], first: Range, second: Range) -> Range:
    """Return the range whose ends are a function of the ends of two ranges; the one with the later end says why."""
    return Range(
        function(first.low, second.low),
        function(first.expected, second.expected),
        function(first.high, second.high),
        why=(first if first.high > second.high else second).why,
    )


def _unbounded_curve(cluster: Cluster, op: str, group: GroupShape) -> Curve:
    """Return the mechanism's times scaled by measured evidence, made non-decreasing in bytes.

    They may still decrease with nodes.
    """
    factors = evidence(cluster, op, group)
    sizes = tuple(SMALLEST * 2 ** (step / PER_OCTAVE) for step in range(OCTAVES * PER_OCTAVE + 1))
    seconds = [mechanism_time(cluster, op, size, group) * (factors.factor(size) if factors else 1.0) for size in sizes]
    errors = [uncertainty_of(cluster, group, factors, size) for size in sizes]
    launch = launch_seconds(cluster, group)
    measured = [factors is None or factors.reach[0] <= size <= factors.reach[1] for size in sizes]
    weights = [1.0 if inside else OUTSIDE for inside in measured]
    lows = [time * (1 - error.below) for time, error in zip(seconds, errors, strict=True)]
    highs = [max(time * (1 + error.above), launch) for time, error in zip(seconds, errors, strict=True)]
    whys = tuple(LAUNCHED_BY_ONE if end <= launch else error.why for end, error in zip(highs, errors, strict=True))
    low, expected, high = (ascending(values, weights) for values in (lows, seconds, highs))
    return Curve(sizes, low, expected, high, whys)


def launch_seconds(cluster: Cluster, group: GroupShape) -> float:
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
    blocks: list[tuple[float, float, int]] = []  # of neighbors: mean logarithm, weight, count
    for value, own_weight in zip(values, weights, strict=True):
        blocks.append((math.log(max(value, 1e-30)), own_weight, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (mean, weight, count), (mean_before, weight_before, count_before) = blocks.pop(), blocks.pop()
            total = weight_before + weight
            blocks.append(((mean_before * weight_before + mean * weight) / total, total, count_before + count))
    return tuple(math.exp(mean) for mean, _, count in blocks for _ in range(count))
