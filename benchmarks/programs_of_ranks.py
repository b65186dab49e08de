"""Programs that four ranks run, for `all_ranks.py`: single calls, and every plan that torch itself brings."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from programs_of_calls import (
    FUNCTIONAL,
    NAMES_OF_CALLS,
    PAIRS,
    PAIRS_OF_TWO,
    PRODUCTS,
    RANKS,
    WIDTH,
    Program,
    calls,
    functional,
    line,
    multiply,
    redistribute,
    square,
)
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleLoopedBFS,
)
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

FORKS = {
    "ZeRO's states, consolidated": ("message_bytes", "another rank's pickled states are as long as this one's here"),
    "FSDP2, saved": ("message_bytes", "the pickled plan of all ranks is as long as that of one"),
    "library: a checkpoint in the background": ("message_bytes", "the pickled plan of all ranks is as long as one's"),
}
"""{program: a column that a simulation cannot know, and why}; the rest is compared."""


class Block(nn.Module):
    """Two linear layers with a norm before them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 24), nn.Linear(24, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Add the layers' result to the input."""
        result: Tensor = self.down(self.up(self.norm(x)).relu())
        return x + result


def blocks(count: int = 2) -> nn.Sequential:
    """Return blocks that follow each other."""
    return nn.Sequential(*(Block() for _ in range(count)))


def train(model: nn.Module, steps: int = 2, optimizer: torch.optim.Optimizer | None = None) -> None:
    """Train for some steps."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), foreach=False)
    for _ in range(steps):
        model(torch.ones(3, WIDTH)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


# Data parallel


def ddp(model: nn.Module | None = None, hook: Callable[[Any], object] | None = None, **options: Any) -> None:
    """Train with DDP."""
    wrapped = DistributedDataParallel(model or blocks(), **options)
    if hook:
        hook(wrapped)
    train(wrapped, 3)


def _power_sgd(wrapped: DistributedDataParallel) -> None:
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def accumulated(wrapped: DistributedDataParallel) -> None:
    """Compute gradients of one batch without sending them."""
    with wrapped.no_sync():
        wrapped(torch.ones(3, WIDTH)).sum().backward()


def joined() -> None:
    """Train on as many batches as the rank has."""
    wrapped = DistributedDataParallel(blocks())
    with Join([wrapped]):
        train(wrapped, 2)


def inside() -> None:
    """Train a module in which one part is DDP's."""
    train(nn.Sequential(nn.Linear(WIDTH, WIDTH), DistributedDataParallel(blocks()), nn.Linear(WIDTH, WIDTH)))


def zero(*, consolidated: bool) -> None:
    """Train with states that are divided among the ranks."""
    wrapped = DistributedDataParallel(blocks())
    optimizer = ZeroRedundancyOptimizer(wrapped.parameters(), torch.optim.AdamW, lr=0.1)
    train(wrapped, 2, optimizer)
    if consolidated:
        optimizer.consolidate_state_dict(to=0)


def _frozen() -> nn.Module:
    model = blocks()
    model[0].requires_grad_(False)
    return model


def fsdp(
    *, is_square: bool = False, then: Callable[[nn.Module], object] | None = None, steps: int = 2, **options: Any
) -> None:
    """Train with FSDP2."""
    mesh = square() if is_square else line()
    model = blocks()
    for block in model:
        fully_shard(block, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    train(model, steps)
    if then:
        then(model)


def _clipped(model: nn.Module) -> None:
    model(torch.ones(3, WIDTH)).sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()  # type: ignore[attr-defined]  # a DTensor


def _not_synchronized(model: Any) -> None:
    model.set_requires_gradient_sync(False)
    model(torch.ones(3, WIDTH)).sum().backward()


def _kept(model: Any) -> None:
    model.set_reshard_after_backward(False)
    train(model, 2)


def _state(model: nn.Module) -> None:
    get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))


