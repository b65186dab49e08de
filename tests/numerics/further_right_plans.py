"""Further plans that compute what the model computes, of other models and by torch's own ways."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from tests.numerics.further_models import HEAD, Convolutions, encoder, images_and_classes, llama, rotated, token_mixture
from tests.numerics.right_plans import RightPlan, adam, clip, loss_of, plain
from tests.numerics.trained_model import (
    LENGTH,
    Gathered,
    Reduced,
    Trained,
    part_of_batch,
    reduce_gradients,
    seeded,
    tensor_parallel,
    tokens_and_targets,
    trained,
)

TP_PLAN = {
    "attention.wq": ColwiseParallel(),
    "attention.wk": ColwiseParallel(),
    "attention.wv": ColwiseParallel(),
    "attention.wo": RowwiseParallel(),
    "network.w1": ColwiseParallel(),
    "network.w3": ColwiseParallel(),
    "network.w2": RowwiseParallel(),
}


def llama_adam() -> Trained:
    return trained(llama(), *tokens_and_targets(), optimizer=adam)


def llama_tp(mesh: DeviceMesh) -> Trained:
    model = llama()
    for layer in model.layers:
        parallelize_module(layer, mesh["tp"], TP_PLAN)
    parallelize_module(model, mesh["tp"], {"output": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)})
    for layer in model.layers:
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    optimizer = adam(model.parameters())
    tokens, targets = part_of_batch(mesh, "dp", *tokens_and_targets())

    def step() -> None:
        with loss_parallel():
            F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def llama_accumulated(mesh: DeviceMesh) -> Trained:
    model: Any = llama()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = adam(model.parameters())
    tokens, targets = part_of_batch(mesh, "dp", *tokens_and_targets())

    def step() -> None:
        for at in range(2):
            model.set_requires_gradient_sync(at == 1)
            loss_of(model, tokens.chunk(2)[at], targets.chunk(2)[at]).div(2).backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def images(norm: str = "group") -> Trained:
    torch.manual_seed(0)
    return trained(Convolutions(norm), *images_and_classes(), loss=F.cross_entropy, optimizer=adam)


def convolutions(mesh: DeviceMesh) -> Trained:
    torch.manual_seed(0)
    model = DistributedDataParallel(Convolutions(), gradient_as_bucket_view=True)
    model.register_comm_hook(None, fp16_compress_hook)
    data = part_of_batch(mesh, "dp", *images_and_classes())
    return trained(model, *data, loss=F.cross_entropy, optimizer=adam)


def encoded(dropout: float = 0.0) -> Trained:
    return trained(encoder(dropout), *tokens_and_targets(), optimizer=adam)


def encoder_by_rows(mesh: DeviceMesh) -> Trained:
    model = encoder(0.1)
    (model.lengths,) = part_of_batch(mesh, "dp", model.lengths)
    torch.manual_seed(dist.get_rank())
    wrapped = DistributedDataParallel(model)
    return trained(wrapped, *part_of_batch(mesh, "dp", *tokens_and_targets()), optimizer=adam)


def experts() -> Trained:
    return trained(token_mixture(), *tokens_and_targets(), optimizer=adam)


def experts_of_tokens(mesh: DeviceMesh) -> Trained:
    model, size = token_mixture(), mesh.size()
    model.mixture.mesh = mesh
    model.mixture.experts = nn.ModuleList([model.mixture.experts[mesh.get_local_rank()]])
    held = {id(parameter) for parameter in model.mixture.experts.parameters()}

    def reduce() -> None:
        for parameter in model.parameters():
            gradient = parameter.grad
            assert gradient is not None
            if id(parameter) not in held:
                dist.all_reduce(gradient, group=mesh.get_group())
            gradient /= size

    data = part_of_batch(mesh, "ep", *tokens_and_targets())
    return trained(model, *data, before_optimizer=reduce, optimizer=adam)


class TiedStage(nn.Module):
    """The first or the last stage of a model whose output layer has the embedding's weight."""

    def __init__(self, model: Any, rank: int) -> None:
        super().__init__()
        self.embedding = model.embedding
        if rank == 0:
            self.positions = model.positions
        else:
            self.norm, self.output = model.norm, model.output
        self.layers = nn.ModuleDict({str(rank): model.layers[rank]})
        self.is_first = rank == 0

    def forward(self, x: Tensor) -> Tensor:
        if self.is_first:
            x = self.embedding(x) + self.positions(torch.arange(x.shape[1]))
        for layer in self.layers.values():
            x = layer(x)
        return x if self.is_first else self.output(self.norm(x))


def by_schedule(
    mesh: DeviceMesh, stage: Any, schedule_of: Any, after: Any = lambda _stage: None, **options: Any
) -> Trained:
    """Return a model of two stages that a schedule of torch trains, in four microbatches."""
    rank = mesh.get_local_rank()
    model = stage(rank)
    whole = PipelineStage(model, rank, 2, torch.device("cpu"), group=mesh.get_group())
    schedule = schedule_of(
        whole, 4, loss_fn=lambda out, wanted: F.cross_entropy(out.flatten(0, 1), wanted.flatten()), **options
    )
    optimizer = adam(model.parameters())
    tokens, targets = tokens_and_targets()

    def step() -> None:
        if rank == 0:
            schedule.step(tokens)
        else:
            schedule.step(target=targets)
        after(model)
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def tied_pipeline(mesh: DeviceMesh) -> Trained:
    def sum_of_tied(model: Any) -> None:
        dist.all_reduce(model.embedding.weight.grad)

    stage = partial(TiedStage, seeded(tied=True))
    return by_schedule(mesh, stage, ScheduleGPipe, sum_of_tied)


