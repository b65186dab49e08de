"""Plans with one fault each: dropout that parts in other ways than by seed, pools, images, packed documents, stages."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from tests.numerics.later_right_plans import (
    Largest,
    Weighted,
    copied_twice,
    gated_alone,
    gated_tp,
    image_alone,
    image_by_sequence,
    own_generator,
    packed,
    packed_by_sequence,
    sorted_alone,
    sorted_ddp,
)
from tests.numerics.right_plans import Stage, loss_of
from tests.numerics.trained_model import (
    WIDTH,
    Trained,
    part_of_batch,
    reduce_gradients,
    seeded,
    tensor_parallel,
    tokens_and_targets,
    trained,
)
from tests.numerics.wrong_plan import WrongPlan, sgd


def evaluated_by_first(mesh: DeviceMesh) -> Trained:
    """After a step the first rank samples, and draws on from there."""
    model = tensor_parallel(seeded(dropout=0.2), mesh)
    model, step = trained(model, *tokens_and_targets())

    def step_and_sample() -> None:
        step()
        if mesh.get_local_rank() == 0:
            torch.multinomial(torch.ones(4), 1)

    return model, step_and_sample


def in_evaluation(mesh: DeviceMesh) -> Trained:
    """Loaded as for inference, and never put into training."""
    model = seeded(dropout=0.2).eval()
    data = part_of_batch(mesh, "dp", *tokens_and_targets())
    return trained(model, *data, before_optimizer=partial(reduce_gradients, model, mesh))


def own_generator_again(mesh: DeviceMesh) -> Trained:
    """Recomputation restores torch's generator, not the module's own."""
    model = own_generator()
    layer = model.layers[1]
    layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    return trained(tensor_parallel(model, mesh), *tokens_and_targets())


class DrawnByHand(torch.autograd.Function):
    """Runs a module in forward without a graph, and again in backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, module: Any, *_parameters: Any) -> torch.Tensor:
        ctx.module = module
        ctx.save_for_backward(x)
        with torch.no_grad():
            return module(x)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        x = ctx.saved_tensors[0].detach().requires_grad_()
        parameters = list(ctx.module.parameters())
        with torch.enable_grad():
            out = ctx.module(x)
        gradients = torch.autograd.grad(out, [x, *parameters], gradient)
        return (gradients[0], None, *gradients[1:])