def _saved(model: nn.Module) -> None:
    torch.distributed.checkpoint.save(
        model.state_dict(), checkpoint_id=Path(tempfile.gettempdir()) / "dsexplore-programs"
    )


def recomputed() -> None:
    """Train blocks that are computed again in backward, with FSDP2."""
    mesh, model = line(), blocks()
    for block in model:
        fully_shard(block, mesh=mesh)
    for _ in range(2):
        x = torch.ones(3, WIDTH, requires_grad=True)
        for block in model:
            x = checkpoint(block, x, use_reentrant=False)
        x.sum().backward()


# Tensor parallel and pipelines


def tensor_parallel(
    plan: dict[str, Any], *, is_square: bool = False, sharded: bool = False, ddp_outside: bool = False
) -> None:
    """Train blocks in which layers are divided."""
    mesh = square() if is_square else line("tp")
    model = blocks()
    for block in model:
        parallelize_module(block, mesh["tp"], plan)
        if sharded:
            fully_shard(block, mesh=mesh["dp"])
    if sharded:
        fully_shard(model, mesh=mesh["dp"])
    train(DistributedDataParallel(model, process_group=mesh["dp"].get_group()) if ddp_outside else model)


PLAIN = {"up": ColwiseParallel(), "down": RowwiseParallel()}
SEQUENCE = {
    "norm": SequenceParallel(sequence_dim=0),
    "up": ColwiseParallel(input_layouts=Shard(0)),
    "down": RowwiseParallel(output_layouts=Replicate()),
}
WHOLE = {"up": ColwiseParallel(output_layouts=Replicate()), "down": ColwiseParallel(output_layouts=Replicate())}
PREPARED = {
    "up": PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate(), use_local_output=True)
}


def embedding(*, by_rows: bool) -> None:
    """Train a divided embedding."""
    model = nn.Sequential(nn.Embedding(16, WIDTH), nn.Linear(WIDTH, 16))
    style = RowwiseParallel(input_layouts=Replicate()) if by_rows else ColwiseParallel(output_layouts=Replicate())
    parallelize_module(model, line("tp"), {"0": style})
    model(torch.arange(4)).sum().backward()


def divided_loss() -> None:
    """Compute a loss of logits that are divided by classes."""
    model = parallelize_module(nn.Linear(WIDTH, 16), line("tp"), ColwiseParallel(use_local_output=False))
    with loss_parallel():
        nn.functional.cross_entropy(model(torch.ones(4, WIDTH)), torch.arange(4)).backward()


def pipeline(schedule: Any, stages: int) -> None:
    """Run a pipeline of that many stages on each rank."""
    rank, group = dist.get_rank(), dist.new_group(range(RANKS))
    made = [
        PipelineStage(
            Block(),
            rank + RANKS * number,
            RANKS * stages,
            torch.device("cpu"),
            (torch.ones(3, WIDTH, requires_grad=True),),
            (torch.ones(3, WIDTH, requires_grad=True),),
            group=group,
        )
        for number in range(stages)
    ]
    run = schedule(made[0] if stages == 1 else made, RANKS, loss_fn=lambda output, target: (output - target).sum())
    inputs = (torch.ones(12, WIDTH),) if rank == 0 else ()
    run.step(*inputs, **({"target": torch.ones(12, WIDTH)} if rank == RANKS - 1 else {}))


