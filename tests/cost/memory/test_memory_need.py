"""Whether a step fits, barely or not at all; what its memory is for; and what would need less.

Modules: ``dsexplore/_internal/cost/memory/memory_need.py``, ``dsexplore/_internal/cost/memory/memory_savings.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import polars as pl
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import dsexplore
from dsexplore._internal.cost.cluster import Cluster
from dsexplore._internal.cost.memory.memory_need import CONNECTION, CONTEXT, FRAGMENTED, NEAR, outside_bytes
from dsexplore._internal.trace.trace import Trace

DGX = Cluster.load("dgx-h100")


def with_memory(size: float) -> Cluster:
    """Return a DGX H100 whose GPUs have so many bytes."""
    return replace(DGX, memory=replace(DGX.memory, size=size))


@pytest.fixture(scope="module")
def llama(traced_llama: Callable[..., Trace]) -> Trace:
    return traced_llama("dp=4,tp=2", layers=3)


def test_between_fitting_and_not_fitting_a_step_fits_barely(llama: Trace) -> None:
    memory = llama.predict(DGX).memory
    assert memory.fit == "fits"
    assert memory.peak.tensors <= int(memory) < memory.most - memory.outside
    enough = math.ceil(memory.most / NEAR)
    for size, fit in ((enough, "fits"), (enough - 2, "fits barely"), (memory.least, "fits barely")):
        assert llama.predict(with_memory(size)).memory.fit == fit
    small = llama.predict(with_memory(memory.least - 1))
    assert (small.memory.fit, small.fits) == ("does not fit", False)


def test_the_verdict_of_a_step_near_the_limit_is_a_note_with_its_numbers(llama: Trace) -> None:
    memory = llama.predict(DGX).memory
    barely = llama.predict(with_memory(memory.least * 1.02))
    assert barely.fits
    note = next(note for note in barely.notes if note.startswith("fits barely"))
    assert "within 2 %" in note
    assert "3 to 6 times" in note
    assert "barely fit in" in barely._repr_mimebundle_()["text/html"]
    assert not [note for note in llama.predict(DGX).notes if note.startswith("fits")]


def test_expandable_segments_leave_hardly_any_gaps(llama: Trace) -> None:
    prediction = llama.predict(DGX)
    grown = prediction.what_if(expandable_segments=True)
    assert grown.memory == prediction.memory
    assert grown.memory.most < prediction.memory.most
    assert FRAGMENTED[True] < FRAGMENTED[False]
    assert llama.predict(DGX, expandable_segments=True).memory.most == grown.memory.most


def test_more_memory_never_makes_a_verdict_worse(llama: Trace) -> None:
    order = ("does not fit", "fits barely", "fits")
    least = llama.predict(DGX).memory.least
    verdicts = [order.index(llama.predict(with_memory(least * f / 10)).memory.fit) for f in range(8, 16)]
    assert verdicts == sorted(verdicts)
    assert {0, 1, 2} == set(verdicts)


def test_the_causes_are_all_of_the_memory(llama: Trace) -> None:
    memory = llama.predict(DGX).memory
    assert memory.causes["size"].sum() == pytest.approx(int(memory) + memory.outside, rel=1e-6)
    assert memory.causes["size"].is_sorted(descending=True)
    assert memory.causes["what"].str.contains("layers.*", literal=True).any()


def test_the_peaks_of_all_traced_ranks_are_listed_and_the_largest_counts(llama: Trace) -> None:
    pipeline = dsexplore.Trace.merge([llama, _renumbered(llama, 1, 2)])
    peak = pipeline.predict(DGX).peak
    alone = llama.predict(DGX).peak
    assert peak.by_rank == {alone.rank: alone.size, 1: peak.size}
    assert (peak.rank, peak.size) == (1, max(peak.by_rank.values()))
    assert peak.size > alone.size
    assert sum(peak.kept.values()) <= peak.parts["activations"]


def _renumbered(trace: Trace, rank: int, factor: int) -> Trace:
    """Return a trace as that of another rank, with so many times the activations."""
    tables = trace.tables
    frames = {
        name: getattr(tables, name).with_columns(rank=pl.lit(rank, getattr(tables, name).schema["rank"]))
        for name in ("events", "kernels", "memory", "parameters")
    }
    frames["memory"] = frames["memory"].with_columns(activations=pl.col("activations") * factor)
    return Trace(replace(tables, **frames, info=replace(tables.info, ranks=(rank,))))


def test_each_communicator_has_buffers_outside_the_allocator(llama: Trace) -> None:
    rank = llama.predict(DGX).rank
    assert outside_bytes(llama.tables, rank, DGX, 8) > CONTEXT + CONNECTION
    # A tree over nodes has connections besides; a CPU has no such memory.
    assert outside_bytes(llama.tables, rank, DGX, 1) > outside_bytes(llama.tables, rank, DGX, 8)
    assert outside_bytes(llama.tables, rank, Cluster.load("gloo-local"), 8) == 0


def test_a_gradient_buffer_in_fp32_counts() -> None:
    """Frameworks that accumulate in fp32 have four bytes for each parameter from the beginning on."""
    with dsexplore.simulate(1, fake=True):
        model = nn.Linear(256, 256, bias=False).to(torch.bfloat16)
        sums = torch.zeros(256, 256)
        with dsexplore.commtrace(costs=True) as trace:
            model(torch.randn(64, 256, dtype=torch.bfloat16)).sum().backward()
            sums.add_(model.weight.grad)
    assert trace.predict().memory.peak.tensors >= 256 * 256 * (2 + 2 + 4)


class Deep(nn.Module):
    """Eight layers that keep much for backward, of which each may be computed again."""

    def __init__(self, again: bool) -> None:
        super().__init__()
        self.again = again
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)) for _ in range(8)
        )

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            value = checkpoint(layer, value, use_reentrant=False) if self.again else layer(value)
        return value


def deep(again: bool = False) -> Trace:
    with dsexplore.commtrace(mesh="dp=2", fake=True, costs=True) as trace:
        Deep(again)(torch.randn(8192, 256, requires_grad=True)).sum().backward()
    return trace


def test_recomputing_layers_frees_what_they_keep_for_the_time_of_their_forward() -> None:
    prediction = deep().predict(DGX)
    saving = next(saving for saving in prediction.memory.savings if saving.what.startswith("recompute"))
    again = deep(again=True).predict(DGX)
    assert saving.frees >= prediction.peak.tensors - again.peak.tensors > 0.5 * saving.frees
    # A recomputation ends where nothing more is saved, so the last product of each layer is left out.
    longer = again.compute.expected - prediction.compute.expected
    assert 0.5 * saving.seconds < longer <= saving.seconds
    assert not [one for one in again.memory.savings if one.what.startswith("recompute")]
    assert "frees up to" in str(saving)
    assert any("recompute" in line for line in prediction.memory.lines())


def test_savings_are_named_largest_first_and_have_a_price(llama: Trace) -> None:
    memory = llama.predict(DGX).memory
    assert [one.frees for one in memory.savings] == sorted((one.frees for one in memory.savings), reverse=True)
    assert all(one.frees > 0 and one.seconds >= 0 for one in memory.savings)
    assert any("optimizer" in one.what for one in memory.savings)
