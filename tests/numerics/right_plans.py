"""Plans that compute what the model computes, one for each kind of parallelism and of what goes with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from tests.numerics.trained_model import (
    IGNORED,
    WIDTH,
    Gathered,
    Reduced,
    Trained,
    blocks,
    part_of_batch,
    reduce_gradients,
    seeded,
    tensor_parallel,
    tokens_and_targets,
    trained,
)


@dataclass(frozen=True)
class RightPlan:
    """A plan and its reference."""

    name: str
    parallel: Callable[[DeviceMesh], Trained]
    reference: Callable[[], Trained]
    mesh: str = "dp=2,tp=2"


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2)


def plain(**options: Any) -> Trained:
    """Return the reference of most plans."""
    return trained(seeded(**options), *tokens_and_targets(), optimizer=adam)


def cut_by_dtensors(model: nn.Module, mesh: DeviceMesh) -> None:
    for layer in blocks(model):
        parallelize_module(layer.feed_forward, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})


def dtensor_tp(mesh: DeviceMesh) -> Trained:
    model = seeded()
    cut_by_dtensors(model, mesh)
    return trained(model, *tokens_and_targets(), optimizer=adam)


def sequence_parallel(mesh: DeviceMesh) -> Trained:
    model = seeded()
    parallelize_module(
        model,
        mesh["tp"],
        {
            "joined": PrepareModuleOutput(),
            "norm": SequenceParallel(),
            "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
        },
    )
    for layer in blocks(model):
        parallelize_module(
            layer,
            mesh["tp"],
            {
                "norm_1": SequenceParallel(),
                "attention": PrepareModuleInput(
                    input_layouts=Shard(1), desired_input_layouts=Replicate(), use_local_output=True
                ),
                "attention.wo": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
                "norm_2": SequenceParallel(),
                "feed_forward": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
                "feed_forward.up": ColwiseParallel(),
                "feed_forward.down": RowwiseParallel(output_layouts=Shard(1)),
            },
        )
    return trained(model, *tokens_and_targets(), optimizer=adam)


def PrepareModuleOutput() -> Any:
    from torch.distributed.tensor.parallel import PrepareModuleOutput as Prepare

    return Prepare(output_layouts=Replicate(), desired_output_layouts=Shard(1))


def fsdp2(mesh: DeviceMesh) -> Trained:
    model = seeded()
    for layer in blocks(model):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return trained(model, *part_of_batch(mesh, "dp", *tokens_and_targets()), optimizer=adam)


def hsdp(mesh: DeviceMesh) -> Trained:
    model = seeded()
    for layer in blocks(model):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    data = part_of_batch(mesh, "replicate", *tokens_and_targets())
    return trained(model, *part_of_batch(mesh, "shard", *data), optimizer=adam)


def fsdp2_and_tp(mesh: DeviceMesh) -> Trained:
    model = seeded()
    cut_by_dtensors(model, mesh)
    for layer in blocks(model):
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    data = part_of_batch(mesh, "dp", *tokens_and_targets())
    return trained(model, *data, optimizer=adam)


def fsdp2_clipped(mesh: DeviceMesh) -> Trained:
    model = seeded()
    fully_shard(model, mesh=mesh)
    data = part_of_batch(mesh, "dp", *tokens_and_targets())
    return trained(model, *data, optimizer=adam, before_optimizer=partial(clip, model))


def clip(model: nn.Module) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)


def clipped() -> Trained:
    model = seeded()
    return trained(model, *tokens_and_targets(), optimizer=adam, before_optimizer=partial(clip, model))


def ddp(mesh: DeviceMesh) -> Trained:
    model = DistributedDataParallel(seeded())
    return trained(model, *part_of_batch(mesh, "dp", *tokens_and_targets()), optimizer=adam)


def accumulated(mesh: DeviceMesh) -> Trained:
    model = DistributedDataParallel(seeded())
    optimizer = adam(model.parameters())
    tokens, targets = part_of_batch(mesh, "dp", *tokens_and_targets())

    def step() -> None:
        with model.no_sync():
            loss_of(model, tokens[:2], targets[:2]).div(2).backward()
        loss_of(model, tokens[2:], targets[2:]).div(2).backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def loss_of(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


def megatron(mesh: DeviceMesh) -> Trained:
    model = tensor_parallel(seeded(), mesh["tp"])
    data = part_of_batch(mesh, "dp", *tokens_and_targets())
    return trained(model, *data, optimizer=adam, before_optimizer=partial(reduce_gradients, model, mesh["dp"]))


def context_parallel(mesh: DeviceMesh) -> Trained:
    model = seeded()
    length, rank = 8 // mesh.size(), mesh.get_local_rank()
    model.start = rank * length
    for layer in blocks(model):
        layer.attention.gather = partial(gathered, mesh=mesh)
        layer.attention.mask = torch.ones(8, 8, dtype=torch.bool).tril()[rank * length : (rank + 1) * length]
    data = part_of_batch(mesh, "cp", *tokens_and_targets(), dim=1)
    return trained(model, *data, optimizer=adam, before_optimizer=partial(reduce_gradients, model, mesh))


def gathered(x: Tensor, mesh: DeviceMesh) -> Tensor:
    out: Tensor = Gathered.apply(x, mesh, 2)
    return out


class Stage(nn.Module):
    """The layers of one stage of a pipeline, under their names in the whole model."""

    def __init__(self, model: nn.Module, rank: int) -> None:
        super().__init__()
        kept = ("embedding", "positions") if rank == 0 else ("norm", "output")
        for name in kept:
            self.add_module(name, getattr(model, name))
        self.layers = nn.ModuleDict({str(rank): model.layers[rank]})  # type: ignore[index]

    def forward(self, x: Tensor) -> Tensor:
        first = hasattr(self, "embedding")
        if first:
            x = self.embedding(x) + self.positions(torch.arange(x.shape[1]))
        for layer in self.layers.values():
            x = layer(x)
        return x if first else self.output(self.norm(x))


def pipeline(mesh: DeviceMesh) -> Trained:
    rank = mesh.get_local_rank()
    model = Stage(seeded(), rank)
    optimizer = adam(model.parameters())
    tokens, targets = tokens_and_targets()

    def step() -> None:
        for microbatch, wanted in zip(tokens.chunk(2), targets.chunk(2), strict=True):
            shape = (*microbatch.shape, WIDTH)
            if rank == 0:
                out = model(microbatch)
                dist.send(out.detach(), 1)
                gradient = torch.empty(shape)
                dist.recv(gradient, 1)
                out.backward(gradient)
            else:
                hidden = torch.empty(shape)
                dist.recv(hidden, 0)
                hidden.requires_grad_()
                F.cross_entropy(model(hidden).flatten(0, 1), wanted.flatten()).div(2).backward()
                dist.send(hidden.grad, 0)
        optimizer.step()
        optimizer.zero_grad()

    return model, step


class Experts(nn.Module):
    """A mixture of two experts, of which a rank may hold one."""

    def __init__(self, count: int = 2) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, count)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(count))
        self.first, self.mesh = 0, None

    def forward(self, x: Tensor) -> Tensor:
        chosen = self.gate(x).softmax(-1)
        weights = chosen * F.one_hot(chosen.argmax(-1), chosen.shape[-1])
        parts = [expert(x) * weights[..., self.first + at, None] for at, expert in enumerate(self.experts)]
        out = torch.stack(parts).sum(0)
        return out if self.mesh is None else Reduced.apply(out, self.mesh.get_group())


class Mixture(nn.Module):
    """An embedding, experts and an output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.mixture, self.output = nn.Embedding(32, WIDTH), Experts(), nn.Linear(WIDTH, 32)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.output(self.mixture(self.embedding(tokens)))
        return out


