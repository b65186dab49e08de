"""All right plans of outsiders: in addition, for norms, towers, sequences and vocabularies in parts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from tests.numerics.outsider_models import (
    Classifier,
    Decoder,
    Recurrent,
    TopTwoModel,
    Towers,
    _attend,
)
from tests.numerics.outsider_plans import (
    adapters,
    adapters_fsdp,
    alone,
    autocast,
    last_microbatch_smaller,
    linear_layers_cut,
    made,
    one_key_head,
    relative,
    tied_tp_fsdp,
    top_two,
    zigzag,
)
from tests.numerics.right_plans import RightPlan, adam
from tests.numerics.trained_model import (
    HEADS,
    IGNORED,
    LENGTH,
    ColumnParallel,
    Gathered,
    Trained,
    part_of_batch,
    reduce_gradients,
    tokens_and_targets,
    trained,
)


class Cut(torch.autograd.Function):
    """This rank's part of the sequence of what all ranks hold; backward joins the parts."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mesh: DeviceMesh) -> Tensor:
        ctx.mesh = mesh
        return x.chunk(mesh.size(), 1)[mesh.get_local_rank()].clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        parts = [torch.empty_like(gradient) for _ in range(ctx.mesh.size())]
        dist.all_gather(parts, gradient.contiguous(), group=ctx.mesh.get_group())
        return torch.cat(parts, 1), None


class Joined(torch.autograd.Function):
    """Join the ranks' parts of the sequence; backward takes this rank's part of a gradient that all ranks hold."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mesh: DeviceMesh) -> Tensor:
        ctx.mesh = mesh
        parts = [torch.empty_like(x) for _ in range(mesh.size())]
        dist.all_gather(parts, x.contiguous(), group=mesh.get_group())
        return torch.cat(parts, 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return gradient.chunk(ctx.mesh.size(), 1)[ctx.mesh.get_local_rank()].clone(), None


class OfParts(nn.Module):
    """A norm on this rank's part of the sequence, between a cut and a join."""

    def __init__(self, norm: Any, mesh: DeviceMesh) -> None:
        super().__init__()
        self.weight, self.bias, self.mesh = norm.weight, norm.bias, mesh

    def forward(self, x: Tensor) -> Tensor:
        part: Tensor = Cut.apply(x, self.mesh)
        normed = F.layer_norm(part, part.shape[-1:], self.weight, self.bias)
        out: Tensor = Joined.apply(normed, self.mesh)
        return out


def norms_of_parts(mesh: DeviceMesh) -> Trained:
    """Sequence parallelism by hand: gradients of the norms are summed over tp."""
    model = linear_layers_cut(made(Decoder), mesh["tp"])
    for layer in model.layers:
        layer.before, layer.after = OfParts(layer.before, mesh["tp"]), OfParts(layer.after, mesh["tp"])

    def reduce() -> None:
        reduce_gradients(model, mesh["dp"])
        for layer in model.layers:
            for norm in (layer.before, layer.after):
                reduce_gradients(norm, mesh["tp"], mean=False)

    return trained(model, *part_of_batch(mesh, "dp", *tokens_and_targets()), optimizer=adam, before_optimizer=reduce)


def images_and_texts() -> tuple[Tensor, Tensor]:
    """Pairs, the same in every process."""
    return torch.randn(8, 12, generator=torch.Generator().manual_seed(9)), tokens_and_targets()[0]


def trained_towers(
    model: Any, images: Tensor, texts: Tensor, *, gather: Callable[[Tensor], Tensor], reduce: Callable[[], Any]
) -> Trained:
    optimizer = adam(model.parameters())

    def step() -> None:
        of_images, of_texts = model(images.to(model.scale.dtype), texts)
        products = model.scale * gather(of_images) @ gather(of_texts).T
        pairs = torch.arange(len(products))
        (F.cross_entropy(products, pairs) + F.cross_entropy(products.T, pairs)).backward()
        reduce()
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def towers() -> Trained:
    return trained_towers(made(Towers), *images_and_texts(), gather=lambda x: x, reduce=lambda: None)


def gathered_towers(mesh: DeviceMesh) -> Trained:
    """Each rank computes the loss of all pairs; gradients come back through the gather."""
    model = made(Towers)
    data = part_of_batch(mesh, "dp", *images_and_texts())
    return trained_towers(
        model, *data, gather=lambda x: Gathered.apply(x, mesh, 0), reduce=partial(reduce_gradients, model, mesh)
    )


