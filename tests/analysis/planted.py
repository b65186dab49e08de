"""Small simulated programs, two per rule: one that has what the rule finds, and the same with the change made."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import dsexplore
from dsexplore._internal.trace.trace import Trace

D = 32
Program = Callable[[bool], None]
"""A program; True has the oddity, False the change made."""


class Inner(nn.Module):
    """A gated pair of linear layers; the norm before it is outside."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.gate, self.down = (nn.Linear(D, D, bias=False) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x) * self.gate(x))


class Net(nn.Module):
    """Blocks of a norm and an `Inner`."""

    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.RMSNorm(D), Inner()) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def batch() -> torch.Tensor:
    return torch.randn(2, 8, D)


def tensor_parallel(model: Net, *, sequence: bool = True, odd: str = "") -> DeviceMesh:
    """Tensor parallelism over four ranks, with nothing sent at start-up; ``odd``: what is not as it should be."""
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
    inside = Shard(1) if sequence else Replicate()
    for layer in model.layers:
        entered = {"1": PrepareModuleInput(input_layouts=(inside,), desired_input_layouts=(Replicate(),))}
        own = ColwiseParallel(input_layouts=inside) if odd == "own inputs" else ColwiseParallel()
        plan: dict[str, Any] = {
            "1.up": own,
            "1.gate": own,
            "1.down": (
                RowwiseParallel(output_layouts=Replicate(), use_local_output=False)
                if odd == "whole outputs" or (odd == "whole output" and layer is model.layers[-1])
                else RowwiseParallel(output_layouts=inside)
            ),
            **({} if odd == "own inputs" else entered),
            **({"0": SequenceParallel()} if sequence else {}),
        }
        parallelize_module(layer, mesh, plan, src_data_rank=None)
    return mesh


def sharded(model: nn.Module, *, keep_last: bool = True, **options: Any) -> None:
    """FSDP of each layer over four ranks, and of the rest, with the last layer kept between forward and backward."""
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
    layers = list(model.layers)  # type: ignore[arg-type]  # a ModuleList
    for layer in layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=not (keep_last and layer is layers[-1]), **options)
    fully_shard(model, mesh=mesh, **options)


def all_reduce_of_shards(odd: bool) -> None:
    model = Net()
    tensor_parallel(model, odd="whole outputs" if odd else "whole output")
    model(batch()).sum()


def freed_too_soon(odd: bool) -> None:
    model = Net()
    sharded(model, keep_last=not odd)
    model(batch()).sum().backward()


def gathered_again(odd: bool) -> None:
    model = Net()
    tensor_parallel(model, odd="own inputs" if odd else "")
    model(batch()).sum().backward()


def implicit_redistributes(odd: bool) -> None:
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
    x, y = (DTensor.from_local(torch.randn(8, 2), mesh, [Shard(dim)]) for dim in (1, 1))
    if odd:
        y = DTensor.from_local(torch.randn(2, 8), mesh, [Shard(0)])
    x + y
    DTensor.from_local(torch.randn(8), mesh, [Partial()]).redistribute(placements=[Replicate()])


def large_start_up(odd: bool) -> None:
    frozen = nn.Linear(D, 8 * D, bias=False).requires_grad_(False)
    model = DistributedDataParallel(nn.Sequential(frozen, nn.Linear(8 * D, 1)), init_sync=odd)
    model(batch()).sum().backward()


def optimizer_gathers(odd: bool) -> None:
    model = Net()
    sharded(model)
    matrices = list(model.parameters())
    matrices = [p for p in matrices if p.ndim == 2]
    optimizer = torch.optim.Muon(matrices) if odd else torch.optim.AdamW(matrices)
    model(batch()).sum().backward()
    optimizer.step()


def zero(odd: bool) -> None:
    """Optimizer states sharded by DDP's optimizer, whose parameters are sent one by one, or as one tensor per rank."""
    model = DistributedDataParallel(Net())
    zero = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.SGD, lr=1e-3, parameters_as_bucket_view=not odd
    )
    model(batch()).sum().backward()
    zero.step()


