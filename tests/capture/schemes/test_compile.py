"""torch.compile stays on while recording, and what a compiled region sends belongs to the compiled module.

Modules: ``capture/stack/stack_reading.py``, ``capture/modules/compiled_modules.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._dynamo.utils import counters
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from dsexplore._internal.capture.record import record
from dsexplore._internal.torch_internals.names import torch_at_least
from dsexplore._internal.trace.trace import Trace

BLOCKS = 2


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


class Feeds(nn.Module):
    """Feed-forward blocks, each tensor-parallel: w1 and w3 by columns, w2 by rows."""

    def __init__(self, block: Callable[[], Any], mesh: DeviceMesh) -> None:
        super().__init__()
        plan = {"w1": ColwiseParallel(), "w3": ColwiseParallel(), "w2": RowwiseParallel()}
        self.blocks = nn.ModuleList(parallelize_module(block().mlp, mesh, plan) for _ in range(BLOCKS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def step(model: Any, sizes: SimpleNamespace) -> Trace:
    with record() as trace:
        model(torch.ones(sizes.tokens, sizes.d, requires_grad=True)).sum().backward()
    return trace


def graphs() -> int:
    """Return how many graphs have been compiled."""
    return counters["stats"]["unique_graphs"]


def test_the_whole_model(world: Callable[..., DeviceMesh], block: Any, sizes: SimpleNamespace, totals: Any) -> None:
    """Per block forward 1 all_reduce of A = B·T·D·e and backward 2 (the gradients of w1's and w3's input), all in
    one graph: the compiled model's. A second recording and a run without recording use that graph again."""
    model = Feeds(block, world("tp=4"))
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    size = sizes.tokens * sizes.d * sizes.float
    expected = {
        ("forward", "all_reduce", "Feeds", "compiled"): (BLOCKS, BLOCKS * size),
        ("backward", "all_reduce", "Feeds", "compiled"): (2 * BLOCKS, 2 * BLOCKS * size),
    }
    for _ in range(2):
        trace = step(compiled, sizes)
        assert totals(trace, "phase", "op", "trigger", "cause") == expected
    assert "GraphModule" not in set(trace.modules["type"])
    compiled(torch.ones(sizes.tokens, sizes.d, requires_grad=True)).sum().backward()
    assert graphs() == 1


def test_compiled_blocks(world: Callable[..., DeviceMesh], block: Any, sizes: SimpleNamespace, totals: Any) -> None:
    """Each block compiled on its own: its 1 + 2 all_reduce are its own, forward and backward; both blocks share one
    graph, which a second recording uses again."""
    model = Feeds(block, world("tp=4"))
    for part in model.blocks:
        part.compile(backend="aot_eager", fullgraph=True)
    size = sizes.tokens * sizes.d * sizes.float
    for _ in range(2):
        trace = step(model, sizes)
        assert totals(trace, "phase", "owner") == {
            (phase, f"Feeds.blocks.{index}"): (count, count * size)
            for phase, count in (("forward", 1), ("backward", 2))
            for index in range(BLOCKS)
        }
        assert graphs() == 1
    assert dict(trace.modules.select("module", "calls").iter_rows())["Feeds.blocks.1"] == 1


NO_GENERATORS = pytest.mark.skipif(
    torch_at_least("2.10") and not torch_at_least("2.12"),
    reason="torch 2.11 compiles no such hooks",
)


@NO_GENERATORS
@pytest.mark.parametrize("first", ["recorded", "unrecorded"])
def test_a_recorded_run_compiles_what_an_unrecorded_one_does(
    first: str, world: Callable[..., DeviceMesh], sizes: SimpleNamespace
) -> None:
    """Before version 2.14 torch.compile leaves ``Sequential`` itself to Python, as it has no hook, and makes graphs of
    the linears, whose placements are changed in hooks."""
    plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
    parts = nn.Sequential(nn.Linear(sizes.d, sizes.ffn, bias=False), nn.Linear(sizes.ffn, sizes.d, bias=False))
    model = parallelize_module(parts, world("tp=4"), plan)
    model.compile(backend="aot_eager", fullgraph=True)
    counts = []
    for recorded in (first == "recorded", first == "unrecorded", True):
        with record() if recorded else nullcontext():
            model(torch.ones(sizes.tokens, sizes.d, requires_grad=True)).sum().backward()
        counts.append(graphs())
    assert (counts[0] > 1) is not torch_at_least("2.14")
    assert counts == [counts[0]] * 3


