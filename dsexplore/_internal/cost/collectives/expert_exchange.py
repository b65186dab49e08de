"""Dispatch and combine of DeepEP: how tokens go to the ranks of their experts and come back, in kernels of their own.

DeepEP (github.com/deepseek-ai/DeepEP, version 1; SGLang, vLLM and TensorRT-LLM call it) takes the place of two
all_to_alls. Its normal kernels, for training and prompts, send a token once to each node that has some of its experts,
over the network, and from there once to each of their ranks, over NVLink, with as many multiprocessors as they are
given: the slowest of the three decides. Its low-latency kernels, for a decoder's next tokens, send a token once for
each of its experts, straight to the expert's rank, with one multiprocessor for each expert.

The bandwidths that it reaches of a network, and the times of the low-latency kernels between nodes, are those that its
authors published (docs/legacy.md there, H800); the other constants were chosen by the tables of H100, and of H200
between nodes, that benchmarks/deepep_accuracy.py names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import comb, inf, log2
from typing import Literal

from dsexplore._internal.cost.cluster import Cluster, HardwareLike, Link, as_cluster
from dsexplore._internal.cost.collectives.collective_mechanism import rank_bandwidth
from dsexplore._internal.cost.kernels.gpu_generations import GENERATIONS
from dsexplore._internal.cost.range import Range
from dsexplore._internal.errors import UsageError
from dsexplore._internal.signatures import names_arguments

Op = Literal["dispatch", "combine"]


@dataclass(frozen=True, kw_only=True)
class _KernelRates:
    """What the kernels of one op reach.

    Attributes:
        nvlink: bandwidth of normal kernels over NVLink, as a part of that of NCCL's large messages.
        nvlink_low_latency: the same of low-latency kernels.
        processor: B/s of received tokens for each multiprocessor of normal kernels, in one node.
        processor_across: the same where tokens pass a network too.
        start: seconds of the two kernels of a normal call, of which the first counts the tokens, and of their barriers.
    """

    nvlink: float
    nvlink_low_latency: float
    processor: float
    processor_across: float
    start: float


_RATES: Mapping[Op, _KernelRates] = {
    "dispatch": _KernelRates(
        nvlink=0.85, nvlink_low_latency=0.72, processor=17.5e9, processor_across=12.5e9, start=26e-6
    ),
    "combine": _KernelRates(nvlink=0.88, nvlink_low_latency=0.62, processor=20e9, processor_across=10e9, start=48e-6),
}
_NETWORK = 0.96
"""Bandwidth that DeepEP reaches over a network, as a part of that of NCCL's large messages."""
_FLAGS = 10
"""Latencies of NVLink that low-latency kernels wait for."""
_EXPERT = 13e-9
"""Seconds that they take for the count of each expert."""
_NETWORK_FLAGS = 1.5
"""Latencies of the network that low-latency kernels wait for."""
_NETWORK_BARRIER = 4.6
"""Latencies of the network that normal kernels wait for each time that the number of nodes doubles."""
_CAST = 2e9
"""Numbers that a multiprocessor casts and sends in a second, token after token."""
_SCALE = 4 / 128
"""Bytes of scales for each fp8 number."""
_HEADER = 16
"""Bytes that low-latency kernels send with a token."""
_COUNTS = (
    *("tokens", "hidden", "experts", "top_k", "world_size"),
    *("ranks_per_node", "nodes_per_token", "multiprocessors"),
)
"""The whole numbers of an `_Exchange`."""
_BELOW, _ABOVE = 0.25, 0.45
"""The known error: benchmarks/deepep_accuracy.py."""
_WHY = "DeepEP was measured on GPUs of other nodes, and no other constants are known for this one"