def hsdp_bf16(mesh: DeviceMesh) -> Trained:
    model = llama()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    data = part_of_batch(mesh, "shard", *part_of_batch(mesh, "replicate", *tokens_and_targets()))
    return trained(model, *data, optimizer=adam, before_optimizer=partial(clip, model))


def clipped_llama() -> Trained:
    model = llama()
    return trained(model, *tokens_and_targets(), optimizer=adam, before_optimizer=partial(clip, model))


def zero_1(mesh: DeviceMesh) -> Trained:
    model = DistributedDataParallel(llama())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-2)
    data = part_of_batch(mesh, "dp", *tokens_and_targets())
    return trained(model, *data, optimizer=lambda _: optimizer)


class VocabularyParallel(nn.Module):
    """An embedding of which a rank holds some rows."""

    def __init__(self, embedding: nn.Embedding, mesh: DeviceMesh, offset: int | None = None) -> None:
        super().__init__()
        self.mesh, rank = mesh, mesh.get_local_rank()
        self.weight = nn.Parameter(embedding.weight.detach().chunk(mesh.size())[rank].clone())
        self.offset = rank * len(self.weight) if offset is None else offset
        self.reduces = True

    def forward(self, tokens: Tensor) -> Tensor:
        mine = tokens - self.offset
        outside = (mine < 0) | (mine >= len(self.weight))
        out = F.embedding(mine.masked_fill(outside, 0), self.weight).masked_fill(outside[..., None], 0)
        return Reduced.apply(out, self.mesh.get_group()) if self.reduces else out


def vocabulary(mesh: DeviceMesh, change: Any = lambda _model: None) -> Trained:
    model: Any = tensor_parallel(seeded(), mesh["tp"])
    model.embedding = VocabularyParallel(model.embedding, mesh["tp"])
    change(model)
    data = part_of_batch(mesh, "dp", *tokens_and_targets())
    return trained(model, *data, optimizer=adam, before_optimizer=partial(reduce_gradients, model, mesh["dp"]))


def recomputed(mesh: DeviceMesh) -> Trained:
    model: Any = tensor_parallel(seeded(dropout=0.2), mesh["tp"])
    for at, layer in enumerate(model.layers):
        model.layers[at] = checkpoint_wrapper(layer)
    torch.manual_seed(7 + mesh.get_local_rank("dp"))
    data = part_of_batch(mesh, "dp", *tokens_and_targets())
    return trained(model, *data, optimizer=adam, before_optimizer=partial(reduce_gradients, model, mesh["dp"]))


def llama_cp(mesh: DeviceMesh) -> Trained:
    model: Any = llama()
    length, rank = LENGTH // mesh.size(), mesh.get_local_rank()
    model.rotary.start = rank * length
    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()[rank * length : (rank + 1) * length]
    for layer in model.layers:
        layer.attention.forward = partial(_with_all_keys, layer.attention, mesh, mask)
    data = part_of_batch(mesh, "cp", *tokens_and_targets(), dim=1)
    return trained(model, *data, optimizer=adam, before_optimizer=partial(reduce_gradients, model, mesh))


def _with_all_keys(attention: Any, mesh: DeviceMesh, mask: Tensor, x: Tensor, angles: Tensor) -> Tensor:
    q, k, v = (one(x).unflatten(-1, (-1, HEAD)).transpose(1, 2) for one in (attention.wq, attention.wk, attention.wv))
    q, k = rotated(q, angles), rotated(k, angles)
    k, v = (Gathered.apply(part, mesh, 2).repeat_interleave(2, 1) for part in (k, v))
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    out: Tensor = attention.wo(mixed.transpose(1, 2).flatten(2))
    return out


FURTHER_RIGHT_PLANS = (
    RightPlan("Llama: FSDP2 × TP, loss parallel", llama_tp, llama_adam),
    RightPlan("Llama: FSDP2, accumulated", llama_accumulated, llama_adam, "dp=2"),
    RightPlan("convolutions, gradients sent as fp16", convolutions, images, "dp=2"),
    RightPlan("encoder with padding and dropout", encoder_by_rows, partial(encoded, 0.1), "dp=2"),
    RightPlan("experts of tokens", experts_of_tokens, experts, "ep=2"),
    RightPlan("tied embeddings in a pipeline", tied_pipeline, partial(plain, tied=True), "pp=2"),
    RightPlan("Llama: HSDP in bf16, clipped", hsdp_bf16, clipped_llama, "replicate=2,shard=2"),
    RightPlan("Llama: ZeRO 1", zero_1, llama_adam, "dp=2"),
    RightPlan("vocabulary in parts", vocabulary, plain),
    RightPlan("TP, recomputed, with dropout", recomputed, partial(plain, dropout=0.2)),
    RightPlan("Llama: CP", llama_cp, llama_adam, "cp=2"),
)
