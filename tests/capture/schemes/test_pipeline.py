"""Pipeline schedules: what each rank sends and receives, for which stage, and in which direction.

Modules: ``capture/stack/pipelines.py``.

Symbols: P ranks, V stages per rank, m microbatches, A = B·T·D·e the bytes of one microbatch's activation.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)

from dsexplore import run_ranks
from dsexplore._internal.capture.record import record
from dsexplore._internal.errors import UsageError
from dsexplore._internal.torch_internals.names import torch_at_least
from dsexplore._internal.trace.trace import Trace

RANKS, MICROBATCHES = 4, 6
WARM_UP = "pipeline warm-up"
VOTES = hasattr(PipelineStage, "_warmup_forward_vote")
"""Whether each stage sends a vote on shapes to the next one; torch 2.15 reduces the votes of all ranks."""


class Reducing(nn.Module):
    """A stage that communicates in its own forward and backward."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        dist.all_reduce(y.detach().clone())
        return y


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).sum()


def run(
    mesh: DeviceMesh,
    build: Callable[[], nn.Module],
    schedule: Callable[..., Any],
    shape: tuple[int, ...],
    per_rank: int = 1,
) -> Trace:
    """Run one step of a schedule on this rank's stages."""
    rank, ranks = mesh.get_local_rank(), mesh.size()
    example = torch.zeros(shape, requires_grad=True)
    stages = [
        PipelineStage(
            build(),
            rank + ranks * part,
            ranks * per_rank,
            torch.device("cpu"),
            input_args=example,
            output_args=example,
            group=mesh.get_group(),
        )
        for part in range(per_rank)
    ]
    running = schedule(stages if per_rank > 1 else stages[0], MICROBATCHES, loss_fn=loss)
    whole = torch.ones(MICROBATCHES * shape[0], *shape[1:])
    with record() as trace:
        running.step(*([whole] if rank == 0 else []), **({"target": whole, "losses": []} if rank == ranks - 1 else {}))
    return trace


def messages(rank: int, per_rank: int, activation: int) -> dict[tuple[str, str], tuple[int, int]]:
    """m per neighboring stage and direction: the stage before sends forward and receives backward."""
    stages = [rank + RANKS * part for part in range(per_rank)]
    before = sum(stage > 0 for stage in stages) * MICROBATCHES
    after = sum(stage < RANKS * per_rank - 1 for stage in stages) * MICROBATCHES
    counts = {
        ("forward", "recv"): before,
        ("forward", "send"): after,
        ("backward", "recv"): after,
        ("backward", "send"): before,
    }
    return {key: (count, count * activation) for key, count in counts.items() if count}


@pytest.mark.parametrize("rank", [0, 1, RANKS - 1])
@pytest.mark.parametrize(
    ("schedule", "per_rank"),
    [
        (ScheduleGPipe, 1),
        (Schedule1F1B, 1),
        (ScheduleInterleaved1F1B, 2),
        (ScheduleInterleavedZeroBubble, 2),
    ],
)
def test_messages(
    world: Callable[..., DeviceMesh],
    block: Any,
    sizes: SimpleNamespace,
    totals: Any,
    schedule: Any,
    per_rank: int,
    rank: int,
) -> None:
    """Per stage that has one before it: m receives forward and m sends backward; per stage that has one after it:
    m sends forward and m receives backward; each of A. With V stages per rank every stage but the first of the
    first rank has one before it, whichever the schedule."""
    shape = (sizes.batch, sizes.seq, sizes.d)
    trace = run(world(f"pp={RANKS}", rank), block, schedule, shape, per_rank)
    activation = sizes.tokens * sizes.d * sizes.float
    work = trace.where(cause="pipeline schedule")
    assert totals(work, "phase", "op") == messages(rank, per_rank, activation)
    assert set(work.events["axis"]) == {"pp"}
    assert work.events["is_async"].all()

    start = trace.where(cause=WARM_UP)
    assert len(work) + len(start) == len(trace)
    stages = sum(count for count, _ in messages(rank, per_rank, activation).values()) // (2 * MICROBATCHES)
    ranks = 2 if per_rank > 1 else stages
    assert totals(start, "phase") == {"start-up": warm_up(stages, ranks)}


