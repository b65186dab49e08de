"""Changes that make a step need less memory, and the seconds that each costs.

Both are upper bounds: all that is held at the peak counts as freed, and nothing hides the seconds.

| what | frees | price |
|---|---|---|
| recompute layers | activations of all layers but one | their forward a second time |
| offload activations | activations of all layers but one | copies over PCIe that outlast forward or backward |
| offload the optimizer | its state | copies of the state to the GPU and back |
| reshard after forward | gathered parameters but for two gathers | further gathers in backward |
| shard with ``fully_shard`` | all but one rank's shard of parameters, gradients and states | a gather of parameters |
| half the micro batch | half of the activations | FSDP's gathers and reductions again, and the gaps of kernels |
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from dsexplore._internal.cost.cluster import Cluster
from dsexplore._internal.cost.collectives.collective_duration import collective_time
from dsexplore._internal.cost.kernels.compute import KERNEL_GAP
from dsexplore._internal.cost.kernels.gpu_generations import GENERATIONS
from dsexplore._internal.cost.memory.memory_need import Saving
from dsexplore._internal.cost.memory.peak_memory import PeakMemory, layer_of
from dsexplore._internal.cost.range import Estimate
from dsexplore._internal.cost.step.rank_program import Collective, StepProgram
from dsexplore._internal.cost.step.stream_simulation import IDLE, SimulatedStep, is_receiving
from dsexplore._internal.trace.tables import Tables

_LEAST = 0.02
"""Smallest part of the memory that a saving must free to be listed."""
_KEPT_GATHERED = 2
"""Gathers whose parameters are held at a time with resharding: the current one and the prefetched one."""


class Savings:
    """Finds the savings of a step.

    Args:
        tables: trace of the step.
        program: program of one rank, with the times of its kernels and collectives.
        simulated: simulated step of that rank.
        peak: largest peak of all traced ranks.
        cluster: cluster with the GPU and its links.
        domain: number of consecutive ranks that share the fast links.
    """

    def __init__(
        self,
        tables: Tables,
        program: StepProgram,
        simulated: SimulatedStep,
        peak: PeakMemory,
        cluster: Cluster,
        domain: int,
    ) -> None:
        self._tables, self._program, self._peak = tables, program, peak
        self._cluster, self._domain = cluster, domain
        self._forward: dict[str, float] = defaultdict(float)
        self._backward: dict[str, float] = defaultdict(float)
        self._layers: dict[str, set[str]] = defaultdict(set)
        self._recomputed: set[str] = set()
        for span in simulated.spans:
            if span.kind == "communication" or span.kind == IDLE or is_receiving(span):
                continue
            layer = layer_of(span.module)
            if span.phase == "forward":
                self._forward[layer] += span.seconds
                self._layers[layer].add(_numbered_layer(span.module))
            elif span.phase == "backward":
                self._backward[layer] += span.seconds
            elif span.phase == "recompute":
                self._recomputed.add(layer)

    def found(self) -> tuple[Saving, ...]:
        """Return the savings that the step does not use yet and that free enough, in no order."""
        ways = (self._layers_again(), self._optimizer(), self._reshard(), self._shard(), self._half())
        least = _LEAST * self._peak.size
        return tuple(saving for way in ways for saving in way if saving.frees >= least)

    def _layers_again(self) -> Iterator[Saving]:
        """Yield recomputation and offloading of the activations of repeated layers."""
        link = GENERATIONS[self._cluster.generation].host_link
        for layer, size in self._peak.kept.items():
            count = len(self._layers[layer])
            if count < 2 or layer in self._recomputed:
                continue
            frees = int(size * (count - 1) / count)
            yield Saving(f"recompute {layer}", frees, self._forward[layer])
            if link:
                late = sum(max(0.0, frees / link - busy[layer]) for busy in (self._forward, self._backward))
                yield Saving(f"offload the activations of {layer}", frees, late)

    def _optimizer(self) -> Iterator[Saving]:
        """Yield offloading of the optimizer's state, unless there is none or the link's speed is unknown."""
        link = GENERATIONS[self._cluster.generation].host_link
        state = self._peak.parts["optimizer"]
        if state and link:
            yield Saving("offload the optimizer's state", state, 2 * state / link)

    def _reshard(self) -> Iterator[Saving]:
        """Yield resharding, if FSDP2 keeps gathered parameters from forward to backward."""
        gathers = [item for item in self._collectives() if item.sync == "fsdp gather"]
        if not gathers:
            return
        largest = max(item.message_bytes for item in gathers)
        kept = self._peak.parts["buffers"] - _KEPT_GATHERED * largest
        forward, backward = (
            sum(item.seconds[Estimate.EXPECTED] for item in gathers if (item.phase == "forward") is is_forward)
            for is_forward in (True, False)
        )
        if kept > 0 and forward > backward:
            yield Saving("reshard after forward", kept, forward - backward)

    def _shard(self) -> Iterator[Saving]:
        """Yield ``fully_shard`` over the ranks whose gradients DDP reduces."""
        reduced = [item for item in self._collectives() if item.sync == "ddp"]
        if not reduced:
            return
        ranks, parts = reduced[0].ranks, self._peak.parts
        row = self._tables.events.filter(seq=reduced[0].seq, rank=self._program.rank).row(0, named=True)
        listed = self._tables.groups.filter(group=row["group"])["ranks"].to_list()
        members: Sequence[int] = listed[0] if listed else range(ranks)
        home = self._program.rank // self._domain
        near = sum(other // self._domain == home for other in members)
        whole = sum(parts[use] for use in ("parameters", "gradients", "optimizer"))
        time = collective_time("all_gather", parts["parameters"], ranks, max(1, min(near, ranks)), self._cluster)
        yield Saving("shard with fully_shard", int(whole * (ranks - 1) / ranks), time.expected)

    def _half(self) -> Iterator[Saving]:
        """Yield half the micro batch, which runs all kernels and FSDP's collectives twice."""
        again = sum(
            item.seconds[Estimate.EXPECTED]
            for item in self._collectives()
            if item.sync in ("fsdp gather", "fsdp reduce")
        )
        kernels = self._tables.kernels.filter(rank=self._program.rank, step=self._program.step)
        count = int(kernels.filter(kernels["phase"] != "optimizer")["count"].sum())
        half = self._peak.parts["activations"] // 2
        yield Saving("half the micro batch, twice as many", half, again + count * KERNEL_GAP)

    def _collectives(self) -> Iterator[Collective]:
        return (item for item in self._program.items if isinstance(item, Collective))


def _numbered_layer(module: str) -> str:
    """Return the path of a module up to its first number: ``"Llama.layers.3"`` of ``"Llama.layers.3.mlp"``."""
    match = re.match(r".*?\.\d+(?=\.|$)", module)
    return match.group(0) if match else module
