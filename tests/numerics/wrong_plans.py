"""Plans with one fault each, three or so of each kind that has a reason, with the places that may be named."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
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

from dsexplore._internal.numerics.numeric_records import Phase
from dsexplore._internal.numerics.reasons.match import Reason
from tests.numerics.right_plans import loss_of
from tests.numerics.trained_model import (
    IGNORED,
    LENGTH,
    WIDTH,
    ColumnParallel,
    Gathered,
    Trained,
    blocks,
    part_of_batch,
    reduce_gradients,
    seeded,
    tensor_parallel,
    tokens_and_targets,
    trained,
)


def sgd(**options: Any) -> Trained:
    """Return the reference of most plans."""
    return trained(seeded(**options), *tokens_and_targets())


@dataclass(frozen=True)
class WrongPlan:
    """A plan with a fault."""

    name: str
    reason: Reason
    parallel: Callable[[DeviceMesh], Trained]
    places: tuple[str, ...]
    """Modules of which each may be named as the first."""
    phase: Phase
    mesh: str = "dp=2,tp=2"
    reference: Callable[[], Trained] = sgd
    source: str = ""
    """Address of a public report of such a fault; empty for none."""


GITHUB = "https://github.com"


def data_parallel(mesh: DeviceMesh, change: Callable[[Any], Any] = lambda model: None, **options: Any) -> Trained:
    """Return a model that is trained on part of the batch, with gradients averaged by hand."""
    model = seeded()
    change(model)
    data = part_of_batch(mesh, "dp", *tokens_and_targets())
    return trained(model, *data, **{"before_optimizer": partial(reduce_gradients, model, mesh["dp"]), **options})


def megatron_with(mesh: DeviceMesh, change: Callable[[Any, DeviceMesh], Any], **options: Any) -> Trained:
    """Return a model that is cut along tp, with a change to it."""
    model = tensor_parallel(seeded(**options), mesh["tp"])
    change(model, mesh)
    data = part_of_batch(mesh, "dp", *tokens_and_targets())
    return trained(model, *data, before_optimizer=partial(reduce_gradients, model, mesh["dp"]))


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


# permutation


class Interleaved(nn.Module):
    """A column-parallel layer that joins its columns in turn."""

    def __init__(self, linear: nn.Linear, mesh: DeviceMesh, backwards: bool) -> None:
        super().__init__()
        self.linear, self.mesh, self.backwards = ColumnParallel(linear, mesh), mesh, backwards

    def forward(self, x: Tensor) -> Tensor:
        joined = Gathered.apply(self.linear(x), self.mesh, 2)
        parts = joined.chunk(self.mesh.size(), -1)
        return torch.cat(parts[::-1], -1) if self.backwards else torch.stack(parts, -1).flatten(-2)


def joined_in_turn(mesh: DeviceMesh, backwards: bool = False) -> Trained:
    model: Any = seeded()
    model.layers[0].feed_forward.up = Interleaved(model.layers[0].feed_forward.up, mesh["tp"], backwards)
    return trained(model, *tokens_and_targets())


def qkv_cut_as_one(model: Any, mesh: DeviceMesh) -> None:
    whole: Any = seeded()
    for layer, of in zip(blocks(model), blocks(whole), strict=True):
        layer.attention.qkv = ColumnParallel(of.attention.qkv, mesh["tp"], groups=1)


def shards_out_of_order(mesh: DeviceMesh) -> Trained:
    model: Any = seeded()
    model.embedding = OutOfOrder(model.embedding, mesh["tp"])
    return trained(model, *tokens_and_targets())


class OutOfOrder(nn.Module):
    """An embedding cut along its columns, that joins them from the last rank on."""

    def __init__(self, embedding: nn.Embedding, mesh: DeviceMesh) -> None:
        super().__init__()
        self.mesh = mesh
        self.weight = nn.Parameter(embedding.weight.detach().chunk(mesh.size(), 1)[mesh.get_local_rank()].clone())

    def forward(self, tokens: Tensor) -> Tensor:
        joined = Gathered.apply(F.embedding(tokens, self.weight), self.mesh, 2)
        return torch.cat(joined.chunk(self.mesh.size(), -1)[::-1], -1)


# shift and mask: context parallel


def context_parallel(
    mesh: DeviceMesh, *, positions: bool = True, mask: str = "whole", tokens_of: int = 0, without: str = " "
) -> Trained:
    """Return a model of which each rank has part of the sequence.

    Args:
        mesh: of one axis.
        positions: whether they count from the start of the sequence.
        mask: ``whole``, or what is wrong with it.
        tokens_of: how many ranks on the rank is whose tokens it has.
        without: beginning of the names of parameters whose gradients are not reduced.
    """
    model: Any = seeded()
    size, rank = mesh.size(), mesh.get_local_rank()
    length = LENGTH // size
    model.start = rank * length if positions else 0
    for layer in blocks(model):
        if mask != "own":
            layer.attention.gather = lambda x: Gathered.apply(x, mesh, 2)
            rows = slice(rank * length, (rank + 1) * length) if mask == "whole" else slice(0, length)
            layer.attention.mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()[rows]
    tokens, targets = tokens_and_targets()
    chunk = (rank + tokens_of) % size
    data = tokens.chunk(size, 1)[chunk], targets.chunk(size, 1)[rank]

    def reduce() -> None:
        kept = {name: p.grad.clone() for name, p in model.named_parameters() if name.startswith(without)}
        reduce_gradients(model, mesh)
        for name, gradient in kept.items():
            model.get_parameter(name).grad = gradient

    return trained(model, *data, before_optimizer=reduce)


class Rotary(nn.Module):
    """Angles of positions, as a module."""

    def __init__(self, start: int) -> None:
        super().__init__()
        self.start = start

    def forward(self, length: int) -> Tensor:
        return torch.outer(torch.arange(self.start, self.start + length).double(), torch.tensor([1.0, 0.1, 0.01]))


class WithRotary(nn.Module):
    """A model that adds sines of positions."""

    def __init__(self, start: int) -> None:
        super().__init__()
        self.embedding, self.rotary, self.output = nn.Embedding(32, 3), Rotary(start), nn.Linear(3, 32)

    def forward(self, tokens: Tensor) -> Tensor:
        angles = self.rotary(tokens.shape[1]).to(self.output.weight.dtype)
        out: Tensor = self.output(self.embedding(tokens) * angles.sin())
        return out


def rotary() -> Trained:
    torch.manual_seed(0)
    return trained(WithRotary(0), *tokens_and_targets())


def rotary_from_zero(mesh: DeviceMesh) -> Trained:
    torch.manual_seed(0)
    model = WithRotary(0)
    data = part_of_batch(mesh, "cp", *tokens_and_targets(), dim=1)
    return trained(model, *data, before_optimizer=partial(reduce_gradients, model, mesh))


def not_causal(model: Any, mesh: DeviceMesh) -> None:
    model.layers[1].attention.is_causal = False


# dropout


def other_seed_on_tp(mesh: DeviceMesh) -> Trained:
    def change(model: Any, mesh: DeviceMesh) -> None:
        torch.manual_seed(100 + dist.get_rank())

    return megatron_with(mesh, change, dropout=0.2)


def other_seed_on_replicas(mesh: DeviceMesh) -> Trained:
    model = seeded(dropout=0.3)
    torch.manual_seed(dist.get_rank())
    return trained(model, *tokens_and_targets())


class OwnDropout(nn.Module):
    """Dropout by hand, drawn with a seed."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed

    def forward(self, x: Tensor) -> Tensor:
        drawn = torch.rand(x.shape, generator=torch.Generator().manual_seed(self.seed))
        return x * (drawn > 0.25) / 0.75


