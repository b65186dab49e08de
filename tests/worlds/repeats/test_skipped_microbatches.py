"""Pipeline steps that skip microbatches have the same tables as steps that run them all."""

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

from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.worlds.commtrace import commtrace
from dsexplore._internal.worlds.repeats.layer_runs import CannotSkip
from dsexplore._internal.worlds.repeats.skipped_microbatches import skip_repeats
from dsexplore._internal.worlds.simulate import simulate
from tests.cost.same_tables import same

STAGES, MICROBATCHES = 4, 8
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
    index: int, kind: type[Any], wrap: Wrap, inner: nn.Module, *, skips: bool, steps: int = 1, stages: int = STAGES
) -> Tables:
    """Return the tables of one stage."""
    with simulate(mesh=f"pp={stages},dp=2", rank=index * 2, fake=True) as mesh:
        module = wrap(nn.Sequential(nn.Linear(4, 4), inner), mesh)
        example = torch.zeros(1, 4, requires_grad=index > 0)
        described = example, torch.zeros(1, 4, requires_grad=True)
        stage = PipelineStage(module, index, stages, torch.device("cpu"), *described, group=mesh.get_group("pp"))
        schedule = kind(stage, MICROBATCHES, loss_fn=nn.MSELoss())
        batch = torch.zeros(MICROBATCHES, 4)
        sent = () if index else (batch,)
        target: dict[str, Any] = {"target": batch, "losses": []} if index == stages - 1 else {}
        with commtrace() as trace, skip_repeats(is_script=True) if skips else nullcontext() as skipped:
            for _ in range(steps):
                output = schedule.step(*sent, **target)
                assert output is None or len(output) == MICROBATCHES
                assert len(target.get("losses", batch)) == MICROBATCHES
                trace.step()
        assert all(parameter.grad is not None for parameter in module.parameters())
    return trace.tables if skipped is None else skipped.whole(trace.tables)


@pytest.mark.parametrize(
    ("index", "kind", "wrap"),
    [
        (0, ScheduleGPipe, plain),
        (0, Schedule1F1B, sharded),
        (1, ScheduleGPipe, sharded),
        (1, Schedule1F1B, plain),
        (1, Schedule1F1B, replicated),
        (3, ScheduleGPipe, replicated),
        (3, Schedule1F1B, plain),
        (3, Schedule1F1B, sharded),
    ],
)
def test_what_is_repeated_is_what_would_be_run(index: int, kind: type[Any], wrap: Wrap) -> None:
    counted = Counted(lambda _microbatch: 1)
    tables = traced(index, kind, wrap, counted, skips=True, steps=2)
    same(tables, traced(index, kind, wrap, Counted(lambda _microbatch: 1), skips=False, steps=2))
    assert counted.forwards < 2 * MICROBATCHES


def test_a_pipeline_of_one_stage_sends_nothing_and_is_shortened_too() -> None:
    counted = Counted(lambda _microbatch: 1)
    tables = traced(0, Schedule1F1B, plain, counted, skips=True, stages=1)
    same(tables, traced(0, Schedule1F1B, plain, Counted(lambda _microbatch: 1), skips=False, stages=1))
    assert counted.forwards < MICROBATCHES


@pytest.mark.parametrize("kind", [ScheduleGPipe, Schedule1F1B])
@pytest.mark.parametrize("in_backward", [False, True])
def test_microbatches_that_differ_from_one_to_the_next_end_the_program(kind: type[Any], in_backward: bool) -> None:
    methods = dict(vars(kind))
    with pytest.raises(CannotSkip, match="events"):
        traced(0, kind, plain, Counted(lambda microbatch: microbatch % 2, in_backward=in_backward), skips=True)
    assert vars(kind) == methods


class Own(Schedule1F1B):
    """A schedule of the user's."""


def test_other_schedules_run_all() -> None:
    counted = Counted()
    traced(0, Own, plain, counted, skips=True)
    assert counted.forwards == MICROBATCHES


def test_a_recording_of_the_programs_own_is_noticed() -> None:
    with simulate(4, fake=True), commtrace(), skip_repeats(is_script=True) as skipped:
        assert skipped.is_alone
        with commtrace():
            assert not skipped.is_alone
