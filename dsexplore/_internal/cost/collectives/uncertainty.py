"""`Uncertainty`: the known error of a predicted collective time, by the links and by what was measured."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from dsexplore._internal.cost.cluster import Cluster, known_clusters
from dsexplore._internal.cost.collectives.collective_mechanism import GroupShape
from dsexplore._internal.cost.collectives.measured_points import NEAR_RELATIVE, MeasuredFactors


@dataclass(frozen=True)
class Uncertainty:
    """The known error of predictions of one kind: four of five measured times lie within it.

    Attributes:
        below: how far times are shorter, as a fraction of the prediction.
        above: how far they are longer.
        why: the source of the error, as the rest of a sentence that begins with the op and its group.
    """

    below: float
    above: float
    why: str


MEASURED = Uncertainty(0.12, 0.25, "was measured on another machine of this kind, perhaps with another NCCL")
MEASURED_NETWORK = Uncertainty(0.30, 0.30, "was measured on another network of this kind")
RELATED = Uncertainty(0.20, 0.25, "was not measured itself: its times follow from a related op, group or cluster")
MECHANISM = Uncertainty(0.20, 0.30, "was never measured: its times follow from latencies and bandwidths alone")
NETWORK = Uncertainty(0.30, 0.50, "was never measured on a network like this")
SHARED = Uncertainty(0.20, 0.25, "was measured on cores that other programs use too")
SHARED_RELATED = Uncertainty(0.30, 0.45, "was not measured itself: its times follow from other ops, on shared cores")
HOST = Uncertainty(0.50, 7.00, "was never measured on this machine, which may have fewer processors than ranks")
PCIE = Uncertainty(0.55, 3.00, "takes up to five times as long over PCIe without peer access between the GPUs")
LAUNCHED_BY_ONE = "takes no less than its launch, if one process launches it on all ranks of a node"
"""Why the high end of a short collective is what it is; see `collective_curve.launch_seconds`."""
BEYOND = 4.0
"""Factor on the largest measured size beyond which a prediction counts as related instead of measured."""

Links = Literal["node", "pcie", "shipped pcie", "host", "hosts", "network"]
"""What joins a group: links of a node; PCIe, of the user's machine or of one in this package; one host; several; else
a network."""
NearestMeasured = Literal["own", "own beyond", "near", "near beyond", "far", "none"]
"""The measured times nearest to a group: its own, those of a near relative or a farther one; ``beyond``: sizes that
are farther than `BEYOND` from the measured ones. ``none`` counts a far relative beyond its sizes too."""

_EVIDENCE: tuple[NearestMeasured, ...] = ("own", "own beyond", "near", "near beyond", "far", "none")
_ERRORS: dict[Links, tuple[Uncertainty, ...]] = {
    "node": (MEASURED, RELATED, RELATED, MECHANISM, RELATED, MECHANISM),
    "pcie": (MEASURED, RELATED, RELATED, PCIE, PCIE, PCIE),
    "shipped pcie": (PCIE, PCIE, PCIE, PCIE, PCIE, PCIE),
    "host": (SHARED, SHARED_RELATED, SHARED_RELATED, SHARED_RELATED, HOST, HOST),
    "hosts": (SHARED, SHARED_RELATED, SHARED_RELATED, SHARED_RELATED, NETWORK, NETWORK),
    "network": (MEASURED_NETWORK, MEASURED_NETWORK, MEASURED_NETWORK, MEASURED_NETWORK, NETWORK, NETWORK),
}
"""{links: errors in the order of `_EVIDENCE`}."""


def uncertainty_of(cluster: Cluster, group: GroupShape, measured: MeasuredFactors | None, size: float) -> Uncertainty:
    """Return the known error of the predicted time of a collective.

    Args:
        cluster: where it runs.
        group: the ranks that take part.
        measured: the measured times that the prediction rests on; None if there are none.
        size: message bytes.
    """
    return _ERRORS[_links(cluster, group)][_EVIDENCE.index(_nearest(measured, size))]


def _links(cluster: Cluster, group: GroupShape) -> Links:
    if cluster.topology == "host":
        return "host" if group.nodes == 1 else "hosts"
    if group.nodes > 1:
        return "network"
    if cluster.topology == "pcie":
        return "shipped pcie" if _is_shipped(cluster.name) else "pcie"
    return "node"


@lru_cache
def _is_shipped(name: str) -> bool:
    """Return True if the cluster's file is part of this package, so its points were measured on another machine.

    Over PCIe these say little about the user's machine.
    """
    return name in known_clusters()


def _nearest(measured: MeasuredFactors | None, size: float) -> NearestMeasured:
    if measured is None:
        return "none"
    is_beyond = not measured.reach[0] / BEYOND <= size <= measured.reach[1] * BEYOND
    if measured.distance == 0:
        return "own beyond" if is_beyond else "own"
    if measured.distance < NEAR_RELATIVE:
        return "near beyond" if is_beyond else "near"
    return "none" if is_beyond else "far"
