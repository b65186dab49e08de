"""The most memory that one rank needs in a step, what it is for, and when in the step it is needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import polars as pl

USES = ("parameters", "gradients", "optimizer", "activations", "buffers")


@dataclass(frozen=True)
class PeakMemory:
    """Memory of one rank at its peak.

    Attributes:
        rank: the rank that needs most, of those in the trace.
        size: bytes that the allocator holds: those of all tensors together and, where FSDP2 allocates on streams of its
            own, what it keeps for these: memory of one stream is not given to another, so the peaks of gathered
            parameters and of reduced gradients come on top of the peak of the rest.
        tensors: bytes of all tensors together.
        parts: bytes by use, in the order of `USES`.
        phase: of the step at the peak.
        module: the module that ran at the peak.
        curve: bytes of all segments of the step, in program order: ``segment``, ``phase``, ``module``, one column per
            use, ``total``.
    """

    rank: int
    size: int
    tensors: int
    parts: Mapping[str, int]
    phase: str
    module: str
    curve: pl.DataFrame

    @property
    def where(self) -> str:
        """Phase and module in which the peak is, as text: ``"in backward of Llama.layers.3"``."""
        return f"in {self.phase}" + (f" of {self.module}" if self.module else "")


def peak_memory(memory: pl.DataFrame, step: int, has_streams: bool) -> PeakMemory:
    """Return the peak of a step that is preceded by steps like it, on the rank with the largest one.

    A first step creates the optimizer state at its end; later steps hold it from the start, so it is added.

    Args:
        memory: with columns `schema.MEMORY`.
        step: whose peak.
        has_streams: whether FSDP2 gathers and reduces on streams of its own.
    """
    peaks = [
        _of_rank(memory.filter(rank=rank), int(rank), step, has_streams) for rank in memory["rank"].unique().sort()
    ]
    return max(peaks, key=lambda peak: peak.size)


def _of_rank(memory: pl.DataFrame, rank: int, step: int, has_streams: bool) -> PeakMemory:
    state = int(memory.sort("segment")["optimizer"][-1])
    kept = pl.max_horizontal("optimizer", pl.lit(state))
    curve = (
        memory.filter(step=step)
        .sort("segment")
        .with_columns(optimizer=kept)
        .with_columns(total=pl.sum_horizontal(*USES))
        .select("segment", "phase", "module", *USES, "total")
    )
    top = curve.row(int(curve["total"].arg_max() or 0), named=True)
    parts = MappingProxyType({use: top[use] for use in USES})
    size = int(top["total"])
    if has_streams:
        on_streams = [int(curve[use].to_numpy().max()) for use in ("gradients", "buffers")]
        rest = (curve["total"] - curve["gradients"] - curve["buffers"]).to_numpy().max()
        size = int(rest) + sum(on_streams)
    return PeakMemory(rank, size, int(top["total"]), parts, top["phase"], top["module"], curve)