class Moved(torch.autograd.Function):
    """all_to_all that joins one dim and cuts another, as DeepSpeed Ulysses does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mesh: DeviceMesh, joined: int, cut: int) -> Tensor:
        ctx.arguments = mesh, joined, cut
        return _moved(x, mesh, joined, cut)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        mesh, joined, cut = ctx.arguments
        return _moved(gradient, mesh, cut, joined), None, None, None


def _moved(x: Tensor, mesh: DeviceMesh, joined: int, cut: int) -> Tensor:
    going = torch.stack(x.chunk(mesh.size(), cut))
    coming = torch.empty_like(going)
    dist.all_to_all_single(coming, going, group=mesh.get_group())
    return torch.cat(coming.unbind(), joined)


def ulysses(mesh: DeviceMesh, *, backwards: bool = False) -> Trained:
    """A rank has a part of the sequence, and in attention the whole sequence of some heads."""
    model = made(Decoder)
    model.places = torch.arange(LENGTH).chunk(mesh.size())[mesh.get_local_rank()]

    def core(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        mixed = _attend(*(Moved.apply(one, mesh, 2, 1) for one in (q, k, v)), mask)
        out: Tensor = Moved.apply(mixed, mesh, 1, 2)
        return torch.cat(out.chunk(mesh.size(), 1)[::-1], 1) if backwards else out

    for layer in model.layers:
        layer.attention.core = core
    data = part_of_batch(mesh, "cp", *tokens_and_targets(), dim=1)
    return trained(model, *data, optimizer=adam, before_optimizer=partial(reduce_gradients, model, mesh))


def lstm_ddp(mesh: DeviceMesh) -> Trained:
    model = DistributedDataParallel(made(Recurrent), static_graph=True)
    return trained(model, *part_of_batch(mesh, "dp", *tokens_and_targets()), optimizer=adam)


class VocabularyLoss(torch.autograd.Function):
    """Mean cross-entropy of logits of which each rank has those of part of the vocabulary."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, mesh: DeviceMesh, reduces: bool) -> Tensor:
        group, width = mesh.get_group(), logits.shape[1]
        largest = logits.amax(1)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
        powers = (logits - largest[:, None]).exp()
        total = powers.sum(1)
        if reduces:
            dist.all_reduce(total, group=group)
        mine = targets - mesh.get_local_rank() * width
        held = (mine >= 0) & (mine < width)
        wanted = logits.gather(1, mine.clamp(0, width - 1)[:, None])[:, 0] * held
        dist.all_reduce(wanted, group=group)
        chosen = F.one_hot(mine.clamp(0, width - 1), width) * held[:, None]
        ctx.save_for_backward((powers / total[:, None] - chosen) / len(logits))
        return (total.log() + largest - wanted).mean()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        return ctx.saved_tensors[0] * gradient, None, None, None


def vocabulary_loss(mesh: DeviceMesh, *, reduces: bool = True) -> Trained:
    model = made(Decoder)
    linear = model.output
    model.output = ColumnParallel(linear, mesh)

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        out: Tensor = VocabularyLoss.apply(logits.flatten(0, 1), targets.flatten(), mesh, reduces)
        return out

    return trained(model, *tokens_and_targets(), loss=loss, optimizer=adam)


def classes() -> tuple[Tensor, Tensor]:
    """Token ids and classes, the same in every process."""
    tokens, targets = tokens_and_targets()
    return tokens, targets[:, 0] % 6


def pooled() -> Trained:
    return trained(made(Classifier), *classes(), loss=F.cross_entropy, optimizer=adam)


def pooled_ddp(mesh: DeviceMesh, *, counts_padding: bool = False) -> Trained:
    model = made(Classifier)
    (model.pool.lengths,) = part_of_batch(mesh, "dp", model.pool.lengths)
    model.pool.counts_padding = counts_padding
    data = part_of_batch(mesh, "dp", *classes())
    return trained(DistributedDataParallel(model), *data, loss=F.cross_entropy, optimizer=adam)


def relative_tp(mesh: DeviceMesh) -> Trained:
    """Heads cut along tp, each with its part of the bias."""
    model = linear_layers_cut(relative(), mesh)
    model.bias.heads = heads_of(mesh)

    def reduce() -> None:
        reduce_gradients(model.bias, mesh, mean=False)

    return trained(model, *tokens_and_targets(), optimizer=adam, before_optimizer=reduce)


def heads_of(mesh: DeviceMesh) -> slice:
    held = HEADS // mesh.size()
    return slice(mesh.get_local_rank() * held, (mesh.get_local_rank() + 1) * held)


def masked() -> tuple[Tensor, Tensor]:
    """Tokens, and targets of a fifth of them: masked language modelling."""
    tokens, targets = tokens_and_targets()
    hidden = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(2)) > 0.2
    return tokens, targets.masked_fill(hidden, IGNORED)


OUTSIDER_RIGHT_PLANS = (
    RightPlan("one head of keys on two ranks", one_key_head, partial(alone, partial(made, Decoder, key_heads=1))),
    RightPlan("tied embeddings, TP and FSDP2", tied_tp_fsdp, partial(alone, partial(made, Decoder, tied=True))),
    RightPlan("CP in zigzag", zigzag, partial(alone, partial(made, Decoder)), "cp=2"),
    RightPlan(
        "top two experts by all_to_all", top_two, partial(alone, partial(made, TopTwoModel), adapted=False), "ep=2"
    ),
    RightPlan("DDP in bf16 by autocast", autocast, partial(alone, relative), "dp=2"),
    RightPlan("last microbatch smaller", last_microbatch_smaller, partial(alone, relative), "dp=2"),
    RightPlan("LoRA on FSDP2", adapters_fsdp, adapters, "dp=2"),
    RightPlan("sequence-parallel norms by hand", norms_of_parts, partial(alone, partial(made, Decoder))),
    RightPlan("two towers, gathered with gradients", gathered_towers, towers, "dp=2"),
    RightPlan("Ulysses", ulysses, partial(alone, partial(made, Decoder)), "cp=2"),
    RightPlan("LSTM under DDP", lstm_ddp, partial(alone, partial(made, Recurrent)), "dp=2"),
    RightPlan("loss over parts of the vocabulary", vocabulary_loss, partial(alone, partial(made, Decoder)), "tp=2"),
    RightPlan("pool without padding", pooled_ddp, pooled, "dp=2"),
    RightPlan("relative bias cut by heads", relative_tp, partial(alone, relative), "tp=2"),
)
