"""Loss parallelism: cross entropy on logits that stay sharded over the vocabulary.

Modules: ``capture/stack/stack_reading.py``.

Symbols: N = B·T tokens, D width, e bytes per element.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, loss_parallel, parallelize_module

from dsexplore._internal.capture.record import record
from dsexplore._internal.trace.trace import Trace


class Head(nn.Module):
    """Output layer and loss."""

    def __init__(self, sizes: SimpleNamespace) -> None:
        super().__init__()
        self.output = nn.Linear(sizes.d, sizes.vocab, bias=False)
        self.loss = nn.CrossEntropyLoss()

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return self.loss(self.output(x), target)


def trace_of(mesh: DeviceMesh, sizes: SimpleNamespace, placement: Any) -> Trace:
    plan = ColwiseParallel(output_layouts=placement, use_local_output=placement != Shard(-1))
    model = parallelize_module(Head(sizes), mesh, {"output": plan})
    with record() as trace:
        target = torch.zeros(sizes.tokens, dtype=torch.long)
        if placement == Shard(-1):
            with loss_parallel():
                model(torch.ones(sizes.tokens, sizes.d, requires_grad=True), target).backward()
        else:
            model(torch.ones(sizes.tokens, sizes.d, requires_grad=True), target).backward()
    return trace


def test_loss_parallel(world: Callable[..., DeviceMesh], sizes: SimpleNamespace, totals: Any) -> None:
    """Forward 3 all_reduce of N·e: the maximum and the sum of the softmax, and the target's logit. Backward only the
    output layer's input gradient: 1 all_reduce of N·D·e."""
    trace = trace_of(world("tp=4"), sizes, Shard(-1))
    row = sizes.tokens * sizes.float
    assert totals(trace, "phase", "op", "trigger", "cause") == {
        ("forward", "all_reduce", "Head.loss", "aten._log_softmax"): (2, 2 * row),
        ("forward", "all_reduce", "Head.loss", "aten.nll_loss_forward"): (1, row),
        ("backward", "all_reduce", "Head.output", "redistribute P→R"): (1, sizes.d * row),
    }
    assert set(trace.events["axis"]) == {"tp"}


def test_without_it_the_logits_are_gathered(
    world: Callable[..., DeviceMesh], sizes: SimpleNamespace, totals: Any
) -> None:
    """Forward 1 all_gather of N·V·e, which is what loss parallelism saves."""
    trace = trace_of(world("tp=4"), sizes, Replicate())
    size = sizes.tokens * sizes.vocab * sizes.float
    assert totals(trace.where(phase="forward"), "op", "trigger") == {("all_gather", "Head.output"): (1, size)}


@pytest.mark.parametrize("ranks", [2, 8])
def test_its_traffic_does_not_grow_with_ranks(
    world: Callable[..., DeviceMesh], sizes: SimpleNamespace, totals: Any, ranks: int
) -> None:
    """N·e is not divided: each rank sends 2(n−1)/n of it."""
    trace = trace_of(world(f"tp={ranks}"), sizes, Shard(-1)).where(phase="forward")
    row = sizes.tokens * sizes.float
    assert totals(trace, "op") == {"all_reduce": (3, 3 * row)}
    assert set(trace.events["wire_bytes"]) == {2 * row * (ranks - 1) // ranks}
