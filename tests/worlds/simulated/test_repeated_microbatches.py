"""Pipeline steps that repeat microbatches record what steps record that run them all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel

from dsexplore.analysis.likeness import first_difference
from dsexplore.trace.trace import Trace
from dsexplore.worlds.commtrace import commtrace
from dsexplore.worlds.simulate import simulate
from dsexplore.worlds.simulated.repeated_microbatches import NotAlike, repeated_microbatches

STAGES, MICROBATCHES = 4, 10
Wrap = Callable[[nn.Module, Any], nn.Module]


class Counted(nn.Module):
    """Sends one message more in each microbatch that ``sends`` names, forward or backward."""

    def __init__(self, sends: Callable[[int], int] = lambda _microbatch: 0, *, in_backward: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.sends, self.in_backward = sends, in_backward
        self.forwards = self.backwards = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.forwards += 1
        out: torch.Tensor = self.linear(x)
        if not self.in_backward:
            self._send(self.forwards)
        elif out.requires_grad:
            out.register_hook(self._hook)
        return out

    def _hook(self, _gradient: torch.Tensor) -> None:
        self.backwards += 1
        self._send(self.backwards)

    def _send(self, number: int) -> None:
        for _ in range(self.sends(number)):
            dist.all_reduce(torch.ones(2))


def plain(module: nn.Module, _mesh: Any) -> nn.Module:
    return module


def sharded(module: nn.Module, mesh: Any) -> nn.Module:
    for part in module.children():
        fully_shard(part, mesh=mesh["dp"])
    return fully_shard(module, mesh=mesh["dp"])


def replicated(module: nn.Module, mesh: Any) -> nn.Module:
    return DistributedDataParallel(module, process_group=mesh.get_group("dp"))


def traced(
    index: int, kind: type[Any], wrap: Wrap, inner: nn.Module, *, repeats: bool, steps: int = 1, costs: bool = False
) -> tuple[Trace, list[bool]]:
    """The trace of one stage, and for each call that was repeated one entry."""
    repeated: list[bool] = []
    with simulate(mesh=f"pp={STAGES},dp=2", rank=index * 2, fake=True) as mesh:
        module = wrap(nn.Sequential(nn.Linear(4, 4), inner), mesh)
        example = torch.zeros(1, 4, requires_grad=index > 0)
        described = example, torch.zeros(1, 4, requires_grad=True)
        stage = PipelineStage(module, index, STAGES, torch.device("cpu"), *described, group=mesh.get_group("pp"))
        schedule = kind(stage, MICROBATCHES, loss_fn=nn.MSELoss())
        batch = torch.zeros(MICROBATCHES, 4)
        sent = () if index else (batch,)
        target: dict[str, Any] = {"target": batch, "losses": []} if index == STAGES - 1 else {}
        with (
            commtrace(costs=costs) as trace,
            repeated_microbatches(lambda: repeated.append(True)) if repeats else nullcontext(),
        ):
            for _ in range(steps):
                output = schedule.step(*sent, **target)
                assert output is None or len(output) == MICROBATCHES
                assert len(target.get("losses", batch)) == MICROBATCHES
                trace.step()
        assert all(parameter.grad is not None for parameter in module.parameters())
    return trace, repeated


def same(one: Trace, other: Trace) -> bool:
    """Whether two traces are equal to the last number, but for the names of groups, which no two worlds share."""
    assert first_difference(one.tables, other.tables) == ""
    return one.events.drop("group").equals(other.events.drop("group"))


@pytest.mark.parametrize("index", [0, 1, 3])
@pytest.mark.parametrize("kind", [ScheduleGPipe, Schedule1F1B])
@pytest.mark.parametrize("wrap", [plain, sharded, replicated])
def test_what_is_repeated_is_what_would_be_run(index: int, kind: type[Any], wrap: Wrap) -> None:
    counted = Counted(lambda _microbatch: 1)
    trace, repeated = traced(index, kind, wrap, counted, repeats=True, steps=2)
    whole, _ = traced(index, kind, wrap, Counted(lambda _microbatch: 1), repeats=False, steps=2)
    assert same(trace, whole)
    assert repeated
    assert counted.forwards < 2 * MICROBATCHES


@pytest.mark.parametrize("kind", [ScheduleGPipe, Schedule1F1B])
def test_forwards_that_differ_from_one_to_the_next_are_all_run(kind: type[Any]) -> None:
    counted = Counted(lambda microbatch: microbatch % 2)
    trace, _ = traced(0, kind, plain, counted, repeats=True)
    whole, _ = traced(0, kind, plain, Counted(lambda microbatch: microbatch % 2), repeats=False)
    assert same(trace, whole)
    assert counted.forwards == MICROBATCHES


def test_backwards_that_differ_after_forwards_that_were_left_out_end_the_program() -> None:
    counted = Counted(lambda microbatch: microbatch % 2, in_backward=True)
    with pytest.raises(NotAlike):
        traced(0, ScheduleGPipe, plain, counted, repeats=True)
    assert counted.forwards < MICROBATCHES
    traced(0, ScheduleGPipe, plain, counted, repeats=False)  # the methods are torch's own again


class Own(Schedule1F1B):
    """A schedule of the user's."""


def test_other_schedules_and_recordings_of_costs_run_all() -> None:
    counted = Counted()
    _, repeated = traced(0, Own, plain, counted, repeats=True)
    assert not repeated
    assert counted.forwards == MICROBATCHES
    _, repeated = traced(0, Schedule1F1B, plain, counted, repeats=True, costs=True)  # kernels are not repeated
    assert not repeated
