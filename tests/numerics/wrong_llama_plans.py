"""Plans for a small Llama with one fault each."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests.numerics.further_models import llama
from tests.numerics.further_right_plans import (
    llama_cp,
)
from tests.numerics.right_plans import loss_of
from tests.numerics.trained_model import (
    Copied,
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


def llama_sgd() -> Trained:
    return trained(llama(), *tokens_and_targets())


def by_rows(mesh: DeviceMesh, model: nn.Module, **options: Any) -> Trained:
    """Return a model that is trained on part of the batch, with gradients averaged by hand."""
    data = part_of_batch(mesh, "dp", *tokens_and_targets())
    return trained(model, *data, **{"before_optimizer": partial(reduce_gradients, model, mesh["dp"]), **options})


# Llama


def keys_in_turn(mesh: DeviceMesh) -> Trained:
    model: Any = llama()
    model.layers[1].attention.in_turn = True
    return by_rows(mesh, model)


def heads_of_others(mesh: DeviceMesh) -> Trained:
    """Cut along tp by plain slices, with the keys and values of the other rank."""
    model: Any = llama()
    size, rank = mesh["tp"].size(), mesh["tp"].get_local_rank()
    for layer in model.layers:
        attention = layer.attention
        for name in ("wq", "wk", "wv"):
            linear = getattr(attention, name)
            part = (rank + (name == "wv")) % size
            linear.weight = nn.Parameter(linear.weight.detach().chunk(size)[part].clone())
        attention.wo.weight = nn.Parameter(attention.wo.weight.detach().chunk(size, 1)[rank].clone())
        attention.wo.register_forward_hook(lambda _m, _a, out: _summed(out, mesh["tp"]))
        attention.register_forward_pre_hook(lambda _m, args: (_copied(args[0], mesh["tp"]), *args[1:]))
    return by_rows(mesh, model)


def _summed(x: Tensor, mesh: DeviceMesh) -> Tensor:
    out: Tensor = Reduced.apply(x, mesh.get_group())
    return out


def _copied(x: Tensor, mesh: DeviceMesh) -> Tensor:
    out: Tensor = Copied.apply(x, mesh.get_group())
    return out


def rotary_of_chunk(mesh: DeviceMesh) -> Trained:
    model, step = llama_cp(mesh)
    model.rotary.start = 0  # type: ignore[union-attr, assignment]
    return model, step


def summed_over_cp(mesh: DeviceMesh) -> Trained:
    model, _ = llama_cp(mesh)
    data = part_of_batch(mesh, "cp", *tokens_and_targets(), dim=1)
    return trained(model, *data, before_optimizer=partial(reduce_gradients, model, mesh, mean=False))


def norms_of_sequence_parts(mesh: DeviceMesh) -> Trained:
    """Norms over this rank's part of the sequence, whose gradients nobody sums."""
    model: Any = llama()

    class Parted(nn.Module):
        def __init__(self, norm: nn.Module) -> None:
            super().__init__()
            self.weight = norm.weight

        def forward(self, x: Tensor) -> Tensor:
            part = _scattered(x, mesh)
            return Gathered.apply(F.rms_norm(part, part.shape[-1:], self.weight), mesh, 1)  # type: ignore[no-any-return]

    for layer in model.layers:
        layer.network_norm = Parted(layer.network_norm)
    return trained(model, *tokens_and_targets())


class Scattered(torch.autograd.Function):
    """This rank's part of the sequence; backward joins the parts."""

    @staticmethod
    def forward(ctx, x: Tensor, mesh: DeviceMesh) -> Tensor:  # type: ignore[no-untyped-def, override]
        ctx.mesh = mesh
        return x.chunk(mesh.size(), 1)[mesh.get_local_rank()].clone()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def, override]
        parts = [torch.empty_like(gradient) for _ in range(ctx.mesh.size())]
        dist.all_gather(parts, gradient.contiguous(), group=ctx.mesh.get_group())
        return torch.cat(parts, 1) / ctx.mesh.size(), None


def _scattered(x: Tensor, mesh: DeviceMesh) -> Tensor:
    out: Tensor = Scattered.apply(x, mesh)
    return out


def hsdp_without_replicas(mesh: DeviceMesh) -> Trained:
    """FSDP over the shards alone: replicas never meet."""
    model = llama()
    fully_shard(model, mesh=mesh["shard"])
    data = part_of_batch(mesh, "shard", *part_of_batch(mesh, "replicate", *tokens_and_targets()))
    return trained(model, *data)


def same_batch(mesh: DeviceMesh) -> Trained:
    """Return a sampler that gives all ranks the same rows."""
    tokens, targets = tokens_and_targets()
    return trained(DistributedDataParallel(llama()), tokens[:4], targets[:4])


def never_synchronized(mesh: DeviceMesh) -> Trained:
    model = DistributedDataParallel(llama())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tokens, targets = part_of_batch(mesh, "dp", *tokens_and_targets())

    def step() -> None:
        for at in range(2):
            with model.no_sync():
                loss_of(model, tokens.chunk(2)[at], targets.chunk(2)[at]).div(2).backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def clipped_before_reduction(mesh: DeviceMesh) -> Trained:
    model = llama()

    def clip() -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        reduce_gradients(model, mesh["dp"])

    return by_rows(mesh, model, before_optimizer=clip)


def llama_clipped() -> Trained:
    model = llama()
    return trained(
        model, *tokens_and_targets(), before_optimizer=lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    )


def rate_times_ranks(mesh: DeviceMesh) -> Trained:
    model = DistributedDataParallel(llama())
    data = part_of_batch(mesh, "dp", *tokens_and_targets())
    return trained(model, *data, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1 * mesh.size()))


def own_half_updated(mesh: DeviceMesh) -> Trained:
    """ZeRO 1 by hand, that forgets to send what each rank has updated."""
    model = llama()
    rank = mesh.get_local_rank()
    mine = [parameter for at, parameter in enumerate(model.parameters()) if at % mesh.size() == rank]
    return by_rows(mesh, model, optimizer=lambda _: torch.optim.SGD(mine, lr=0.1))


def not_zeroed(mesh: DeviceMesh) -> Trained:
    model = DistributedDataParallel(llama())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tokens, targets = part_of_batch(mesh, "dp", *tokens_and_targets())

    def step() -> None:
        loss_of(model, tokens, targets).backward()
        optimizer.step()

    return model, step


def loss_still_scaled(mesh: DeviceMesh) -> Trained:
    """Mixed precision that steps without unscaling."""
    model = DistributedDataParallel(llama())
    data = part_of_batch(mesh, "dp", *tokens_and_targets())
    return trained(model, *data, loss=lambda out, wanted: 65536 * F.cross_entropy(out.flatten(0, 1), wanted.flatten()))


def bias_of_each_rank(mesh: DeviceMesh) -> Trained:
    """Return a row-parallel layer that adds its bias before the sum."""
    model: Any = tensor_parallel(seeded(), mesh["tp"])
    layer = model.layers[0].feed_forward.down

    def forward(x: Tensor) -> Tensor:
        return _summed(F.linear(x, layer.weight, layer.bias), mesh["tp"])

    layer.forward = forward
    data = part_of_batch(mesh, "dp", *tokens_and_targets())
    return trained(model, *data, before_optimizer=partial(reduce_gradients, model, mesh["dp"]))
