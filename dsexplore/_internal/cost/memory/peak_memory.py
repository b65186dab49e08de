"""The most memory that one rank needs in a step, what it is for, and when in the step it is needed."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import polars as pl

USES = ("parameters", "gradients", "optimizer", "activations", "buffers", "inputs")


@dataclass(frozen=True)
class PeakMemory:
    """Memory of one rank at its peak.

    Attributes:
        rank: Traced rank with the largest peak.
        size: Bytes that the allocator holds. FSDP2 allocates on streams of its own, and memory of one stream is not
            given to another: there the peaks of gathered parameters and of reduced gradients come on top of the
            peak of the other tensors.
        tensors: Bytes of all tensors together.
        parts: Bytes by use, in the order of `USES`.
        phase: Phase of the step at the peak.
        module: Module that ran at the peak.
        curve: Bytes in each segment of the step, in program order; columns ``segment``, ``phase``, ``module``, one per
            use, and ``total``.
        by_rank: Bytes that the allocator of each traced rank holds at that rank's own peak.
    """

    rank: int
    size: int
    tensors: int
    parts: Mapping[str, int]
    phase: str
    module: str
    curve: pl.DataFrame
    by_rank: Mapping[int, int]
    _kernels: pl.DataFrame

    @property
    def where(self) -> str:
        """Phase and module of the peak as text: ``"in backward of Llama.layers.3"``."""
        return f"in {self.phase}" + (f" of {self.module}" if self.module else "")

    @cached_property
    def kept(self) -> Mapping[str, int]:
        """Bytes of activations at the peak by the module whose forward made them; repeated layers are one entry."""
        peak = int(self.curve["total"].arg_max() or 0)
        grown = _grown(self.curve.head(1 + peak), self._kernels)
        live = min(1.0, self.parts["activations"] / max(sum(grown.values()), 1.0))  # backward has freed the rest
        return MappingProxyType({layer: int(size * live) for layer, size in grown.items()})


def peak_memory(memory: pl.DataFrame, kernels: pl.DataFrame, step: int, has_streams: bool) -> PeakMemory:
    """Return the peak of a step that is preceded by steps like it, on the rank with the largest one.

    A first step creates the optimizer's state at its end; later steps hold it from the start, so it is added.

    Args:
        memory: table of bytes by segment, with columns `schema.MEMORY`.
        kernels: table of kernels, with columns `schema.KERNELS`; the bytes that they write divide activations among
            modules.
        step: number of the step.
        has_streams: whether FSDP2 gathers and reduces on streams of its own.
    """
    curves = {int(rank): _curve(memory.filter(rank=rank), step) for rank in memory["rank"].unique().sort()}
    sizes = {rank: _allocated(curve, has_streams) for rank, curve in curves.items()}
    rank = max(sizes, key=sizes.__getitem__)
    curve = curves[rank]
    top = curve.row(int(curve["total"].arg_max() or 0), named=True)
    return PeakMemory(
        rank=rank,
        size=sizes[rank],
        tensors=int(top["total"]),
        parts=MappingProxyType({use: top[use] for use in USES}),
        phase=top["phase"],
        module=top["module"],
        curve=curve,
        by_rank=MappingProxyType(sizes),
        _kernels=kernels.filter(rank=rank, step=step),
    )


def _curve(memory: pl.DataFrame, step: int) -> pl.DataFrame:
    """Return the bytes of one rank in each segment of a step, as `PeakMemory.curve` has them."""
    state = int(memory.sort("segment")["optimizer"][-1])
    return (
        memory.filter(step=step)
        .sort("segment")
        .with_columns(optimizer=pl.max_horizontal("optimizer", pl.lit(state)))
        .with_columns(total=pl.sum_horizontal(*USES))
        .select("segment", "phase", "module", *USES, "total")
    )


def _allocated(curve: pl.DataFrame, has_streams: bool) -> int:
    """Return the most bytes that the allocator holds in a step, as `PeakMemory.size` explains."""
    if not has_streams:
        return int(curve["total"].to_numpy().max())
    on_streams = [int(curve[use].to_numpy().max()) for use in ("gradients", "buffers")]
    others = (curve["total"] - curve["gradients"] - curve["buffers"]).to_numpy().max()
    return int(others) + sum(on_streams)


def _grown(curve: pl.DataFrame, kernels: pl.DataFrame) -> dict[str, float]:
    """Return the bytes by which activations grow in the forward of each layer: those kept for backward.

    A segment may have several layers: its growth is divided among them by the bytes that their kernels write.
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
