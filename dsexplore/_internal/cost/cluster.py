"""`Cluster`: what predictions know of the machines that a program would run on, read from a data file.

The files in ``clusters/`` name the public source of each number, and the day it was read. A user's own file has the
same keys and is named by its path. How a file is written and checked is in `cost.cluster_file`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from dsexplore._internal.cost.cluster_file import Price, read_cluster_file
from dsexplore._internal.errors import UsageError
from dsexplore._internal.hardware import CLUSTER_OF, CLUSTERS
from dsexplore._internal.signatures import names_arguments_of_methods

HardwareLike: TypeAlias = "Cluster | str | os.PathLike[str]"
"""The machine that is predicted for: the name of a GPU or a cluster, the path of a cluster's file, or a `Cluster`."""


@dataclass(frozen=True)
class Link:
    """The link between ranks of one level: of one node, or of several.

    Attributes:
        bandwidth: B/s that one rank sends while it receives as much, as the maker states it.
        achievable: the part of `bandwidth` that large messages reach.
        latency: seconds that a small message needs from one rank to the next.
        short_bandwidth: B/s of the protocol for short messages, which sends a flag with each word (NCCL's LL).
        ramp: seconds by which a message of 32 MiB takes longer than latency and bandwidth say, while pipelines fill.
        pod: of a network, how many consecutive ranks of a job its switches join at full bandwidth; 0 for all.
        oversubscription: of a network, how many times less bandwidth there is between pods, and between rails, than in
            them.
        rails: of a network, over how many switches the ranks of a node are spread in turn, so that the ranks of one
            place in their nodes share a switch; 0 where the ranks of a node share one.
        ring_step: of a network, seconds that a step of a ring takes at least, in which each rank passes 1 MiB or more
            on; 0 where bandwidth and latency say it all.
    """

    bandwidth: float
    achievable: float
    latency: float
    short_bandwidth: float
    ramp: float
    pod: float = 0
    oversubscription: float = 1.0
    rails: float = 0
    ring_step: float = 0.0


@dataclass(frozen=True)
class Reduction:
    """Sums made by the switch on the way (NVLink SHARP).

    Attributes:
        bandwidth: message bytes per second of a large all_reduce inside a node, whatever the number of ranks.
        smallest_group: ranks of one node from which on the library uses it.
        ramp: as that of a `Link`.
    """

    bandwidth: float
    smallest_group: int
    ramp: float


@dataclass(frozen=True)
class Compute:
    """Arithmetic of one rank.

    Attributes:
        dense: FLOP/s of dense matrix products by dtype, ``"bf16"``, ``"fp16"``, ``"fp8"``, ``"fp4"``, ``"fp32"``,
            ``"tf32"``: as the maker states them.
        achievable: the part of them that large matrix products reach.
    """

    dense: Mapping[str, float]
    achievable: float

    def flops(self, dtype: str) -> float:
        """Return the FLOP/s that large matrix products of a dtype reach: `dense` × `achievable`.

        Raises:
            UsageError: the file has no rate for the dtype.
        """
        if dtype not in self.dense:
            raise UsageError(f"the cluster has no compute rate for dtype {dtype!r}: it has {', '.join(self.dense)}")
        return self.dense[dtype] * self.achievable


@dataclass(frozen=True)
class Memory:
    """Memory of one rank.

    Attributes:
        size: bytes that a program can use.
        bandwidth: B/s as the maker states it.
        achievable: the part of `bandwidth` that large copies reach.
    """

    size: float
    bandwidth: float
    achievable: float


@dataclass(frozen=True)
class Measured:
    """Times of one collective that somebody measured on this kind of cluster.

    Attributes:
        op: a name from `trace.collectives.OPS`.
        nodes: how many nodes took part.
        ranks_per_node: ranks on each.
        message_bytes: message bytes S as nccl-tests counts them, ascending.
        seconds: time of each.
        source: where it was published, or who measured it.
        date: when it was read or measured.
    """

    op: str
    nodes: int
    ranks_per_node: int
    message_bytes: tuple[int, ...]
    seconds: tuple[float, ...]
    source: str
    date: str


