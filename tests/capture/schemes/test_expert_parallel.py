"""Mixture of experts: tokens go to the ranks of their experts and back by all_to_all.

Modules: ``capture/collectives/ops.py``, ``capture/stack/stack_reading.py``.

Symbols: L layers, n ranks, C tokens per rank and expert (its capacity), D width, e bytes per element.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from dsexplore._internal.capture.record import record

LAYERS, RANKS, CAPACITY = 3, 4, 5


class Experts(nn.Module):
    """Each rank holds one expert; ``sent`` and ``received`` tokens per rank, None for equal parts."""

    def __init__(self, width: int, mesh: DeviceMesh, sent: Any, received: Any) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.mesh, self.sent, self.received = mesh, sent, received

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mine = all_to_all_single_autograd(tokens, self.received, self.sent, self.mesh)
        done = self.down(torch.relu(self.up(mine)))
        return all_to_all_single_autograd(done, self.sent, self.received, self.mesh)


class Layer(nn.Module):
    def __init__(self, width: int, mesh: DeviceMesh, sent: Any = None, received: Any = None) -> None:
        super().__init__()
        self.norm, self.router = nn.RMSNorm(width), nn.Linear(width, RANKS)
        self.experts = Experts(width, mesh, sent, received)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.router(x).softmax(-1).amax(-1, keepdim=True)
        return x + weight * self.experts(self.norm(x))


class Mixture(nn.Module):
    def __init__(self, width: int, mesh: DeviceMesh, sent: Any = None, received: Any = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width, mesh, sent, received) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_equal_parts(world: Callable[..., DeviceMesh], sizes: SimpleNamespace, totals: Any) -> None:
    """2L all_to_all forward and 2L backward, each of n·C·D·e."""
    mesh = world(f"ep={RANKS}")
    model = Mixture(sizes.d, mesh)
    with record() as trace:
        model(torch.ones(RANKS * CAPACITY, sizes.d)).sum().backward()
    size = RANKS * CAPACITY * sizes.d * sizes.float
    # the first layer's first all_to_all needs no backward of its input, but its norm's weight does
    assert totals(trace, "phase", "op", "axis") == {
        (phase, "all_to_all", "ep"): (2 * LAYERS, 2 * LAYERS * size) for phase in ("forward", "backward")
    }
    owners = totals(trace, "owner")
    assert owners == {f"Mixture.layers.{i}.experts": (4, 4 * size) for i in range(LAYERS)}
    assert set(trace.events["wire_bytes"]) == {size * (RANKS - 1) // RANKS}


@pytest.mark.parametrize(("sent", "received"), [((1, 7, 2, 4), (1, 0, 5, 1)), ((2, 1, 1, 1), (2, 9, 0, 4))])
def test_uneven_parts(
    world: Callable[..., DeviceMesh],
    sizes: SimpleNamespace,
    totals: Any,
    sent: tuple[int, ...],
    received: tuple[int, ...],
) -> None:
    """Each of the 2L + 2L counts the larger of what the rank sends and receives: max(Σ sent, Σ received)·D·e."""
    model = Mixture(sizes.d, world(f"ep={RANKS}"), list(sent), list(received))
    with record() as trace:
        model(torch.ones(sum(sent), sizes.d)).sum().backward()
    size = max(sum(sent), sum(received)) * sizes.d * sizes.float
    assert totals(trace, "phase", "op") == {
        (phase, "all_to_all"): (2 * LAYERS, 2 * LAYERS * size) for phase in ("forward", "backward")
    }


def test_nothing_to_send(world: Callable[..., DeviceMesh], sizes: SimpleNamespace, totals: Any) -> None:
    """Ranks without tokens take part too, and count what they receive."""
    model = Experts(sizes.d, world(f"ep={RANKS}", fake=True), [0] * RANKS, [0, 2, 0, 3])
    with record() as trace:
        model(torch.ones(0, sizes.d))
    assert totals(trace, "op")["all_to_all"] == (2, 2 * 5 * sizes.d * sizes.float)


def test_with_data_parallelism(world: Callable[..., DeviceMesh], sizes: SimpleNamespace, totals: Any) -> None:
    """On dp=2 × ep=4 with each layer sharded over dp: beside the all_to_all, L gathers forward and L scatters; each
    layer is a root of its own, which keeps its parameters for backward."""
    mesh = world("dp=2,ep=4")
    model = Mixture(sizes.d, mesh["ep"])
    for layer in model.layers:
        fully_shard(layer, mesh=mesh["dp"])
    with record() as trace:
        model(torch.ones(RANKS * CAPACITY, sizes.d)).sum().backward()
    counts = {key: count for key, (count, _) in totals(trace, "phase", "op", "axis").items()}
    assert counts == {
        ("forward", "all_to_all", "ep"): 2 * LAYERS,
        ("backward", "all_to_all", "ep"): 2 * LAYERS,
        ("forward", "all_gather", "dp"): LAYERS,
        ("backward", "reduce_scatter", "dp"): LAYERS,
    }


class Exchanging(nn.Module):
    """Uneven all_to_all by torch.distributed's own calls."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.shape[1:]
        single = x.new_empty(9, *rows)
        dist.all_to_all_single(single, x, [1, 3, 2, 3], [1, 2, 2, 1])
        parts = [x.new_empty(count, *rows) for count in (1, 3, 2, 3)]
        dist.all_to_all(parts, list(x.split([1, 2, 2, 1])))
        return single


def test_torch_distributed_calls(world: Callable[..., DeviceMesh], sizes: SimpleNamespace, column: Any) -> None:
    """6 rows sent, 9 received: 9·D·e, by all_to_all_single and by all_to_all of lists."""
    world(f"ep={RANKS}", fake=True)
    with record() as trace:
        Exchanging()(torch.ones(6, sizes.d))
    assert column(trace, "op", "raw_op", "trigger", "message_bytes") == [
        ("all_to_all", raw_op, "Exchanging", 9 * sizes.d * sizes.float)
        for raw_op in ("c10d::alltoall_base_", "c10d::alltoall_")
    ]