class PartAndGather(torch.optim.SGD):
    """Updates this rank's rows of each matrix, and gathers those of the other ranks."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        for matrix in self.param_groups[0]["params"]:
            mine = matrix.chunk(ranks)[rank]
            mine.add_(torch.randn_like(mine))
            dist.all_gather_into_tensor(matrix, mine.clone())


def parts_gathered(odd: bool) -> None:
    """Parameters updated in parts and gathered by the program, or sharded by `fully_shard`."""
    model = Net()
    if not odd:
        sharded(model)
    matrices = [p for p in model.parameters() if p.ndim == 2]
    optimizer = PartAndGather(matrices, lr=1e-3) if odd else torch.optim.SGD(matrices, lr=1e-3)
    model(batch()).sum().backward()
    optimizer.step()


def optimizer_reduces(odd: bool) -> None:
    model = Net()
    tensor_parallel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    model(batch()).sum().backward()
    for parameter in model.parameters():
        gradient: Any = parameter.grad
        if not odd and isinstance(gradient, DTensor) and any(p.is_partial() for p in gradient.placements):
            parameter.grad = gradient.redistribute(placements=[Replicate()])
    optimizer.step()


def reduced_each_microbatch(odd: bool) -> None:
    model = DistributedDataParallel(Net())
    with model.no_sync() if not odd else torch.enable_grad():
        model(batch()).sum().backward()
    model(batch()).sum().backward()


def fsdp_reduced_each_microbatch(odd: bool) -> None:
    model = Net()
    sharded(model)
    for last in (False, True):
        if not odd:
            model.set_requires_gradient_sync(last)  # type: ignore[operator]  # a method that fully_shard adds
        model(batch()).sum().backward()


def reduced_in_fp32(odd: bool) -> None:
    model = Net().bfloat16()
    sharded(model, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float32 if odd else torch.bfloat16))
    model(batch().bfloat16()).sum().backward()


def wrapped(model: Net, *, kept: int = 1, precision: MixedPrecision | None = None) -> nn.Module:
    """Return the model under FSDP1, layer by layer; the last ``kept`` of them are not freed after forward."""
    cpu = torch.device("cpu")
    for index, layer in enumerate(model.layers):
        is_kept = index >= len(model.layers) - kept
        strategy = ShardingStrategy.SHARD_GRAD_OP if is_kept else ShardingStrategy.FULL_SHARD
        model.layers[index] = FullyShardedDataParallel(
            layer, device_id=cpu, sharding_strategy=strategy, mixed_precision=precision
        )
    return FullyShardedDataParallel(model, device_id=cpu, mixed_precision=precision)


def fsdp1_freed_too_soon(odd: bool) -> None:
    wrapped(Net(), kept=0 if odd else 1)(batch()).sum().backward()


def fsdp1_reduced_each_microbatch(odd: bool) -> None:
    model: Any = wrapped(Net(), kept=3)
    for last in (False, True):
        with nullcontext() if odd or last else model.no_sync():
            model(batch()).sum().backward()


def fsdp1_reduced_in_fp32(odd: bool) -> None:
    reduced = torch.float32 if odd else torch.bfloat16
    precision = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=reduced)
    wrapped(Net(), precision=precision)(batch()).sum().backward()


def repeated_collectives(odd: bool) -> None:
    numbers = [torch.randn(16) for _ in range(4)]
    if odd:
        for each in numbers:
            dist.all_reduce(each)
    else:
        dist.all_reduce(torch.stack(numbers))


def siblings_reduce(odd: bool) -> None:
    model = Net()
    tensor_parallel(model, sequence=False, odd="own inputs" if odd else "")
    model(batch()).sum().backward()


def small_fsdp(odd: bool) -> None:
    model = Net()
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
    for layer in model.layers if odd else ():
        fully_shard(layer[0], mesh=mesh)  # type: ignore[index]  # the norm of a Sequential
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=layer is not model.layers[-1])
    fully_shard(model, mesh=mesh)
    model(batch()).sum().backward()


PROGRAMS: dict[str, tuple[str, Program]] = {
    # the program: the rule that finds its oddity
    "all_reduce_of_shards": ("all_reduce_of_shards", all_reduce_of_shards),
    "freed_too_soon": ("freed_too_soon", freed_too_soon),
    "gathered_again": ("gathered_again", gathered_again),
    "implicit_redistributes": ("implicit_redistributes", implicit_redistributes),
    "large_start_up": ("large_start_up", large_start_up),
    "optimizer_gathers": ("optimizer_gathers", optimizer_gathers),
    "zero": ("optimizer_gathers", zero),
    "parts_gathered": ("optimizer_gathers", parts_gathered),
    "optimizer_reduces": ("optimizer_reduces", optimizer_reduces),
    "reduced_each_microbatch": ("reduced_each_microbatch", reduced_each_microbatch),
    "fsdp_reduced_each_microbatch": ("reduced_each_microbatch", fsdp_reduced_each_microbatch),
    "reduced_in_fp32": ("reduced_in_fp32", reduced_in_fp32),
    "fsdp1_freed_too_soon": ("freed_too_soon", fsdp1_freed_too_soon),
    "fsdp1_reduced_each_microbatch": ("reduced_each_microbatch", fsdp1_reduced_each_microbatch),
    "fsdp1_reduced_in_fp32": ("reduced_in_fp32", fsdp1_reduced_in_fp32),
    "repeated_collectives": ("repeated_collectives", repeated_collectives),
    "siblings_reduce": ("siblings_reduce", siblings_reduce),
    "small_fsdp": ("small_fsdp", small_fsdp),
}


@cache
def trace_of(name: str, odd: bool) -> Trace:
    """Return the trace of rank 0 of four; each program is one step."""
    torch.manual_seed(0)
    with dsexplore.commtrace(world_size=4) as trace:
        PROGRAMS[name][1](odd)
        trace.step()
    return trace
