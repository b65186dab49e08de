"""`MemoryNeed`: the memory that a step needs, whether a GPU has it, what it is for, and what would need less.

What torch's allocator holds is one part: see `cost.memory.peak_memory`. Outside of it are the CUDA context with the
libraries' kernels, and the buffers of each communicator.

* NCCL's ring receives into a buffer per channel: 4 MiB, 512 KiB and 4.7 MiB for its three protocols (``src/init.cc``:
  ``DEFAULT_BUFFSIZE``, ``DEFAULT_LL_BUFFSIZE``, ``DEFAULT_LL128_BUFFSIZE``). An all_reduce over several nodes has the
  connections of a tree besides, one up and one or two down. Messages and exchanges have two channels per peer.
* Torch's allocator cuts segments into blocks, and cannot use all memory that it holds: see `FRAGMENTED`. If only the
  gaps do not fit, it waits for the GPU, returns unused segments and asks again: such a step runs, but slowly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Self

import polars as pl

from dsexplore._internal.cost.cluster import Cluster
from dsexplore._internal.cost.kernels.gpu_generations import GENERATIONS
from dsexplore._internal.cost.memory.peak_memory import PeakMemory
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.units import format_bytes, format_seconds, format_share

Fit = Literal["fits", "fits barely", "does not fit"]

CONTEXT = 2**30
"""Bytes of the CUDA context and of the kernels that libraries load: 0.5 to 2 GB (stas00/ml-engineering,
training/performance/README.md, "Preloaded CUDA kernels memory usage")."""
CONNECTION = (4 << 20) + (512 << 10) + 4_915_200
"""Bytes of the buffers of one channel's connection to one other rank, of all three protocols."""
_TREE = 2
"""Connections of a tree beside that of a ring: one up, and on average one down."""
_PEER_CHANNELS = 2
"""Channels to each peer of a message or an exchange."""
FRAGMENTED = {False: 0.15, True: 0.02}
"""Bytes that the allocator holds beyond its tensors, as a part of theirs, without and with expandable segments.
GMLake (ASPLOS 2024, arXiv 2401.08156) gained 15 % on average, and 33 % at most, over eight models; segments that expand
leave the unused part of 20 MiB at the end of each pool."""
NEAR = 0.9
"""Part of the GPU's memory beyond which a step barely fits: the allocator's gaps are larger in some steps than others.
All 17 runs of a public sweep that held more took 3 to 10 times as long as predicted (benchmarks/training_sweep.py)."""
RETRIED = (3, 6)
"""How many times longer a step can take whose allocator gives memory back and asks again."""


@dataclass(frozen=True)
class Saving:
    """One way to need less memory.

    Attributes:
        what: The change to make: ``"recompute Llama.layers.*"``.
        frees: Upper bound of the bytes that it frees at the peak.
        seconds: Upper bound of the seconds that it adds to a step; work that is hidden does not count.
    """

    what: str
    frees: int
    seconds: float

    def __str__(self) -> str:
        """Format it: ``"recompute Llama.layers.*: frees up to 12 GiB for 310 ms a step"``."""
        price = format_seconds(self.seconds) if self.seconds > 0 else "no time"
        return f"{self.what}: frees up to {format_bytes(self.frees)} for {price} a step"