@names_arguments
def deepep_time(
    op: Op,
    tokens: int,
    hidden: int,
    experts: int,
    top_k: int,
    world_size: int,
    ranks_per_node: int | None = None,
    hardware: HardwareLike = "h100",
    *,
    low_latency: bool = False,
    token_bytes: float | None = None,
    nodes_per_token: int | None = None,
    multiprocessors: int = 20,
    imbalance: float = 1.0,
) -> Range:
    """Return the seconds in which DeepEP sends tokens to their experts, or their results back.

    Args:
        op: ``"dispatch"`` to the experts, or ``"combine"``, which adds what comes back.
        tokens: of each rank.
        hidden: numbers of a token.
        experts: of all ranks together, of which each token goes to `top_k`, all equally likely.
        top_k: experts of a token.
        world_size: ranks that divide the experts.
        ranks_per_node: how many of them share a node, or an NVLink domain; as a job of so many ranks has by default.
        hardware: a GPU, a cluster, the path of a cluster's file, or a `Cluster`.
        low_latency: the kernels for a decoder's next tokens, in place of those for prompts and training.
        token_bytes: of one token; by default fp8 with a scale for each 128 numbers to the experts, and bf16 back.
        nodes_per_token: the most nodes that a token's experts are on, as DeepSeek-V3's gate limits them to 4.
        multiprocessors: that the normal kernels have.
        imbalance: tokens of the rank that most go to, over the mean: all wait for it.

    Returns:
        the expected time and its range.

    Raises:
        UsageError: an unknown op, numbers that cannot be, or ranks whose GPUs are not joined by a switch.

    Examples:
        >>> fast, normal = (deepep_time("dispatch", 128, 7168, 256, 8, 8, low_latency=low) for low in (True, False))
        >>> print(f"{fast.expected * 1e6:.0f} us, {normal.expected * 1e6:.0f} us")
        38 us, 40 us
    """
    machine = as_cluster(hardware)
    if op not in _RATES:
        raise UsageError(f"op={op!r} is not known: give 'dispatch' or 'combine'")
    if ranks_per_node is None:
        ranks_per_node = min(world_size, machine.domain_of_job(max(world_size, 1)))
    exchange = _Exchange(
        op=op,
        tokens=tokens,
        hidden=hidden,
        experts=experts,
        top_k=top_k,
        world_size=world_size,
        ranks_per_node=ranks_per_node,
        nodes_per_token=world_size if nodes_per_token is None else nodes_per_token,
        multiprocessors=multiprocessors,
        token_bytes=hidden * (1 + _SCALE if op == "dispatch" else 2.0) if token_bytes is None else token_bytes,
        imbalance=imbalance,
    )
    exchange.check(machine)
    seconds = exchange.low_latency_seconds(machine) if low_latency else exchange.normal_seconds(machine)
    return Range.within(seconds, _BELOW, _ABOVE, why=_WHY)


