"""One parameter through a step."""

from __future__ import annotations

import polars as pl
import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import dsexplore
from dsexplore import Trace
from dsexplore._internal.errors import UsageError


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16, bias=False), nn.Linear(16, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x).relu())  # type: ignore[no-any-return]


def step(model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(4, 8, requires_grad=True)).sum().backward()
    optimizer.step()


@pytest.fixture(scope="module")
def sharded() -> Trace:
    """Two blocks with tensor parallelism and FSDP2."""
    with dsexplore.simulate(mesh="dp=2,tp=4") as mesh, dsexplore.commtrace() as trace:
        model = nn.Sequential(Block(), Block())
        for block in model:
            parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
            fully_shard(block, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])
        step(model)
    return trace


def test_fsdp_gathers_frees_and_reduces(sharded: Trace) -> None:
    history = sharded.parameter_history("0.up.weight")
    assert history.unit.endswith("Sequential.0")
    found = history.to_frame().filter(~pl.col("what").is_in(["used", "placed"]))
    assert found["what"].to_list() == ["gathered", "freed", "gathered", "gradient reduced"]
    assert found["phase"].to_list() == ["forward", "forward", "backward", "backward"]
    assert found["with_parameters"].to_list() == [2, None, 2, 2]
    assert history.parameter["placements"] == "_S(0, 4), S(0)"


def test_ddp_places_it_at_start_up() -> None:
    with dsexplore.simulate(4), dsexplore.commtrace() as trace:
        DistributedDataParallel(nn.Sequential(Block(), Block()))
    assert trace.events.filter(cause="model broadcast").height == 1
    placed = trace.parameter_history("1.up.weight").to_frame().filter(what="placed")
    assert placed.select("phase", "op", "cause").rows() == [("start-up", "broadcast", "model broadcast")]


def test_tensor_parallelism_uses_it(sharded: Trace) -> None:
    used = sharded.parameter_history("Sequential.1.down.weight").to_frame().filter(what="used")
    rows = [("forward", "all_reduce", "tp"), ("backward", None, None)]
    assert used.select("phase", "op", "axis").rows() == rows


def test_its_events_are_a_trace(sharded: Trace) -> None:
    history = sharded.parameter_history("0.up.weight")
    assert set(history.trace.events["owner"]) <= {"Sequential.0", "Sequential.0.up"}
    assert len(history.trace) == history.to_frame()["row"].drop_nulls().len()


def test_ddp_reduces_its_gradient() -> None:
    with dsexplore.simulate(4), dsexplore.commtrace() as trace:
        step(DistributedDataParallel(Block()))
    found = trace.parameter_history("up.weight").to_frame()
    rows = [("used", None), ("gradient reduced", "all_reduce")]
    assert found.filter(phase="backward").select("what", "op").rows() == rows


def test_a_step_is_followed_to_its_update_where_kernels_are_recorded() -> None:
    """Gathered, used, freed, gathered, used, reduced and updated, in this order; without kernels no update is known."""
    days = []
    for costs in (False, True):
        with dsexplore.simulate(4) as mesh, dsexplore.commtrace(costs=costs) as trace:
            model = nn.Sequential(*(fully_shard(Block(), mesh=mesh) for _ in range(2)))
            step(fully_shard(model, mesh=mesh))
        days.append(trace.parameter_history("0.up.weight").to_frame()["what"].to_list())
    whole = ["gathered", "used", "freed", "gathered", "used", "gradient reduced", "updated"]
    assert days == [whole[:-1], whole]


def test_a_module_that_did_not_run_uses_nothing() -> None:
    with dsexplore.simulate(2), dsexplore.commtrace() as trace:
        block = Block()
        block.forward = block.up.forward  # type: ignore[method-assign]  # down is left out
        block(torch.ones(4, 8))
    assert trace.parameter_history("down.weight").to_frame().is_empty()
    assert trace.parameter_history("up.weight").to_frame().is_empty()


def test_an_unknown_name_is_refused_with_the_near_one(sharded: Trace) -> None:
    with pytest.raises(UsageError, match=r"did you mean '0\.up\.weight'"):
        sharded.parameter_history("0.up.wieght")
    with pytest.raises(UsageError, match=r"several end so: \w+\.0\.up\.weight, \w+\.1\.up\.weight"):
        sharded.parameter_history("up.weight")