def mixture() -> Trained:
    torch.manual_seed(0)
    return trained(Mixture(), *tokens_and_targets())


def expert_parallel(mesh: DeviceMesh) -> Trained:
    torch.manual_seed(0)
    model = Mixture()
    rank = mesh.get_local_rank()
    model.mixture.first, model.mixture.mesh = rank, mesh  # type: ignore[assignment]
    model.mixture.experts = nn.ModuleList([model.mixture.experts[rank]])
    shared = [*model.embedding.parameters(), *model.mixture.gate.parameters()]

    def reduce() -> None:
        for parameter in shared:
            dist.all_reduce(parameter.grad, group=mesh.get_group())

    return trained(model, *tokens_and_targets(), before_optimizer=reduce)


def tied(mesh: DeviceMesh) -> Trained:
    model = seeded(tied=True)
    fully_shard(model, mesh=mesh)
    return trained(model, *part_of_batch(mesh, "dp", *tokens_and_targets()), optimizer=adam)


def with_dropout(mesh: DeviceMesh) -> Trained:
    model = tensor_parallel(seeded(dropout=0.2), mesh["tp"])
    torch.manual_seed(100 + mesh.get_local_rank("dp"))
    data = part_of_batch(mesh, "dp", *tokens_and_targets())
    return trained(model, *data, optimizer=adam, before_optimizer=partial(reduce_gradients, model, mesh["dp"]))


def bfloat16(mesh: DeviceMesh) -> Trained:
    model = seeded()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in blocks(model):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return trained(model, *part_of_batch(mesh, "dp", *tokens_and_targets()), optimizer=adam)


def of_unequal_batches(mesh: DeviceMesh) -> Trained:
    model = seeded()
    tokens, targets = tokens_and_targets(padded=True)
    rows = slice(0, 3) if mesh.get_local_rank() == 0 else slice(3, None)
    mine = targets[rows]
    count = (mine != IGNORED).sum()
    total = count.clone()
    dist.all_reduce(total)

    def loss(logits: Tensor, wanted: Tensor) -> Tensor:
        summed = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=IGNORED, reduction="sum")
        return summed / total

    reduce = partial(reduce_gradients, model, mesh, mean=False)
    return trained(model, tokens[rows], mine, loss=loss, optimizer=adam, before_optimizer=reduce)


def padded() -> Trained:
    return trained(seeded(), *tokens_and_targets(padded=True), optimizer=adam)


RIGHT_PLANS = (
    RightPlan("TP", dtensor_tp, plain),
    RightPlan("TP with sequence parallel", sequence_parallel, plain),
    RightPlan("FSDP2", fsdp2, plain, "dp=4"),
    RightPlan("HSDP", hsdp, plain, "replicate=2,shard=2"),
    RightPlan("FSDP2 × TP", fsdp2_and_tp, plain),
    RightPlan("FSDP2, clipped", fsdp2_clipped, clipped, "dp=2"),
    RightPlan("DDP", ddp, plain, "dp=2"),
    RightPlan("DDP with accumulation", accumulated, plain, "dp=2"),
    RightPlan("plain TP with fused QKV", megatron, plain),
    RightPlan("CP", context_parallel, plain, "cp=2"),
    RightPlan("PP", pipeline, plain, "pp=2"),
    RightPlan("EP", expert_parallel, mixture, "ep=2"),
    RightPlan("tied embeddings", tied, partial(plain, tied=True), "dp=2"),
    RightPlan("dropout", with_dropout, partial(plain, dropout=0.2)),
    RightPlan("bf16", bfloat16, plain, "dp=2"),
    RightPlan("unequal batches, weighted", of_unequal_batches, padded, "dp=2"),
)