def warm_up(stages: int, ranks: int) -> tuple[int, int]:
    """Count and bytes of what a rank sends before its first step.

    Args:
        stages: how many stages are before or after one of its own.
        ranks: how many ranks these are on.
    """
    if VOTES:  # a vote of 4 bytes down the pipeline, and the result back
        return 2 * stages, 2 * stages * 4
    if torch_at_least("2.15"):  # the votes are reduced; then each pair of ranks tries its connection, in two rounds
        return 1 + 2 + ranks, (1 + 2 + ranks) * 4
    number = 4 if torch_at_least("2.10") else 8
    return 2 * stages, stages * (4 + number)  # each stage receives a float, and sends its number


def test_each_stage_has_its_own(
    world: Callable[..., DeviceMesh], block: Any, sizes: SimpleNamespace, totals: Any
) -> None:
    """Two stages on a rank in the middle: 2m messages forward and 2m backward for each."""
    shape = (sizes.batch, sizes.seq, sizes.d)
    trace = run(world(f"pp={RANKS}", 1), block, ScheduleInterleaved1F1B, shape, per_rank=2)
    owners = totals(trace.where(cause="pipeline schedule"), "owner", "phase")
    assert {key: count for key, (count, _) in owners.items()} == {
        (name, phase): 2 * MICROBATCHES for name in ("Block", "Block#2") for phase in ("forward", "backward")
    }


def test_steady_state_sends_and_receives_in_batches(
    world: Callable[..., DeviceMesh], block: Any, sizes: SimpleNamespace
) -> None:
    """1F1B on rank 1 of 4 warms up with w = P − rank = 3 forwards. Then m − w + 1 = 4 batches send an activation and
    receive a gradient, and between them m − w = 3 batches send a gradient and receive an activation."""
    shape = (sizes.batch, sizes.seq, sizes.d)
    trace = run(world(f"pp={RANKS}", 1), block, Schedule1F1B, shape)
    sent = trace.events.filter(pl.col("phase") != "start-up")  # where torch 2.9 tries its connections, in a batch
    batches = sent.drop_nulls("batch").group_by("batch", maintain_order=True)
    pairs = [tuple(frame.select("op", "phase").rows()) for _, frame in batches if len(frame) > 1]
    down = (("send", "forward"), ("recv", "backward"))
    up = (("send", "backward"), ("recv", "forward"))
    assert pairs == [down, up] * (MICROBATCHES - 3) + [down]


def test_a_stages_own_collectives_are_not_the_schedules(
    world: Callable[..., DeviceMesh], sizes: SimpleNamespace, totals: Any
) -> None:
    """m all-reduces in the stage's forward: they belong to the stage, and the schedule is not their cause."""
    shape = (sizes.batch, sizes.d)
    trace = run(world(f"pp={RANKS}", 1), lambda: Reducing(nn.Linear(sizes.d, sizes.d)), ScheduleGPipe, shape)
    reduces = totals(trace.where(op="all_reduce"), "phase", "trigger", "cause")
    reduces.pop(("start-up", "", WARM_UP), None)
    assert reduces == {("forward", "Reducing", ""): (MICROBATCHES, MICROBATCHES * sizes.batch * sizes.d * sizes.float)}