class MemoryNeed(int):
    """Bytes that the allocator holds at the peak, on the rank with the largest one: an integer with its causes.

    Attributes:
        peak: The bytes by use, and the phase and module of the peak.
        outside: Bytes outside the allocator: the CUDA context, libraries and communicators.
        available: Bytes of memory of the GPU.
        expandable_segments: Whether the allocator's segments can grow.

    Example:
        >>> memory = trace.predict("h100").memory
        >>> memory.fit, memory < memory.available
        ('fits', True)
    """

    peak: PeakMemory
    outside: int
    available: int
    expandable_segments: bool
    _saved: Callable[[], tuple[Saving, ...]]

    @classmethod
    def of(
        cls,
        peak: PeakMemory,
        outside: int,
        available: int,
        expandable_segments: bool,
        saved: Callable[[], tuple[Saving, ...]],
    ) -> Self:
        """Return the need of a peak; `saved` computes `savings`, when they are read first."""
        need = cls(peak.size)
        need.peak, need.outside, need.available = peak, outside, available
        need.expandable_segments, need._saved = expandable_segments, saved
        return need

    @property
    def least(self) -> int:
        """Bytes that the step cannot do without: those of its tensors, and those outside the allocator."""
        return self.peak.tensors + self.outside

    @property
    def most(self) -> int:
        """Bytes that the step takes if the GPU has them: tensors, the allocator's gaps, and those outside it."""
        return round(int(self) * (1 + FRAGMENTED[self.expandable_segments])) + self.outside

    @property
    def fit(self) -> Fit:
        """``"fits"``; ``"fits barely"``, so that the allocator may have to ask again; or ``"does not fit"``."""
        if self.least > self.available:
            return "does not fit"
        return "fits barely" if self.most > NEAR * self.available else "fits"

    def verdict(self) -> str:
        """Return whether the step fits, with its numbers."""
        where, in_gib = self.peak.where, f"{self.available / 2**30:.1f} GiB"
        outside = f"{self.outside / 2**30:.1f} GiB outside the allocator"
        if self.fit == "does not fit":
            tensors = f"{self.peak.tensors / 2**30:.1f} GiB of tensors"
            return f"does not fit: {tensors}, most {where}, and {outside}, in {in_gib}"
        if self.fit == "fits":
            return f"fits: {self.most / 2**30:.1f} of {in_gib} at most"
        near = format_share(max(0, self.available - self.least), self.available)
        return (
            f"fits barely: tensors and the {outside} are within {near} of the {in_gib}, and with its gaps the "
            f"allocator would hold {self.most / 2**30:.1f} GiB; where it has to give memory back and ask again, a "
            f"step can take {RETRIED[0]} to {RETRIED[1]} times as long as predicted"
        )

    @cached_property
    def causes(self) -> pl.DataFrame:
        """Uses of the memory, the largest first; columns ``what`` and ``size`` in bytes.

        Activations have a row for each module that keeps some; repeated layers share one.
        """
        parts = {what: size for what, size in self.peak.parts.items() if size and what != "activations"}
        activations = self.peak.parts["activations"]
        rows = {f"activations of {module}": size for module, size in self.peak.kept.items()}
        parts |= rows | {"activations": activations - sum(rows.values())}
        parts["pools of other streams"] = int(self) - self.peak.tensors
        parts["outside the allocator"] = self.outside
        ordered = sorted(((what, size) for what, size in parts.items() if size > 0), key=lambda row: -row[1])
        return pl.DataFrame(ordered, schema={"what": pl.String, "size": pl.Int64}, orient="row")

    @cached_property
    def savings(self) -> tuple[Saving, ...]:
        """Changes that need less memory, the largest first; each is meant without the others."""
        return tuple(sorted(self._saved(), key=lambda saving: -saving.frees))

    def lines(self) -> list[str]:
        """Return the verdict, the five largest causes, and the savings."""
        causes = ", ".join(f"{what} {format_bytes(size)}" for what, size in self.causes.head(5).iter_rows())
        return [self.verdict(), causes, *map(str, self.savings)]

    def __hash__(self) -> int:
        return hash(int(self))


def outside_bytes(tables: Tables, rank: int, cluster: Cluster, domain: int) -> int:
    """Return the bytes of a rank's GPU that torch's allocator does not hold; 0 for processes on a CPU.

    Args:
        tables: trace whose events say which communicators the rank has.
        rank: traced rank.
        cluster: cluster with the GPU.
        domain: number of consecutive ranks that share the fast links.
    """
    if cluster.topology == "host":
        return 0
    channels = GENERATIONS[cluster.generation].channels
    buffers = 0
    events = tables.events.filter(pl.col("rank") == rank)
    used = events.group_by("group").agg(pl.col("op").unique(), pl.col("group_size").max(), pl.col("peer").n_unique())
    for _group, ops, size, peers in used.iter_rows():
        if size < 2:
            continue
        if set(ops) - {"send", "recv", "all_to_all", "barrier"}:
            buffers += channels * (1 + _TREE * ("all_reduce" in ops and size > domain))
        if "all_to_all" in ops:
            buffers += _PEER_CHANNELS * (min(size, domain) - 1)
        if {"send", "recv"} & set(ops):
            buffers += _PEER_CHANNELS * peers
    return CONTEXT + buffers * CONNECTION