@dataclass(frozen=True, eq=False)
class Cluster:
    """One kind of cluster: equal nodes of equal ranks.

    Attributes:
        name: as `Cluster.load` takes it.
        title: for people.
        library: what runs the collectives: ``"nccl"``, ``"rccl"`` or ``"gloo"``.
        generation: of the GPU, by which the library is tuned: ``"ampere"``, ``"hopper"``, ``"blackwell"``, …
        topology: how the ranks of a node are joined: ``"switch"`` where any two have the whole bandwidth, ``"mesh"``
            where `node` is one of the links that join each two, ``"cube"`` for the hybrid cube mesh of a DGX-1, where
            `node` is all six links of a GPU, ``"pcie"``, or ``"host"`` for processes of one machine.
        ranks_per_node: ranks that a launcher starts on one machine: 8 on a DGX, 4 on a tray of an NVL72 rack.
        ranks_per_domain: ranks that share the fast links: those of a machine, or 72 for an NVL72 rack of 18 machines.
        node: link between ranks of one domain.
        network: link of one rank to other domains; None where there is one only.
        reduction: sums made by the node's switch; None without them.
        compute: arithmetic of one rank.
        memory: memory of one rank.
        launch_overhead: seconds from one kernel's launch to the next where the CPU is what is waited for.
        collective_overhead: seconds that any collective takes, however little it moves.
        measured: tables of collectives that somebody measured.
        like: the name of a cluster whose tables stand in where this one has none; empty for none.
        base: the name of the cluster from which the file takes what it does not say; empty for none.
        processors: that the ranks of a node share, with the topology ``"host"``; None where that is not known.
        power: W that the GPU of one rank may take; None where that is not known.
        price: of one rank; None where the file has none.
        sources: for each key of the file its source and date.
    """

    name: str
    title: str
    library: str
    generation: str
    topology: str
    ranks_per_node: int
    ranks_per_domain: int
    node: Link
    network: Link | None
    reduction: Reduction | None
    compute: Compute
    memory: Memory
    launch_overhead: float
    collective_overhead: float
    measured: tuple[Measured, ...] = ()
    like: str = ""
    base: str = ""
    processors: int | None = None
    power: float | None = None
    price: Price | None = None
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)

    @staticmethod
    def load(name: str | os.PathLike[str]) -> Cluster:
        """Load a cluster by its name, in any case, or from a ``.toml`` file.

        A GPU means its usual cluster: ``"h100"`` means ``"dgx-h100"``, and ``"cpu"`` means ``"gloo-local"``.

        Raises:
            UsageError: no such cluster or file, or a file with an unknown key, a number without unit, or an implausible
                number; the error names it.
        """
        path = CLUSTERS.path(os.fspath(name), CLUSTER_OF)
        return _loaded(path, path.stat().st_mtime_ns if path.exists() else 0)

    @property
    def domain_kind(self) -> str:
        """Word for ranks that share the fast links: ``"node"`` or, of several nodes, ``"NVLink domain"``."""
        return "node" if self.ranks_per_domain == self.ranks_per_node else "NVLink domain"

    def domain_of_job(self, world_size: int, ranks_per_node: int | None = None) -> int:
        """Return the number of consecutive ranks of a job that share the fast links.

        A scheduler fills the domains of a job evenly, so that its groups of equal size are not cut at their edges: 128
        ranks are placed as 2 x 64 on racks of 72. Where even domains would be less than half full, as for 148 ranks,
        each is filled before the next.

        Args:
            world_size: number of ranks of the job.
            ranks_per_node: ranks that its launcher starts on each machine; None for `Cluster.ranks_per_node`.

        Example:
            >>> Cluster.load("gb200-nvl72").domain_of_job(128)
            64
            >>> Cluster.load("dgx-h100").domain_of_job(16, ranks_per_node=4)
            4
        """
        node = ranks_per_node or self.ranks_per_node
        nodes = max(1, self.ranks_per_domain // max(node, self.ranks_per_node))
        whole = node * nodes
        if world_size <= whole:
            return whole
        even = (size for size in range(whole, whole // 2, -node) if world_size % size == 0)
        return next(even, whole)


names_arguments_of_methods(Cluster)


def as_cluster(hardware: HardwareLike) -> Cluster:
    """Return a cluster itself, or load the one of that name or file."""
    return hardware if isinstance(hardware, Cluster) else Cluster.load(hardware)


@lru_cache(maxsize=128)
def _loaded(path: Path, changed: int) -> Cluster:
    """Load the cluster of a file; the result is cached until `changed`, the file's mtime in ns, differs."""
    values = read_cluster_file(path)
    sections = values.sections
    return Cluster(
        name=path.stem,
        **values.words,
        ranks_per_node=values.ranks_per_node,
        ranks_per_domain=values.ranks_per_domain,
        node=Link(**sections["node"]),
        network=Link(**sections["network"]) if "network" in sections else None,
        reduction=_reduction(sections["reduction"]) if "reduction" in sections else None,
        compute=_compute(dict(sections["compute"])),
        memory=Memory(**sections["memory"]),
        launch_overhead=sections["launch"]["overhead"],
        collective_overhead=sections["launch"]["collective"],
        measured=tuple(Measured(**table) for table in values.measured),
        processors=values.processors,
        power=values.power,
        price=values.price,
        sources=values.sources,
    )


def _reduction(section: dict[str, float]) -> Reduction:
    return Reduction(section["bandwidth"], int(section["smallest_group"]), section["ramp"])


def _compute(section: dict[str, float]) -> Compute:
    achievable = section.pop("achievable")
    return Compute(section, achievable)


def known_clusters() -> list[str]:
    """Return the names of the clusters with a data file in this package.

    Examples:
        >>> "dgx-h100" in known_clusters()
        True
    """
    return CLUSTERS.names()
