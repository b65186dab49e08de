"""A cluster whose kernels take as long as was measured of a program: for machines whose compute nobody published."""

from __future__ import annotations

from dataclasses import replace

from dsexplore.cost.cluster import Cluster
from dsexplore.cost.prediction import predict
from dsexplore.errors import UsageError
from dsexplore.trace.trace import Trace

_TURNS, _CLOSE = 50, 1e-4


def with_measured_compute(cluster: Cluster, trace: Trace, seconds: float) -> Cluster:
    """Scale a cluster's compute, memory and launches until a step without its communication takes what was measured.

    One factor for all three leaves the shares of the modules as they were predicted.

    Args:
        cluster: the cluster to scale, such as that of a calibration.
        trace: of the step, with costs.
        seconds: of one step on a rank whose collectives send nothing and return at once, while as many ranks
            compute as in the real step.

    Raises:
        UsageError: seconds that are no time, or a trace without costs.
    """
    if not 0 < seconds < float("inf"):
        raise UsageError(f"seconds={seconds!r} is not how long a step computes: give a number above 0")
    alone = replace(trace.tables, events=trace.tables.events.clear())
    scaled = cluster
    for _ in range(_TURNS):
        factor = seconds / predict(alone, scaled).expected_step
        if abs(factor - 1) < _CLOSE:
            break
        scaled = _slowed(scaled, factor)
    return scaled


def _slowed(cluster: Cluster, factor: float) -> Cluster:
    """Return the cluster with all kernels slowed down by `factor`."""
    dense = {dtype: rate / factor for dtype, rate in cluster.compute.dense.items()}
    return replace(
        cluster,
        compute=replace(cluster.compute, dense=dense),
        memory=replace(cluster.memory, bandwidth=cluster.memory.bandwidth / factor),
        launch_overhead=cluster.launch_overhead * factor,
    )