def with_own_dropout(seed: int) -> nn.Module:
    model: Any = seeded()
    model.layers[1].drop = OwnDropout(seed)
    return model


def own_dropout() -> Trained:
    return trained(with_own_dropout(0), *tokens_and_targets())


def own_dropout_by_rank(mesh: DeviceMesh) -> Trained:
    return trained(with_own_dropout(dist.get_rank()), *tokens_and_targets())


# stale parameters


def seeded_by_rank(mesh: DeviceMesh) -> Trained:
    def change(model: Any) -> None:
        torch.manual_seed(dist.get_rank())
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.1)

    return data_parallel(mesh, change)


def head_made_later(mesh: DeviceMesh) -> Trained:
    def change(model: Any) -> None:
        torch.manual_seed(dist.get_rank())
        model.output = nn.Linear(WIDTH, 32, bias=False)

    return data_parallel(mesh, change)


def norm_of_one_rank(model: Any, mesh: DeviceMesh) -> None:
    if dist.get_rank() == 3:
        nn.init.constant_(model.layers[1].norm_1.weight, 1.5)


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


WO = "layers.0.attention.wo"
WRONG_PLANS = (
    WrongPlan("summed gradients", "factor", summed_gradients, ("",), "gradient", reference=sgd),
    WrongPlan("accumulated", "factor", accumulated_without_division, ("",), "gradient", "dp=2", sgd),
    WrongPlan("averaged twice", "factor", averaged_twice, ("",), "gradient", "dp=2", sgd),
    WrongPlan(
        "reduced twice",
        "factor",
        reduced_twice_plan,
        ("layers.1.feed_forward.down",),
        "forward",
        reference=without_bias,
    ),
    WrongPlan(
        "row without reduction",
        "missing reduction",
        partial(megatron_with, change=row_without_reduction),
        (WO, "layers.0.attention"),
        "forward",
        reference=zero_bias_of_wo,
    ),
    WrongPlan("output not reduced", "missing reduction", output_not_reduced, ("output",), "gradient", reference=sgd),
    WrongPlan(
        "input gradient not reduced",
        "missing reduction",
        partial(megatron_with, change=input_gradient_not_reduced),
        ("layers.1.norm_2",),
        "backward",
        reference=sgd,
    ),
    WrongPlan(
        "final norm not reduced",
        "missing reduction",
        partial(context_parallel, without="norm."),
        ("norm",),
        "gradient",
        "tp=2",
        source=f"{GITHUB}/NVIDIA/Megatron-LM/issues/1446",
    ),
    WrongPlan("nothing reduced", "missing reduction", nothing_reduced, ("",), "gradient", "dp=2", sgd),
    WrongPlan("joined in turn", "permutation", joined_in_turn, ("layers.0.feed_forward.up",), "forward", "tp=2", sgd),
    WrongPlan(
        "joined backwards",
        "permutation",
        partial(joined_in_turn, backwards=True),
        ("layers.0.feed_forward.up",),
        "forward",
        "tp=2",
        sgd,
    ),
    WrongPlan("shards out of order", "permutation", shards_out_of_order, ("embedding",), "forward", "tp=2", sgd),
    WrongPlan(
        "QKV cut as one",
        "permutation",
        partial(megatron_with, change=qkv_cut_as_one),
        (WO, "layers.0.attention", "layers.0.attention.qkv"),
        "forward",
        reference=sgd,
        source=f"{GITHUB}/NVIDIA-NeMo/Automodel/pull/1324",
    ),
    WrongPlan("positions", "shift", partial(context_parallel, positions=False), ("positions",), "forward", "cp=2", sgd),
    WrongPlan("next chunk", "shift", partial(context_parallel, tokens_of=1), ("embedding",), "forward", "cp=2", sgd),
    WrongPlan("rotary", "shift", rotary_from_zero, ("rotary",), "forward", "cp=2", rotary),
    WrongPlan("not causal", "mask", partial(megatron_with, change=not_causal), ("layers.1.attention.wo",), "forward"),
    WrongPlan("own chunk alone", "mask", partial(context_parallel, mask="own"), (WO,), "forward", "cp=2", sgd),
    WrongPlan("mask from zero", "mask", partial(context_parallel, mask="zero"), (WO,), "forward", "cp=2", sgd),
    WrongPlan(
        "seeds on tp", "dropout", other_seed_on_tp, ("layers.0.drop",), "forward", reference=partial(sgd, dropout=0.2)
    ),
    WrongPlan(
        "seeds on replicas",
        "dropout",
        other_seed_on_replicas,
        ("layers.0.drop",),
        "forward",
        "tp=2",
        partial(sgd, dropout=0.3),
    ),
    WrongPlan("own dropout", "dropout", own_dropout_by_rank, ("layers.1.drop",), "forward", "tp=2", own_dropout),
    WrongPlan(
        "seeded by rank",
        "stale parameters",
        seeded_by_rank,
        ("embedding",),
        "forward",
        "dp=2",
        source=f"{GITHUB}/mosaicml/llm-foundry/pull/830",
    ),
    WrongPlan("head made later", "stale parameters", head_made_later, ("output",), "forward", "dp=2", sgd),
    WrongPlan(
        "norm of one rank",
        "stale parameters",
        partial(megatron_with, change=norm_of_one_rank),
        ("layers.1.norm_1",),
        "forward",
        reference=sgd,
    ),
    WrongPlan("three and five", "unequal batches", of_three_and_five, ("",), "backward", "dp=2", sgd),
    WrongPlan(
        "targets",
        "unequal batches",
        of_other_numbers_of_targets,
        ("",),
        "backward",
        "dp=2",
        padded_sgd,
        f"{GITHUB}/huggingface/transformers/pull/34373",
    ),
    WrongPlan(
        "microbatches",
        "unequal batches",
        unequal_microbatches,
        ("",),
        "backward",
        "dp=2",
        sgd,
        f"{GITHUB}/huggingface/transformers/issues/24725",
    ),
    WrongPlan(
        "shards clipped",
        "local norm",
        clipped_by_shards,
        ("",),
        "gradient",
        "dp=2",
        clipped_sgd,
        f"{GITHUB}/areal-project/AReaL/issues/312",
    ),
    WrongPlan("tp parts clipped", "local norm", clipped_by_tp_parts, ("",), "gradient", reference=clipped_sgd),
    WrongPlan("layers clipped", "local norm", clipped_by_layers, ("",), "gradient", "dp=4", clipped_sgd),
    WrongPlan("padding in loss", "padding", padding_in_loss, ("",), "backward", "dp=2", padded_sgd),
    WrongPlan("padding in count", "padding", padding_in_count, ("",), "gradient", "dp=2", padded_sgd),
    WrongPlan("padding of one rank", "padding", padding_of_one_rank, ("",), "backward", "dp=2", padded_sgd),
)
