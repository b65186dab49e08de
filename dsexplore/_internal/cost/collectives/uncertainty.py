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
