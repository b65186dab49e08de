"""Programs that four ranks run, for `all_ranks.py`: what torch.distributed brings besides its calls and plans.

Checkpoints written in the background, composable replication, experts with uneven splits, groups that become meshes,
functions with a backward, compiled collectives, and pipelines without bubbles.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.nn as dist_nn
from programs_of_calls import RANKS, WIDTH, Program, line, square
from programs_of_ranks import Block, blocks, train
from torch import Tensor, nn
from torch.distributed._composable import replicate
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import hook_with_zero_step
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.checkpoint import async_save
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import ScheduleInterleavedZeroBubble, ScheduleZBVZeroBubble
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import local_map
from torch.nn.parallel import DistributedDataParallel


def saved_in_background() -> None:
    """Train, have a thread write a checkpoint, and train on when it has: what both send at once has no order."""
    model, mesh = blocks(), line()
    for block in model:
        torch.distributed.fsdp.fully_shard(block, mesh=mesh)
    train(model, 1)
    folder = Path(tempfile.gettempdir()) / "dsexplore-programs-async"
    written = async_save(model.state_dict(), checkpoint_id=folder, process_group=dist.new_group())
    getattr(written, "upload_completion", written).result()
    train(model, 1)


def replicated(**options: Any) -> None:
    """Train a model that is replicated composably."""
    model = blocks()
    replicate(model, **options)
    train(model, 3)


def zero_overlapped() -> None:
    """Train with states that are divided, and updated in the hook of DDP's buckets."""
    wrapped = DistributedDataParallel(blocks(), static_graph=True)
    optimizer = ZeroRedundancyOptimizer(
        wrapped.parameters(), torch.optim.SGD, overlap_with_ddp=True, parameters_as_bucket_view=False, lr=0.1
    )
    hook = hook_with_zero_step(default_hooks.allreduce_hook, wrapped, optimizer)
    wrapped.register_comm_hook(None, hook)
    train(wrapped, 4, optimizer)


def averaged() -> None:
    """Train locally, and average the parameters now and then."""
    model = blocks()
    averager = PeriodicModelAverager(period=2, warmup_steps=1)
    optimizer = PostLocalSGDOptimizer(torch.optim.SGD(model.parameters(), 0.1), averager)
    train(model, 4, optimizer)


def fsdp1(strategy: ShardingStrategy, *, half: bool = False) -> None:
    """Train with FSDP1."""
    policy = MixedPrecision(torch.bfloat16, torch.float32) if half else None
    wrap = partial(
        FullyShardedDataParallel,
        sharding_strategy=strategy,
        mixed_precision=policy,
        device_id=torch.device("cpu"),
    )
    train(wrap(nn.Sequential(*(wrap(block) for block in blocks()))), 3)