def programs() -> Iterator[tuple[str, Program]]:
    """Yield the name of each program, and the program."""
    for name, in_pairs, dtype in product(NAMES_OF_CALLS, (False, True), (torch.float32, torch.int64)):
        where, kind = ("in pairs" if in_pairs else "on all ranks"), str(dtype).removeprefix("torch.")
        if name not in ("barrier", "objects") or dtype == torch.float32:
            yield f"{name} {where}, {kind}", partial(calls, name, in_pairs=in_pairs, dtype=dtype)
    for name, axis in product(FUNCTIONAL, ("dp of one", "dp", "tp")):
        yield f"functional {name} over {axis}", partial(functional, FUNCTIONAL[name], axis=axis)
    for (before, after), rows in product(PAIRS, (8, 6)):
        yield f"{rows} rows, {before} → {after}", partial(redistribute, (before,), (after,), rows=rows)
    for before_two, after_two in PAIRS_OF_TWO:
        yield f"{before_two} → {after_two}", partial(redistribute, before_two, after_two, rows=8)
    for left, right in PRODUCTS:
        yield f"product of {left} and {right}", partial(multiply, left, right)
    hooks = default_hooks
    yield "DDP", ddp
    yield "DDP, unused parameters", partial(ddp, find_unused_parameters=True)
    yield "DDP, static graph", partial(ddp, static_graph=True)
    yield "DDP, gradients are views", partial(ddp, gradient_as_bucket_view=True)
    yield "DDP, small buckets", partial(ddp, bucket_cap_mb=0.0005)
    yield "DDP, buffers", partial(ddp, nn.Sequential(Block(), nn.BatchNorm1d(WIDTH)))
    yield "DDP, frozen layers", lambda: ddp(_frozen())
    yield "DDP, no_sync", partial(ddp, hook=accumulated)
    yield "DDP, float16", partial(ddp, hook=lambda one: one.register_comm_hook(None, hooks.fp16_compress_hook))
    yield "DDP, bfloat16", partial(ddp, hook=lambda one: one.register_comm_hook(None, hooks.bf16_compress_hook))
    yield "DDP, all_reduce hook", partial(ddp, hook=lambda one: one.register_comm_hook(None, hooks.allreduce_hook))
    yield "DDP, PowerSGD", partial(ddp, hook=_power_sgd)
    yield "DDP, Join", joined
    yield "DDP inside a module", inside
    yield "ZeRO's states", partial(zero, consolidated=False)
    yield "ZeRO's states, consolidated", partial(zero, consolidated=True)
    yield "FSDP2", fsdp
    yield "FSDP2, parameters stay", partial(fsdp, reshard_after_forward=False)
    yield "FSDP2, parameters stay in pairs", partial(fsdp, reshard_after_forward=2)
    yield "FSDP2, bfloat16", partial(fsdp, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    yield "FSDP2, offloaded", partial(fsdp, offload_policy=CPUOffloadPolicy(pin_memory=False))
    yield "HSDP", partial(fsdp, is_square=True)
    yield "FSDP2, clipped gradients", partial(fsdp, then=_clipped)
    yield "FSDP2, a batch that is not synchronized", partial(fsdp, then=_not_synchronized)
    yield "FSDP2, parameters stay after backward", partial(fsdp, then=_kept)
    yield "FSDP2, whole state", partial(fsdp, then=_state)
    yield "FSDP2, saved", partial(fsdp, then=_saved)
    yield "FSDP2, recomputed", recomputed
    yield "TP", partial(tensor_parallel, PLAIN)
    yield "TP, sequence parallel", partial(tensor_parallel, SEQUENCE)
    yield "TP, whole outputs", partial(tensor_parallel, WHOLE)
    yield "TP, prepared inputs", partial(tensor_parallel, PREPARED)
    yield "TP and FSDP2", partial(tensor_parallel, PLAIN, is_square=True, sharded=True)
    yield "TP, an embedding by rows", partial(embedding, by_rows=True)
    yield "TP, an embedding by columns", partial(embedding, by_rows=False)
    yield "TP, a divided loss", divided_loss
    yield "GPipe", partial(pipeline, ScheduleGPipe, 1)
    yield "1F1B", partial(pipeline, Schedule1F1B, 1)
    yield "looped BFS", partial(pipeline, ScheduleLoopedBFS, 2)
    yield "interleaved 1F1B", partial(pipeline, ScheduleInterleaved1F1B, 2)
