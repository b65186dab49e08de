"""Programs that four ranks run, for `all_ranks.py`: every call of c10d, and every plan that torch itself brings."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleLoopedBFS,
)
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
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

RANKS = 4
FORKS = {
    "ZeRO's states, consolidated": ("message_bytes", "another rank's pickled states are as long as this one's here"),
    "FSDP2, saved": ("message_bytes", "the pickled plan of all ranks is as long as that of one"),
    "library: a checkpoint in the background": ("message_bytes", "the pickled plan of all ranks is as long as one's"),
}
"""{program: a column that a simulation cannot know, and why}; the rest is compared."""
Program = Callable[[], object]
WIDTH = 8
_IN_PAIRS = {0: (0, 2), 2: (0, 2), 1: (1, 3), 3: (1, 3)}


def line(name: str = "dp") -> DeviceMesh:
    """Return a mesh of all ranks."""
    return init_device_mesh("cpu", (RANKS,), mesh_dim_names=(name,))


def square() -> DeviceMesh:
    """Return a mesh of two by two ranks."""
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))


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


# Calls


def _list(count: int, like: Tensor) -> list[Tensor]:
    return [torch.zeros_like(like) for _ in range(count)]


def _calls(x: Tensor, group: Any, ranks: tuple[int, ...]) -> dict[str, Program]:
    """Return calls on a tensor, whose length all sizes divide, over a group of these ranks."""
    count, me = len(ranks), ranks.index(dist.get_rank())
    first, last = ranks[0], ranks[-1]
    part = x[: len(x) // count].clone()
    after, before = ranks[(me + 1) % count], ranks[me - 1]
    uneven = [1 + (me + place) % 2 for place in range(count)]

    def coalesced() -> None:
        dist.all_reduce_coalesced([x.clone(), part.clone()], group=group)

    def ring() -> None:
        work = dist.isend(x, after, group=group)
        dist.recv(torch.zeros_like(x), before, group=group)
        assert work is not None
        work.wait()

    def batch() -> None:
        calls = [dist.P2POp(dist.isend, x, after, group), dist.P2POp(dist.irecv, torch.zeros_like(x), before, group)]
        for work in dist.batch_isend_irecv(calls):
            work.wait()

    def waited() -> None:
        work = dist.all_reduce(x.clone(), group=group, async_op=True)
        assert work is not None
        work.wait()

    def gather() -> None:
        dist.gather(x, _list(count, x) if dist.get_rank() == first else None, dst=first, group=group)

    def scatter() -> None:
        parts = list(x.chunk(count)) if dist.get_rank() == last else None
        dist.scatter(torch.zeros_like(part), parts, src=last, group=group)

    def unevenly() -> None:
        received = [1 + (place + me) % 2 for place in range(count)]
        dist.all_to_all_single(x.new_zeros(sum(received)), x[: sum(uneven)].clone(), received, uneven, group=group)

    def objects() -> None:
        dist.broadcast_object_list([1, "two"], src=first, group=group)
        dist.all_gather_object([None] * count, "one", group=group)

    return {
        "all_reduce": lambda: dist.all_reduce(x.clone(), group=group),
        "all_reduce of the largest": lambda: dist.all_reduce(x.clone(), dist.ReduceOp.MAX, group=group),
        "all_reduce that is waited for": waited,
        "all_reduce_coalesced": coalesced,
        "broadcast": lambda: dist.broadcast(x.clone(), src=last, group=group),
        "reduce": lambda: dist.reduce(x.clone(), dst=last, group=group),
        "all_gather": lambda: dist.all_gather(_list(count, x), x, group=group),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(x.repeat(count), x, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter(part.clone(), list(x.chunk(count)), group=group),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(part.clone(), x, group=group),
        "all_to_all_single": lambda: dist.all_to_all_single(torch.zeros_like(x), x, group=group),
        "all_to_all_single, uneven": unevenly,
        "gather": gather,
        "scatter": scatter,
        "barrier": lambda: dist.barrier(group=group),
        "ring": ring,
        "batch_isend_irecv": batch,
        "objects": objects,
    }


def calls(name: str, *, in_pairs: bool, dtype: torch.dtype) -> None:
    """Make one call of c10d, on all ranks or in two pairs of them."""
    ranks: tuple[int, ...] = tuple(range(RANKS))
    group = None
    if in_pairs:
        groups = {pair: dist.new_group(list(pair)) for pair in ((0, 2), (1, 3))}
        ranks = _IN_PAIRS[dist.get_rank()]
        group = groups[ranks]
    _calls(torch.ones(8, dtype=dtype), group, ranks)[name]()


NAMES_OF_CALLS = (
    *("all_reduce", "all_reduce of the largest", "all_reduce that is waited for", "all_reduce_coalesced", "broadcast"),
    *("reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor"),
    *("all_to_all_single", "all_to_all_single, uneven", "gather", "scatter", "barrier", "ring", "batch_isend_irecv"),
    "objects",
)
FUNCTIONAL: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "all_reduce": lambda x, group: funcol.all_reduce(x, "sum", group),
    "all_gather_tensor": lambda x, group: funcol.all_gather_tensor(x, 0, group),
    "reduce_scatter_tensor": lambda x, group: funcol.reduce_scatter_tensor(x, "sum", 0, group),
    "all_to_all_single": lambda x, group: funcol.all_to_all_single(x, None, None, group),
    "broadcast": lambda x, group: funcol.broadcast(x, 0, group),
}


def functional(call: Callable[[Tensor, Any], Tensor], *, axis: str) -> None:
    """Make one functional call over an axis."""
    mesh = line() if axis == "dp of one" else square()
    funcol.wait_tensor(call(torch.ones(8), (mesh, 0 if axis != "tp" else 1)))


# Tensors that are distributed

R, S0, S1, P = Replicate(), Shard(0), Shard(1), Partial()
PAIRS = [(R, S0), (R, S1), (S0, R), (S0, S1), (S1, R), (S1, S0), (P, R), (P, S0), (P, S1)]
PAIRS_OF_TWO: list[tuple[tuple[Any, ...], tuple[Any, ...]]] = [
    ((S0, R), (R, R)),
    ((S0, S0), (R, R)),
    ((S0, S1), (S1, S0)),
    ((P, P), (R, R)),
    ((P, S0), (S0, R)),
    ((R, S1), (S1, R)),
]
PRODUCTS = [(S0, R), (R, S1), (S1, S0), (S0, S1), (R, R), (P, R)]


def redistribute(before: tuple[Any, ...], after: tuple[Any, ...], *, rows: int) -> None:
    """Change the placements of a tensor."""
    mesh = line() if len(before) == 1 else square()
    whole = distribute_tensor(torch.ones(rows, 8), mesh, [R] * len(before))
    if any(isinstance(one, Partial) for one in before):
        others = [R if isinstance(one, Partial) else one for one in before]
        local = whole.redistribute(mesh, others).to_local()
        placed = DTensor.from_local(local, mesh, list(before), run_check=False)
    else:
        placed = whole.redistribute(mesh, list(before))
    placed.redistribute(mesh, list(after))


def multiply(left: Any, right: Any) -> None:
    """Multiply two tensors with these placements, and gather the result."""
    mesh = line()
    one, other = (DTensor.from_local(torch.ones(RANKS, RANKS), mesh, [placement]) for placement in (left, right))
    inner = min(one.shape[1], other.shape[0])
    (one[:, :inner] @ other[:inner]).full_tensor()


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
