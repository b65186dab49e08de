"""Collectives of ranks that share the cores of one machine, as gloo's do.

All that the ranks send and copy goes through the same cores, so what counts is how many bytes all ranks move together
and how often one waits for another: ``overhead + steps * latency + moved * S / bandwidth``. A step is one wait for a
message that is under way; a rank that only sends need not wait, which is why a broadcast has less than one.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dsexplore._internal.cost.cluster import Cluster, Measured
from dsexplore._internal.cost.collectives.interpolation import interpolated

COPIED = 0.4
"""The cost of a byte that a rank copies into new memory, relative to one that is sent and received."""
STARTED = 2.0
"""Times a collective of no bytes, from where on a measured time says something about bytes."""
SHORT = 8 << 10
"""Message bytes up to which a time is all latency."""
CACHED, LARGE = 1 << 20, 64 << 20
"""Bytes moved for which a file's short bandwidth and its bandwidth hold; below the first, bytes stay in caches."""
LEAST_BYTES = 512 << 10
"""Bytes moved from which a measured time says something about bytes, and not about other programs."""
NEAR = 8
"""Times the most that was moved when measuring, up to which that says what a byte costs."""


class HostWork(NamedTuple):
    """The work of an op on a machine: waits for messages, and bytes of all ranks together per message byte."""

    steps: float
    moved: float


class UnitCurve(NamedTuple):
    """Seconds per byte by the bytes that all ranks move."""

    moved: tuple[float, ...]
    seconds: tuple[float, ...]


class Costs(NamedTuple):
    """The costs of such work on a machine.

    Attributes:
        overhead: seconds of a call without its steps.
        latency: seconds of a step.
        units: what a byte costs, one curve per measured table.
    """

    overhead: float
    latency: float
    units: tuple[UnitCurve, ...]

    def seconds(self, work: HostWork, size: float) -> float:
        """Return the seconds of a collective."""
        return self.start_seconds(work) + self.byte_seconds(work, size)

    def start_seconds(self, work: HostWork) -> float:
        """Return the seconds of a collective that do not depend on its bytes."""
        return self.overhead + work.steps * self.latency

    def byte_seconds(self, work: HostWork, size: float) -> float:
        """Return the seconds of a collective that its bytes take."""
        nbytes = work.moved * size
        return nbytes * statistics.median(interpolated(*curve, nbytes) for curve in self.units)


def work(op: str, ranks: int) -> HostWork:
    """Return the steps and bytes of an op in gloo: rings for all_reduce, all_gather and reduce, a tree for broadcast.

    torch's reduce_scatter on gloo is an all_reduce of a copy. A send counts as one in a ring where all ranks send.
    """
    others = ranks - 1
    return {
        "all_reduce": HostWork(2 * others, 2 * others),
        "reduce_scatter": HostWork(2 * others + 1, 2 * others + 1.6 * COPIED * ranks),
        "all_gather": HostWork(1.25 * others, others + COPIED * ranks),
        "all_to_all": HostWork(1 + 0.4 * (ranks - 2), others),
        "broadcast": HostWork(math.log2(ranks) / 2, others),
        "reduce": HostWork(ranks, others * (1 + 1 / ranks)),
        "gather": HostWork(1, others / ranks + COPIED),
        "scatter": HostWork(1, others / ranks),
    }.get(op, HostWork(1, ranks))


def file_costs(cluster: Cluster) -> Costs:
    """Return the costs that the cluster file states, without measured points."""
    return Costs(cluster.collective_overhead, cluster.node.latency, (_file_units(cluster),))


def _file_units(cluster: Cluster) -> UnitCurve:
    link = cluster.node
    return UnitCurve((CACHED, LARGE), (1 / link.short_bandwidth, 1 / (link.bandwidth * link.achievable)))


def nearest_tables(cluster: Cluster, ranks: int) -> list[Measured]:
    """Return the tables of the measured group size closest to `ranks`, by ratio; empty if nothing was measured."""
    groups = {table.ranks_per_node for table in cluster.measured}
    nearest = min(groups, key=lambda other: (abs(math.log2(other / ranks)), other), default=0)
    return [table for table in cluster.measured if table.ranks_per_node == nearest]


def waiting_seconds(cluster: Cluster, op: str, ranks: int) -> float:
    """Return the seconds in which a rank of a collective waits for messages: its time without any bytes."""
    tables = nearest_tables(cluster, ranks)
    costs = measured_costs(cluster, tables) if tables else file_costs(cluster)
    return costs.start_seconds(work(op, ranks))


def measured_costs(cluster: Cluster, tables: Sequence[Measured]) -> Costs:
    """Return the costs of a machine, fitted to measured times of some ops with equal numbers of ranks."""
    overhead, latency = _latencies(cluster, tables)
    file_units = _file_units(cluster)
    units = tuple(_units(tables, overhead, latency, file_units.seconds[-1]))
    return Costs(overhead, latency, units or (file_units,))


def _latencies(cluster: Cluster, tables: Sequence[Measured]) -> tuple[float, float]:
    """Fit the overhead and the latency per step, both at least 0, by least squares of relative errors.

    If ranks outnumber the processors, an op of many steps may take longer than their number suggests, so that the best
    overhead is negative: then all time is attributed to the steps. If the ops have too similar numbers of steps, the
    file's ratio is used.
    """
    points = [
        (work(table.op, table.ranks_per_node).steps, shortest_seconds(table) or table.seconds[0]) for table in tables
    ]
    weights = [1 / seconds**2 for _, seconds in points]
    total = sum(weights)
    mean_steps = sum(w * steps for w, (steps, _) in zip(weights, points, strict=True)) / total
    mean_seconds = sum(w * seconds for w, (_, seconds) in zip(weights, points, strict=True)) / total
    spread = sum(w * (steps - mean_steps) ** 2 for w, (steps, _) in zip(weights, points, strict=True))
    slope = 0.0
    if spread > 1e-6 * total:
        slope = sum(w * (s - mean_steps) * t for w, (s, t) in zip(weights, points, strict=True)) / spread
    if slope <= 0:
        scale = mean_seconds / (cluster.collective_overhead + cluster.node.latency * mean_steps)
        return cluster.collective_overhead * scale, cluster.node.latency * scale
    if slope * mean_steps < mean_seconds:
        return mean_seconds - slope * mean_steps, slope
    squares = sum(w * steps**2 for w, (steps, _) in zip(weights, points, strict=True))
    return 0.0, sum(w * s * t for w, (s, t) in zip(weights, points, strict=True)) / squares


def shortest_seconds(table: Measured) -> float | None:
    """Return the median seconds of collectives of at most `SHORT` bytes; None if the table has none."""
    short = [t for size, t in zip(table.message_bytes, table.seconds, strict=True) if size <= SHORT]
    return statistics.median(short) if short else None


def _units(tables: Sequence[Measured], overhead: float, latency: float, large: float) -> Iterator[UnitCurve]:
    for table in tables:
        steps, share = work(table.op, table.ranks_per_node)
        start = overhead + steps * latency
        points = [
            (share * size, (seconds - start) / (share * size))
            for size, seconds in zip(table.message_bytes, table.seconds, strict=True)
            if seconds > STARTED * start and share * size >= LEAST_BYTES
        ]
        if points and points[-1][0] * NEAR < LARGE:
            points.append((LARGE, large))
        if points:
            yield UnitCurve(tuple(at for at, _ in points), tuple(unit for _, unit in points))