class Again(nn.Module):
    """A module that is computed again in backward."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.attention, self.by_hand = module, True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.by_hand:
            return nn.functional.dropout(self.attention(x), 0.2, self.training)
        return DrawnByHand.apply(x, _Dropped(self.attention), *self.attention.parameters())  # type: ignore[no-any-return]


class _Dropped(nn.Module):
    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(self.module(x), 0.2, self.training)


def again(*, by_hand: bool) -> Any:
    model: Any = seeded()
    model.layers[0].attention = Again(model.layers[0].attention)
    model.layers[0].attention.by_hand = by_hand
    return model


def again_by_hand(mesh: DeviceMesh) -> Trained:
    model = again(by_hand=True)
    data = part_of_batch(mesh, "dp", *tokens_and_targets())
    return trained(model, *data, before_optimizer=partial(reduce_gradients, model, mesh))


def accumulated_by_fsdp(mesh: DeviceMesh) -> Trained:
    """Two microbatches whose gradients are reduced with the second one, and no division."""
    model: Any = seeded()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tokens, targets = part_of_batch(mesh, "dp", *tokens_and_targets())

    def step() -> None:
        for at, (some, wanted) in enumerate(zip(tokens.chunk(2), targets.chunk(2), strict=True)):
            model.set_requires_gradient_sync(at == 1)
            loss_of(model, some, wanted).backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def never_in_sync(mesh: DeviceMesh) -> Trained:
    """``no_sync`` around all microbatches, the last one too."""
    model = DistributedDataParallel(seeded())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tokens, targets = part_of_batch(mesh, "dp", *tokens_and_targets())

    def step() -> None:
        with model.no_sync():
            for some, wanted in zip(tokens.chunk(2), targets.chunk(2), strict=True):
                (loss_of(model, some, wanted) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def clipped_by_stages(mesh: DeviceMesh) -> Trained:
    """Each stage of a pipeline clips by the norm of its own gradients."""
    rank = mesh.get_local_rank()
    model = Stage(seeded(), rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tokens, targets = tokens_and_targets()

    def step() -> None:
        shape = (*tokens.shape, WIDTH)
        if rank == 0:
            out = model(tokens)
            dist.send(out.detach(), 1)
            gradient = torch.empty(shape)
            dist.recv(gradient, 1)
            out.backward(gradient)
        else:
            hidden = torch.empty(shape)
            dist.recv(hidden, 0)
            hidden.requires_grad_()
            loss_of(model, hidden, targets).backward()
            dist.send(hidden.grad, 0)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def clipped() -> Trained:
    model = seeded()
    return trained(
        model, *tokens_and_targets(), before_optimizer=lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    )


def embedding_left_out(mesh: DeviceMesh) -> Trained:
    """ZeRO 1: each rank updates some parameters and sends them on, but for the embedding."""
    model = DistributedDataParallel(seeded())
    named = list(model.module.named_parameters())
    held = [one for at, (_, one) in enumerate(named) if at % mesh.size() == mesh.get_local_rank()]
    tokens, targets = part_of_batch(mesh, "dp", *tokens_and_targets())
    optimizer = torch.optim.SGD(held, lr=0.1)

    def step() -> None:
        loss_of(model, tokens, targets).backward()
        optimizer.step()
        for at, (name, parameter) in enumerate(named):
            if not name.startswith("embedding"):
                dist.broadcast(parameter.detach(), at % mesh.size())
        model.zero_grad()

    return model, step


FEED_FORWARD = (
    "layers.0.feed_forward",
    "layers.0.feed_forward.drop",
    "layers.0.feed_forward.down",
    "layers.0.feed_forward.gate_up",
)
LATER_WRONG_PLANS = (
    WrongPlan(
        "sampled by the first rank",
        "dropout",
        evaluated_by_first,
        ("layers.0.drop",),
        "forward",
        "tp=2",
        partial(sgd, dropout=0.2),
    ),
    WrongPlan(
        "left in evaluation",
        "dropout",
        in_evaluation,
        ("layers.0.drop",),
        "forward",
        "dp=2",
        partial(sgd, dropout=0.2),
    ),
    WrongPlan(
        "same draws of own features",
        "dropout",
        partial(gated_tp, dropout=0.2, own_seeds=False),
        ("layers.0.feed_forward.drop",),
        "forward",
        "tp=2",
        partial(gated_alone, 0.2),
    ),
    WrongPlan(
        "own generator drawn again",
        "dropout",
        own_generator_again,
        ("layers.1", "layers.1.drop"),
        "backward",
        "tp=2",
        lambda: trained(own_generator(), *tokens_and_targets()),
    ),
    WrongPlan(
        "drawn again by hand",
        "dropout",
        again_by_hand,
        ("layers.0", "layers.0.attention", "layers.0.attention.attention", "layers.0.attention.attention.wo"),
        "backward",
        "dp=2",
        lambda: trained(again(by_hand=False), *tokens_and_targets()),
    ),
    WrongPlan(
        "gate and up cut as one",
        "permutation",
        partial(gated_tp, groups=1),
        FEED_FORWARD,
        "forward",
        "tp=2",
        gated_alone,
    ),
    WrongPlan(
        "largest over padding",
        "padding",
        partial(sorted_ddp, pool=Largest, counts_padding=True),
        ("pool",),
        "forward",
        "dp=2",
        partial(sorted_alone, Largest),
    ),
    WrongPlan(
        "weighted over padding",
        "padding",
        partial(sorted_ddp, pool=Weighted, counts_padding=True),
        ("pool",),
        "forward",
        "dp=2",
        partial(sorted_alone, Weighted),
    ),
    WrongPlan(
        "places without the class token",
        "shift",
        partial(image_by_sequence, shifted=1),
        ("places",),
        "forward",
        "sp=2",
        image_alone,
    ),
    WrongPlan(
        "documents end at chunks",
        "mask",
        partial(packed_by_sequence, ends_at_chunks=True),
        ("layers.0.attention", "layers.0.attention.wo"),
        "forward",
        "cp=2",
        packed,
    ),
    WrongPlan("accumulated by FSDP2", "factor", accumulated_by_fsdp, ("",), "gradient", "dp=2"),
    WrongPlan("never in sync", "missing reduction", never_in_sync, ("",), "gradient", "dp=2"),
    WrongPlan("clipped by stages", "local norm", clipped_by_stages, ("",), "gradient", "pp=2", clipped),
    WrongPlan("embedding left out", "stale parameters", embedding_left_out, ("embedding",), "optimizer", "dp=2"),
    WrongPlan(
        "reduced twice in backward",
        "factor",
        partial(copied_twice, twice=True),
        ("layers.1.norm_2",),
        "backward",
        "tp=2",
        sgd,
    ),
)