def from_groups() -> None:
    """Make meshes of groups, one of two axes, and shard over both."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])], [dist.new_group([0, 2]), dist.new_group([1, 3])]
    rank = dist.get_rank()
    mine = [pairs[0][rank // 2], pairs[1][rank % 2]]
    mesh = DeviceMesh.from_group(mine, "cpu", torch.arange(4).view(2, 2), mesh_dim_names=("outer", "inner"))
    distribute_tensor(torch.ones(8, 8), mesh, [Shard(0), Shard(1)]).full_tensor()
    funcol.wait_tensor(funcol.all_reduce(torch.ones(4), "sum", (mesh, 1)))


def experts() -> None:
    """Send tokens to the ranks of their experts and back, unevenly, forward and backward."""
    rank = dist.get_rank()
    sent = [1 + (rank + place) % RANKS for place in range(RANKS)]
    received = [1 + (place + rank) % RANKS for place in range(RANKS)]
    expert, router = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, RANKS)
    for _ in range(2):
        tokens = torch.ones(sum(sent), WIDTH, requires_grad=True)
        weight = router(tokens).softmax(-1)[:, :1]
        there = funcol.all_to_all_single_autograd(tokens * weight, received, sent, dist.group.WORLD)
        back = funcol.all_to_all_single_autograd(expert(there), sent, received, dist.group.WORLD)
        back.sum().backward()


def differentiable(call: Callable[[Tensor], Any]) -> None:
    """Call a function of torch.distributed.nn, and differentiate it."""
    result = call(torch.ones(RANKS, WIDTH, requires_grad=True))
    parts = result if isinstance(result, (tuple, list)) else (result,)
    sum((part.sum() for part in parts), torch.zeros(())).backward()


DIFFERENTIABLE: dict[str, Callable[[Tensor], Any]] = {
    "all_reduce": lambda x: dist_nn.functional.all_reduce(x),
    "all_gather": lambda x: dist_nn.functional.all_gather(x),
    "reduce_scatter": lambda x: dist_nn.functional.reduce_scatter(torch.zeros(1, WIDTH), list(x.chunk(RANKS))),
    "all_to_all_single": lambda x: dist_nn.functional.all_to_all_single(torch.zeros_like(x), x),
    "broadcast": lambda x: dist_nn.functional.broadcast(x, 1),
    "gather": lambda x: dist_nn.functional.gather(x, 1),
    "scatter": lambda x: dist_nn.functional.scatter(list(x.chunk(RANKS)), 1),
}


def coalesced_gathers() -> None:
    """Gather several tensors in one call, and in one block of calls."""
    parts = [torch.ones(2, WIDTH), torch.ones(3)]
    for result in funcol.all_gather_into_tensor_coalesced(parts, dist.group.WORLD):
        funcol.wait_tensor(result)
    for result in funcol.reduce_scatter_tensor_coalesced([torch.ones(8), torch.ones(4, 2)], "sum", [0, 0], line()):
        funcol.wait_tensor(result)


def compiled() -> None:
    """Compile a function that gathers and reduces, and call it three times."""
    mesh = line()

    @torch.compile(backend="aot_eager", fullgraph=True)
    def step(x: Tensor) -> Tensor:
        whole = funcol.all_gather_tensor(x * 2, 0, mesh)
        return funcol.reduce_scatter_tensor(whole, "sum", 0, mesh) + funcol.all_reduce(x, "avg", mesh)

    for _ in range(3):
        step(torch.ones(4))


def mapped() -> None:
    """Map a function of local tensors over tensors that are distributed."""
    mesh = square()
    rows = distribute_tensor(torch.ones(8, 8), mesh, [Shard(0), Replicate()])
    inner = distribute_tensor(torch.ones(8, 8), mesh, [Replicate(), Shard(1)])
    placements = [Shard(0), Shard(1)]
    result = local_map(torch.mm, out_placements=placements, device_mesh=mesh)(rows, inner)
    result.redistribute(mesh, [Replicate(), Replicate()])


def without_bubbles(schedule: Any) -> None:
    """Run a pipeline of two stages on each rank whose backward is cut in two."""
    rank = dist.get_rank()
    is_v = schedule is ScheduleZBVZeroBubble
    numbers = [rank, 2 * RANKS - 1 - rank] if is_v else [rank, rank + RANKS]
    example = torch.ones(3, WIDTH, requires_grad=True)
    stages = [
        PipelineStage(Block(), number, 2 * RANKS, torch.device("cpu"), (example,), (example,)) for number in numbers
    ]
    run = schedule(stages, 2 * RANKS, loss_fn=lambda output, target: (output - target).sum())
    has_last = 2 * RANKS - 1 in numbers
    inputs = (torch.ones(24, WIDTH),) if rank == 0 else ()
    run.step(*inputs, **({"target": torch.ones(24, WIDTH)} if has_last else {}))


def library_programs() -> Iterator[tuple[str, Program]]:
    """Yield the name of each program, and the program."""
    yield "library: a checkpoint in the background", saved_in_background
    yield "library: replicate", replicated
    yield "library: replicate, small buckets", partial(replicated, bucket_cap_mb=0.0005)
    yield "library: ZeRO overlapped with DDP", zero_overlapped
    yield "library: local SGD", averaged
    for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.NO_SHARD):
        yield f"library: FSDP1, {strategy.name}", partial(fsdp1, strategy)
    yield "library: FSDP1, bfloat16", partial(fsdp1, ShardingStrategy.FULL_SHARD, half=True)
    yield "library: meshes of groups", from_groups
    yield "library: experts, uneven", experts
    for name, call in DIFFERENTIABLE.items():
        yield f"library: differentiable {name}", partial(differentiable, call)
    yield "library: coalesced functional calls", coalesced_gathers
    yield "library: compiled collectives", compiled
    yield "library: local_map", mapped
    yield "library: interleaved pipeline without bubbles", partial(without_bubbles, ScheduleInterleavedZeroBubble)
    yield "library: V-shaped pipeline without bubbles", partial(without_bubbles, ScheduleZBVZeroBubble)
