"""`Uncertainty`: the known error of a predicted collective time, by the links and by what was measured."""

from __future__ import annotations

from collections.abc import Mapping
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


@dataclass(frozen=True, kw_only=True)
class _KnownErrors:
    """The known errors on one kind of links, by the nearest measured times that a prediction rests on.

    Attributes:
        own: those of the op and group itself.
        own_beyond: the same, for sizes that are farther than `BEYOND` from the measured ones.
        near: those of a near relative.
        near_beyond: the same, for sizes that are farther than `BEYOND` from the measured ones.
        far: those of a farther relative.
        none: nothing was measured, or of a farther relative nothing near the size.
    """

    own: Uncertainty
    own_beyond: Uncertainty
    near: Uncertainty
    near_beyond: Uncertainty
    far: Uncertainty
    none: Uncertainty

    def of(self, measured: MeasuredFactors | None, size: float) -> Uncertainty:
        """Return the known error at so many message bytes."""
        if measured is None:
            return self.none
        is_beyond = not measured.reach[0] / BEYOND <= size <= measured.reach[1] * BEYOND
        if measured.distance == 0:
            return self.own_beyond if is_beyond else self.own
        if measured.distance < NEAR_RELATIVE:
            return self.near_beyond if is_beyond else self.near
        return self.none if is_beyond else self.far


_KNOWN_ERRORS: Mapping[Links, _KnownErrors] = {
    "node": _KnownErrors(
        own=MEASURED,
        own_beyond=RELATED,
        near=RELATED,
        near_beyond=MECHANISM,
        far=RELATED,
        none=MECHANISM,
    ),
    "pcie": _KnownErrors(
        own=MEASURED,
        own_beyond=RELATED,
        near=RELATED,
        near_beyond=PCIE,
        far=PCIE,
        none=PCIE,
    ),
    "shipped pcie": _KnownErrors(
        own=PCIE,
        own_beyond=PCIE,
        near=PCIE,
        near_beyond=PCIE,
        far=PCIE,
        none=PCIE,
    ),
    "host": _KnownErrors(
        own=SHARED,
        own_beyond=SHARED_RELATED,
        near=SHARED_RELATED,
        near_beyond=SHARED_RELATED,
        far=HOST,
        none=HOST,
    ),
    "hosts": _KnownErrors(
        own=SHARED,
        own_beyond=SHARED_RELATED,
        near=SHARED_RELATED,
        near_beyond=SHARED_RELATED,
        far=NETWORK,
        none=NETWORK,
    ),
    "network": _KnownErrors(
        own=MEASURED_NETWORK,
        own_beyond=MEASURED_NETWORK,
        near=MEASURED_NETWORK,
        near_beyond=MEASURED_NETWORK,
        far=NETWORK,
        none=NETWORK,
    ),
}


def uncertainty_of(cluster: Cluster, group: GroupShape, measured: MeasuredFactors | None, size: float) -> Uncertainty:
    """Return the known error of the predicted time of a collective.

    Args:
        cluster: where it runs.
        group: the ranks that take part.
        measured: the measured times that the prediction rests on; None if there are none.
        size: message bytes.
    """
    return _KNOWN_ERRORS[_links(cluster, group)].of(measured, size)


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