class TestWithShardedParameters:
    """Stages of two fully sharded linear layers, on 2 pipeline ranks × 2 data parallel ranks; m microbatches."""

    def run(self, world: Any, schedule: Any, per_rank: int, reshard: bool, rank: int = 0) -> Trace:
        mesh = world("pp=2,dp=2", rank)

        def build() -> nn.Module:
            model = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5))
            for layer in model:
                fully_shard(layer, mesh=mesh["dp"], reshard_after_forward=reshard)
            return fully_shard(model, mesh=mesh["dp"], reshard_after_forward=reshard)

        return run(mesh["pp"], build, schedule, (3, 5), per_rank)

    @pytest.mark.parametrize("rank", [0, 3])
    @pytest.mark.parametrize("reshard", [True, False])
    @pytest.mark.parametrize("schedule", [ScheduleGPipe, Schedule1F1B])
    def test_phases(self, world: Any, totals: Any, schedule: Any, reshard: bool, rank: int) -> None:
        """One reduce_scatter per layer, in backward, whatever the schedule; with resharding after forward, gathers of a
        layer in both phases, else one in forward."""
        trace = self.run(world, schedule, 1, reshard, rank)
        counts = {key: count for key, (count, _) in totals(trace.where(axis="dp"), "phase", "op").items()}
        assert counts.pop(("backward", "reduce_scatter")) == 2
        assert {phase for phase, _ in counts} == ({"forward", "backward"} if reshard else {"forward"})
        assert {op for _, op in counts} == {"all_gather"}
        if not reshard:
            assert counts == {("forward", "all_gather"): 2}
        elif schedule is ScheduleGPipe:
            assert counts["forward", "all_gather"] == 2 * MICROBATCHES
        assert set(trace.where(op="reduce_scatter").events["cause"]) == {"FSDP post_backward"}

    @pytest.mark.skipif(not torch_at_least("2.10"), reason="interleaved schedules of torch 2.9 gather no stage ahead")
    @pytest.mark.parametrize("reshard", [True, False])
    def test_stages_that_a_schedule_gathers_ahead(self, world: Any, column: Any, reshard: bool) -> None:
        """Two stages of two layers: gathered before their first forward, by the schedule; reduced once, in backward."""
        trace = self.run(world, ScheduleInterleaved1F1B, 2, reshard)
        sharded = trace.where(axis="dp")
        assert column(sharded, "phase", "op")[0] == ("forward", "all_gather")
        assert set(column(sharded, "phase")) == {"forward", "backward"}
        by_schedule = [row for row in column(sharded, "phase", "op", "cause") if row[-1] == "FSDP"]
        assert by_schedule == [("forward", "all_gather", "FSDP")] * 4
        reduced = trace.where(op="reduce_scatter")
        assert column(reduced, "phase", "cause") == [("backward", "FSDP post_backward")] * 4


REAL = 2


def events(mesh: DeviceMesh, per_rank: int) -> list[tuple[Any, ...]]:
    """Return what one step sends on this rank, in order."""
    schedule = Schedule1F1B if per_rank == 1 else ScheduleInterleaved1F1B
    trace = run(mesh, lambda: nn.Linear(5, 5), schedule, (3, 5), per_rank)
    columns = ("op", "phase", "trigger", "message_bytes", "cause", "batch", "is_async")
    return trace.events.select(columns).rows()


def on_real_ranks(per_rank: int) -> list[tuple[Any, ...]]:
    return events(dist.init_device_mesh("cpu", (REAL,), mesh_dim_names=("pp",)), per_rank)


@pytest.mark.skipif(not torch_at_least("2.10"), reason="a pipeline on gloo ends the processes of torch 2.9 (SIGABRT)")
@pytest.mark.processes
@pytest.mark.usefixtures("rank_server")
@pytest.mark.parametrize("per_rank", [1, 2])
def test_real_ranks_send_what_the_simulation_says(world: Callable[..., DeviceMesh], per_rank: int) -> None:
    """Schedules on gloo, where all receives bring true values: event by event the same on every rank."""
    real = run_ranks(on_real_ranks, REAL, args=(per_rank,), timeout=240).values
    assert real == [events(world(f"pp={REAL}", rank), per_rank) for rank in range(REAL)]


def test_a_stage_without_shapes_says_what_it_needs(world: Callable[..., DeviceMesh], sizes: SimpleNamespace) -> None:
    mesh = world(f"pp={RANKS}", 1)
    stage = PipelineStage(nn.Linear(4, 4), 1, RANKS, torch.device("cpu"), group=mesh.get_group())
    with pytest.raises(UsageError, match=r"pipeline stage 1 .* input_args=…, output_args=…"):
        ScheduleGPipe(stage, RANKS, loss_fn=loss).step()
