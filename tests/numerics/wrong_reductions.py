"""Plans with one fault in a sum, a mean or a norm over ranks, or in the rows that count."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from tests.numerics.right_plans import loss_of
from tests.numerics.trained_model import (
    IGNORED,
    Trained,
    blocks,
    part_of_batch,
    reduce_gradients,
    seeded,
    tensor_parallel,
    tokens_and_targets,
    trained,
)
from tests.numerics.wrong_plan import megatron_with

# factor


def summed_gradients(mesh: DeviceMesh) -> Trained:
    model = seeded()
    data = part_of_batch(mesh, "dp", *tokens_and_targets())
    return trained(model, *data, before_optimizer=partial(reduce_gradients, model, mesh["dp"], mean=False))


def accumulated_without_division(mesh: DeviceMesh) -> Trained:
    model = DistributedDataParallel(seeded())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tokens, targets = part_of_batch(mesh, "dp", *tokens_and_targets())

    def step() -> None:
        with model.no_sync():
            loss_of(model, tokens[:2], targets[:2]).backward()
        loss_of(model, tokens[2:], targets[2:]).backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def reduced_twice(model: Any, mesh: DeviceMesh) -> None:
    model.layers[1].feed_forward.down.times = 2
    nn.init.zeros_(model.layers[1].feed_forward.down.bias)


def without_bias() -> Trained:
    return trained(with_zero_bias(), *tokens_and_targets())


def with_zero_bias() -> nn.Module:
    model: Any = seeded()
    nn.init.zeros_(model.layers[1].feed_forward.down.bias)
    return model


def reduced_twice_plan(mesh: DeviceMesh) -> Trained:
    return megatron_with(mesh, reduced_twice)


def averaged_twice(mesh: DeviceMesh) -> Trained:
    model = DistributedDataParallel(seeded())
    data = part_of_batch(mesh, "dp", *tokens_and_targets())
    return trained(model, *data, loss=lambda logits, targets: loss_of_logits(logits, targets) / 2)


def loss_of_logits(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


# missing reduction


def row_without_reduction(model: Any, mesh: DeviceMesh) -> None:
    model.layers[0].attention.wo.times = 0
    nn.init.zeros_(model.layers[0].attention.wo.bias)


def zero_bias_of_wo() -> Trained:
    model: Any = seeded()
    nn.init.zeros_(model.layers[0].attention.wo.bias)
    return trained(model, *tokens_and_targets())


def output_not_reduced(mesh: DeviceMesh) -> Trained:
    model = seeded()

    def reduce() -> None:
        for name, parameter in model.named_parameters():
            if not name.startswith("output"):
                dist.all_reduce(parameter.grad, group=mesh["dp"].get_group())
                parameter.grad /= 2  # type: ignore[operator]

    data = part_of_batch(mesh, "dp", *tokens_and_targets())
    return trained(model, *data, before_optimizer=reduce)


def input_gradient_not_reduced(model: Any, mesh: DeviceMesh) -> None:
    model.layers[1].feed_forward.up.copies = False


def nothing_reduced(mesh: DeviceMesh) -> Trained:
    return trained(seeded(), *part_of_batch(mesh, "dp", *tokens_and_targets()))


# unequal batches


def of_three_and_five(mesh: DeviceMesh) -> Trained:
    model = seeded()
    rows = slice(0, 3) if mesh.get_local_rank("dp") == 0 else slice(3, None)
    tokens, targets = tokens_and_targets()
    return trained(model, tokens[rows], targets[rows], before_optimizer=partial(reduce_gradients, model, mesh["dp"]))


def of_other_numbers_of_targets(mesh: DeviceMesh) -> Trained:
    model = DistributedDataParallel(seeded())
    return trained(model, *part_of_batch(mesh, "dp", *tokens_and_targets(padded=True)))


def padded_sgd() -> Trained:
    return trained(seeded(), *tokens_and_targets(padded=True))


def unequal_microbatches(mesh: DeviceMesh) -> Trained:
    model = seeded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tokens, targets = tokens_and_targets()

    def step() -> None:
        for rows in (slice(0, 5), slice(5, None)):
            loss_of(model, tokens[rows], targets[rows]).div(2).backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, step


# local norm


def clipped_by_shards(mesh: DeviceMesh) -> Trained:
    model = seeded()
    fully_shard(model, mesh=mesh)

    def clip() -> None:
        clip_by(model, [parameter.grad.to_local() for parameter in model.parameters()])  # type: ignore[union-attr]

    data = part_of_batch(mesh, "dp", *tokens_and_targets())
    return trained(model, *data, before_optimizer=clip)


def clip_by(model: nn.Module, locals_: list[Tensor]) -> None:
    norm = math.sqrt(sum(float((part.double() ** 2).sum()) for part in locals_))
    for parameter in model.parameters():
        gradient = parameter.grad
        local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
        if local is not None:
            local *= min(1.0, 0.1 / (norm + 1e-6))


def clipped_sgd() -> Trained:
    model = seeded()
    return trained(
        model,
        *tokens_and_targets(),
        before_optimizer=lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.1),
    )


def clipped_by_tp_parts(mesh: DeviceMesh) -> Trained:
    model = tensor_parallel(seeded(), mesh["tp"])

    def clip() -> None:
        reduce_gradients(model, mesh["dp"])
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    return trained(model, *part_of_batch(mesh, "dp", *tokens_and_targets()), before_optimizer=clip)


def clipped_by_layers(mesh: DeviceMesh) -> Trained:
    model = seeded()
    for layer in blocks(model):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)

    def clip() -> None:
        clip_by(model, [parameter.grad.to_local() for parameter in model.parameters()])  # type: ignore[union-attr]

    return trained(model, *part_of_batch(mesh, "dp", *tokens_and_targets()), before_optimizer=clip)


# padding


def padding_in_loss(mesh: DeviceMesh) -> Trained:
    model = DistributedDataParallel(seeded())
    tokens, targets = part_of_batch(mesh, "dp", *tokens_and_targets(padded=True))
    return trained(model, tokens, targets.clamp(min=0))


def divided_by_all(logits: Tensor, targets: Tensor) -> Tensor:
    losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="none")
    return losses.mean()


def padding_in_count(mesh: DeviceMesh) -> Trained:
    model = DistributedDataParallel(seeded())
    return trained(model, *part_of_batch(mesh, "dp", *tokens_and_targets(padded=True)), loss=divided_by_all)


def padding_of_one_rank(mesh: DeviceMesh) -> Trained:
    model = seeded()
    tokens, targets = tokens_and_targets(padded=True)
    count = (targets != IGNORED).sum()

    def loss(logits: Tensor, wanted: Tensor) -> Tensor:
        ignored = IGNORED if mesh.get_local_rank() == 0 else IGNORED - 1
        wanted = wanted.clamp(min=0) if mesh.get_local_rank() else wanted
        summed = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=ignored, reduction="sum")
        return summed / count

    data = part_of_batch(mesh, "dp", tokens, targets)
    return trained(model, *data, loss=loss, before_optimizer=partial(reduce_gradients, model, mesh, mean=False))
