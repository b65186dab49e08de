"""Right plans of outsiders for attention, experts, autocast and adapters, which wrong ones change."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from tests.numerics.outsider_models import (
    EXPERTS,
    Adapted,
    Decoder,
    RelativeBias,
    Slopes,
    TopTwoModel,
)
from tests.numerics.right_plans import adam, loss_of
from tests.numerics.trained_model import (
    LENGTH,
    ColumnParallel,
    Copied,
    Gathered,
    RowParallel,
    Trained,
    part_of_batch,
    reduce_gradients,
    tokens_and_targets,
    trained,
)


def made(model: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Return a model with the same weights in every process."""
    torch.manual_seed(0)
    return model(*arguments, **options)


def relative(**options: Any) -> Any:
    torch.manual_seed(0)
    return Decoder(RelativeBias(), **options)


def sloped() -> Any:
    torch.manual_seed(0)
    return Decoder(Slopes())


def alone(model: Callable[[], Any], *, adapted: bool = True) -> Trained:
    """The reference: one process, the whole batch."""
    return trained(model(), *tokens_and_targets(), **({"optimizer": adam} if adapted else {}))


def linear_layers_cut(model: Any, mesh: DeviceMesh, *, keys: bool = True) -> Any:
    """Cut each layer along tp in plain tensors; keys and values are held whole where there are too few of them."""
    for layer in model.layers:
        attention = layer.attention
        attention.wq = ColumnParallel(attention.wq, mesh)
        if keys:
            attention.wk, attention.wv = ColumnParallel(attention.wk, mesh), ColumnParallel(attention.wv, mesh)
        else:
            for name in ("wk", "wv"):
                getattr(attention, name).register_forward_pre_hook(
                    lambda _m, args: Copied.apply(args[0], mesh.get_group())
                )
        attention.wo = RowParallel(attention.wo, mesh)
        layer.up, layer.down = ColumnParallel(layer.up, mesh), RowParallel(layer.down, mesh)
    return model


def one_key_head(mesh: DeviceMesh, *, reduces: bool = True) -> Trained:
    """One head of keys on two ranks of tp: each has it whole, and part of its gradient."""
    model = linear_layers_cut(made(Decoder, key_heads=1), mesh["tp"], keys=False)

    def reduce() -> None:
        reduce_gradients(model, mesh["dp"])
        for layer in model.layers if reduces else ():
            for linear in (layer.attention.wk, layer.attention.wv):
                reduce_gradients(linear, mesh["tp"], mean=False)

    return trained(model, *part_of_batch(mesh, "dp", *tokens_and_targets()), optimizer=adam, before_optimizer=reduce)


def tied_tp_fsdp(mesh: DeviceMesh) -> Trained:
    model = made(Decoder, tied=True)
    plan = {
        "embedding": RowwiseParallel(input_layouts=Replicate()),
        "output": ColwiseParallel(output_layouts=Replicate()),
    }
    parallelize_module(model, mesh["tp"], plan)
    model.output.weight = model.embedding.weight
    for layer in model.layers:
        parallelize_module(layer, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    return trained(model, *part_of_batch(mesh, "dp", *tokens_and_targets()), optimizer=adam)


def zigzag_places(mesh: DeviceMesh) -> Tensor:
    """Positions of this rank: a chunk from the start and one from the end, so that ranks have as much to attend to."""
    chunks = torch.arange(LENGTH).chunk(2 * mesh.size())
    rank = mesh.get_local_rank()
    return torch.cat((chunks[rank], chunks[-1 - rank]))


def zigzag(mesh: DeviceMesh, change: Callable[[Any, DeviceMesh], Any] = lambda _m, _mesh: None) -> Trained:
    model = made(Decoder)
    mine = zigzag_places(mesh)
    places = [torch.empty_like(mine) for _ in range(mesh.size())]
    dist.all_gather(places, mine, group=mesh.get_group())
    model.places = mine
    for layer in model.layers:
        layer.attention.query_places, layer.attention.key_places = mine, torch.cat(places)
        layer.attention.gather = lambda x: Gathered.apply(x, mesh, 2)
    change(model, mesh)
    data = (one[:, mine] for one in tokens_and_targets())
    return trained(model, *data, optimizer=adam, before_optimizer=partial(reduce_gradients, model, mesh))


def top_two(mesh: DeviceMesh, change: Callable[[Any], Any] = lambda _model: None) -> Trained:
    """Each rank holds two of four experts, and sends them rows by all_to_all."""
    model = made(TopTwoModel)
    routed, held = model.mixture.routed, EXPERTS // mesh.size()
    first = mesh.get_local_rank() * held
    routed.mesh = mesh
    routed.experts = nn.ModuleDict({str(first + at): routed.experts[first + at] for at in range(held)})
    routed.experts.forward = None
    routed._computed = partial(_computed_by, routed.experts)
    change(model)
    own = {id(parameter) for parameter in routed.experts.parameters()}

    def reduce() -> None:
        for parameter in model.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if id(parameter) not in own:
                dist.all_reduce(parameter.grad, group=mesh.get_group())
            parameter.grad /= mesh.size()

    return trained(model, *part_of_batch(mesh, "ep", *tokens_and_targets()), before_optimizer=reduce)


def _computed_by(experts: Any, rows: Tensor, counts: list[int]) -> Tensor:
    return torch.cat([expert(part) for expert, part in zip(experts.values(), rows.split(counts), strict=True)])


def autocast(mesh: DeviceMesh) -> Trained:
    model = DistributedDataParallel(relative())
    optimizer = adam(model.parameters())
    tokens, targets = part_of_batch(mesh, "dp", *tokens_and_targets())

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, tokens, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def last_microbatch_smaller(mesh: DeviceMesh) -> Trained:
    """Microbatches of three rows and of one, each divided by the elements of all."""
    model = relative()
    optimizer = adam(model.parameters())
    tokens, targets = part_of_batch(mesh, "dp", *tokens_and_targets())

    def step() -> None:
        for rows in (slice(0, 3), slice(3, None)):
            logits = model(tokens[rows]).flatten(0, 1)
            (F.cross_entropy(logits, targets[rows].flatten(), reduction="sum") / targets.numel()).backward()
        reduce_gradients(model, mesh)
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def with_adapters() -> Any:
    model = made(Decoder).requires_grad_(False)
    for layer in model.layers:
        layer.attention.wq, layer.attention.wv = Adapted(layer.attention.wq), Adapted(layer.attention.wv)
    return model


def trained_adapters(model: Any, tokens: Tensor, targets: Tensor, **options: Any) -> Trained:
    def chosen(parameters: Any) -> torch.optim.Optimizer:
        return adam([one for one in parameters if one.requires_grad])

    return trained(model, tokens, targets, optimizer=chosen, **options)


def adapters() -> Trained:
    return trained_adapters(with_adapters(), *tokens_and_targets())


def adapters_fsdp(mesh: DeviceMesh) -> Trained:
    model = with_adapters()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return trained_adapters(model, *part_of_batch(mesh, "dp", *tokens_and_targets()))