@dataclass(frozen=True, kw_only=True)
class _Exchange:
    """One exchange of tokens between the ranks of experts; the arguments of `deepep_time`."""

    op: Op
    tokens: int
    hidden: int
    experts: int
    top_k: int
    world_size: int
    ranks_per_node: int
    nodes_per_token: int
    multiprocessors: int
    token_bytes: float
    imbalance: float

    @property
    def nodes(self) -> int:
        """Nodes of the ranks."""
        return self.world_size // self.ranks_per_node

    @property
    def nodes_chosen_from(self) -> int:
        """Nodes that the experts of one token can be on."""
        return min(self.nodes, self.nodes_per_token)

    @property
    def experts_chosen_from(self) -> int:
        """Experts that one token can go to."""
        return self.experts * self.nodes_chosen_from // self.nodes

    def low_latency_seconds(self, cluster: Cluster) -> float:
        """Return the seconds in which a rank sends its tokens to the experts of all, and as many come to it."""
        generation, rates, nodes = GENERATIONS[cluster.generation], _RATES[self.op], self.nodes
        sent = self.tokens * self.top_k * (self.token_bytes + _HEADER) * self.imbalance
        near = (self.ranks_per_node - 1) / self.world_size
        start = generation.start + _FLAGS * cluster.node.latency + _EXPERT * self.experts
        seconds = sent * near / (self._nvlink(cluster) * rates.nvlink_low_latency)
        if self.op == "dispatch":
            in_turn = -(-self.tokens // min(self.experts, generation.multiprocessors))
            seconds = max(seconds, in_turn * self.hidden / _CAST)
        if nodes > 1:
            network = _network(cluster)
            start += _NETWORK_FLAGS * network.latency
            seconds = max(seconds, sent * (nodes - 1) / nodes / _network_bandwidth(network))
        return start + seconds

    def normal_seconds(self, cluster: Cluster) -> float:
        """Return the seconds in which a rank's tokens go once to each node and rank that has some of their experts."""
        rates, nodes, per_node = _RATES[self.op], self.nodes, self.ranks_per_node
        received = self.tokens * self.token_bytes * self.imbalance
        to_ranks = received * self._reached(self.nodes_chosen_from * per_node)
        per_processor = rates.processor_across if nodes > 1 else rates.processor
        start = rates.start
        seconds = max(
            to_ranks * (per_node - 1) / per_node / (self._nvlink(cluster) * rates.nvlink),
            to_ranks / (self.multiprocessors * per_processor),
        )
        if nodes > 1:
            network = _network(cluster)
            to_nodes = received * self._reached(self.nodes_chosen_from)
            start += _NETWORK_BARRIER * network.latency * log2(nodes)
            seconds = max(seconds, to_nodes * (nodes - 1) / nodes / _network_bandwidth(network))
        return start + seconds

    def _reached(self, places: int) -> float:
        """Return how many of so many equal places have one of a token's experts, on average."""
        experts = self.experts_chosen_from
        elsewhere = comb(experts - experts // places, self.top_k) / comb(experts, self.top_k)
        return places * (1 - elsewhere)

    def _nvlink(self, cluster: Cluster) -> float:
        return rank_bandwidth(cluster, max(self.ranks_per_node, 2))

    def check(self, cluster: Cluster) -> None:
        """Check that the exchange can be, on a cluster.

        Raises:
            UsageError: it cannot.
        """
        for name in _COUNTS:
            count = getattr(self, name)
            if not isinstance(count, int) or count < 1:
                raise UsageError(f"{name}={count!r} cannot be: give a whole number, 1 or more")
        for name, least in (("token_bytes", 0), ("imbalance", 1)):
            size = getattr(self, name)
            if not least <= size < inf:
                raise UsageError(f"{name}={size!r} cannot be: give a finite number, {least} or more")
        if self.top_k > self.experts:
            raise UsageError(f"top_k={self.top_k} of {self.experts} experts: a token goes to each of them once at most")
        if self.experts % self.world_size:
            raise UsageError(f"{self.experts} experts do not divide into {self.world_size} ranks of as many each")
        if self.world_size % self.ranks_per_node:
            raise UsageError(f"{self.world_size} ranks do not divide into nodes of {self.ranks_per_node}")
        if self.top_k > self.experts_chosen_from:
            left = f"nodes_per_token={self.nodes_per_token} leaves {self.experts_chosen_from} experts"
            raise UsageError(f"top_k={self.top_k}: {left}")
        if cluster.topology != "switch":
            raise UsageError(
                f"{cluster.name} has no switch over which each GPU writes to all others, which DeepEP needs"
            )
        if self.ranks_per_node > cluster.ranks_per_domain:
            domain = f"the {cluster.domain_kind} has {cluster.ranks_per_domain} ranks"
            raise UsageError(f"ranks_per_node={self.ranks_per_node}: {domain}")
        if self.nodes > 1 and cluster.network is None:
            raise UsageError(
                f"{cluster.name} has no network, so {self.world_size} ranks do not fit: it has nodes of "
                f"{self.ranks_per_node}"
            )


def _network(cluster: Cluster) -> Link:
    assert cluster.network is not None
    return cluster.network


def _network_bandwidth(network: Link) -> float:
    return network.bandwidth * network.achievable * _NETWORK
