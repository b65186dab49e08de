"""The most memory that one rank needs in a step, what it is for, and when in the step it is needed."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import polars as pl

USES = ("parameters", "gradients", "optimizer", "activations", "buffers", "inputs")


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
        kept: bytes of activations at the peak by the module whose forward left them; repeated layers together, as
            ``"Llama.layers.*"``.
        curve: bytes of all segments of the step, in program order: ``segment``, ``phase``, ``module``, one column per
            use, ``total``.
    """

    rank: int
    size: int
    tensors: int
    parts: Mapping[str, int]
    phase: str
    module: str
    kept: Mapping[str, int]
    curve: pl.DataFrame

    @property
    def where(self) -> str:
        """Phase and module in which the peak is, as text: ``"in backward of Llama.layers.3"``."""
        return f"in {self.phase}" + (f" of {self.module}" if self.module else "")


def peak_memory(memory: pl.DataFrame, kernels: pl.DataFrame, step: int, has_streams: bool) -> PeakMemory:
    """Return the peak of a step that is preceded by steps like it, on the rank with the largest one.

    A first step creates the optimizer state at its end; later steps hold it from the start, so it is added.

    Args:
        memory: with columns `schema.MEMORY`.
        kernels: with columns `schema.KERNELS`, by which activations are parted.
        step: whose peak.
        has_streams: whether FSDP2 gathers and reduces on streams of its own.
    """
    peaks = [
        _rank_peak(memory.filter(rank=rank), kernels.filter(rank=rank, step=step), int(rank), step, has_streams)
        for rank in memory["rank"].unique().sort()
    ]
    return max(peaks, key=lambda peak: peak.size)


def _rank_peak(memory: pl.DataFrame, kernels: pl.DataFrame, rank: int, step: int, has_streams: bool) -> PeakMemory:
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
    grown = _grown(curve.head(1 + int(curve["total"].arg_max() or 0)), kernels)
    there = min(1.0, parts["activations"] / max(sum(grown.values()), 1.0))  # backward has freed the rest
    by_layer = MappingProxyType({layer: int(size * there) for layer, size in grown.items()})
    return PeakMemory(
        rank,
        size,
        tensors=int(top["total"]),
        parts=parts,
        phase=top["phase"],
        module=top["module"],
        kept=by_layer,
        curve=curve,
    )


def _grown(curve: pl.DataFrame, kernels: pl.DataFrame) -> dict[str, float]:
    """Return the bytes by which activations grow in the forward of each layer: those that backward reads.

    The growth of a segment, which may have many layers, is parted by the bytes that their kernels write in it.
    """
    written = kernels.filter(pl.col("phase") == "forward", pl.col("module") != "")
    shares: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for segment, module, size in written.group_by("segment", "module").agg(pl.sum("written_bytes")).iter_rows():
        shares[segment][layer_of(module)] += size
    grown: dict[str, float] = defaultdict(float)
    before = 0
    for segment, now in curve.select("segment", "activations").iter_rows():
        whole = sum(shares[segment].values())
        for layer, size in shares[segment].items():
            grown[layer] += (now - before) * size / whole if whole else 0.0
        before = now
    return {layer: size for layer, size in sorted(grown.items()) if size > 0}


def layer_of(module: str) -> str:
    """Return a module's path with its first number, and what follows, replaced.

    Example:
        >>> layer_of("Llama.layers.3.mlp"), layer_of("Llama.output")
        ('Llama.layers.*', 'Llama.output')
    """
    return re.sub(r"\.\d+(\..*|$)", ".*", module)