@NO_GENERATORS
def test_a_module_that_is_met_between_graphs_is_not_compiled_with_the_recorder(
    world: Callable[..., DeviceMesh], sizes: SimpleNamespace
) -> None:
    """``Sequential`` is left to Python, where torch.compile looks at each function that is called."""
    mesh = world("tp=4")
    layers = [parallelize_module(nn.Linear(sizes.d, sizes.d), mesh, ColwiseParallel()) for _ in range(2)]
    model = nn.Sequential(layers[0])
    model.compile(backend="aot_eager", fullgraph=True)
    x = torch.ones(sizes.tokens, sizes.d)
    gathered = nn.Sequential(layers[1])  # as a module of another model it is not met with this one
    with record() as trace:
        model(x)
        before = graphs()
        model[0] = gathered[0]
        model(x)
    assert graphs() == before
    assert dict(trace.modules.select("module", "calls").iter_rows())["Sequential"] == 2


class Stack(nn.Sequential):
    """A sequence of modules that torch.compile compiles as one, as its forward is not part of torch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self:
            x = part(x)
        return x


def test_inductor(world: Callable[..., DeviceMesh], sizes: SimpleNamespace, totals: Any) -> None:
    """Torch's default backend calls its ops from generated code, in place: a row-parallel linear sends the same
    1 all_reduce of A forward, and a column-parallel one 1 backward."""
    mesh = world("tp=4")
    plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
    parts = Stack(nn.Linear(sizes.d, sizes.ffn, bias=False), nn.Linear(sizes.ffn, sizes.d, bias=False))
    model = parallelize_module(parts, mesh, plan)
    model.compile(fullgraph=True)
    size = sizes.tokens * sizes.d * sizes.float
    trace = step(model, sizes)
    assert totals(trace, "phase", "op", "raw_op", "trigger", "cause") == {
        (phase, "all_reduce", "_c10d_functional::all_reduce_", "Stack", "compiled"): (1, size)
        for phase in ("forward", "backward")
    }
    assert graphs() == 1
    assert set(trace.events["axis"]) == {"tp"}


def test_compiled_blocks_under_fsdp(
    world: Callable[..., DeviceMesh], llama: Any, tokens: torch.Tensor, totals: Any
) -> None:
    """FSDP2 communicates in hooks around the compiled blocks: L + 1 gathers forward, L backward, L + 1 scatters."""
    mesh = world("dp=4")
    model = llama(BLOCKS)
    for layer in model.layers:
        layer.compile(backend="aot_eager")
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    with record() as trace:
        model(tokens).sum().backward()
    assert graphs() >= 1
    assert {key: count for key, (count, _) in totals(trace, "phase", "op").items()} == {
        ("forward", "all_gather"): BLOCKS + 1,
        ("backward", "all_gather"): BLOCKS,
        ("backward", "reduce_scatter"): BLOCKS + 1,
    }
    owners = {"Llama", *(f"Llama.layers.{index}" for index in range(BLOCKS))}
    assert set(trace.events["owner"]) == owners


class Broken(nn.Module):
    """Has a graph break, and a collective on either side."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.distributed._functional_collectives.all_reduce(self.inner(x), "sum", dist.group.WORLD)
        torch._dynamo.graph_break()
        return torch.distributed._functional_collectives.all_reduce(x * 2, "sum", dist.group.WORLD)


def test_a_graph_break(world: Callable[..., DeviceMesh], column: Any) -> None:
    world("dp=4")
    model = torch.compile(Broken(), backend="aot_eager")
    for _ in range(2):
        with record() as trace, torch.no_grad():
            model(torch.ones(2, 4))
        assert column(trace, "op", "phase", "trigger", "message_bytes") == [("all_reduce", "forward", "Broken", 32)] * 2
        assert graphs() == 2
