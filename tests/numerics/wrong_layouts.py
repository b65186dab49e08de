"""Plans with one fault in the parts that ranks hold: rows, positions, masks, draws and initial values."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from tests.numerics.trained_model import (
    LENGTH,
    WIDTH,
    ColumnParallel,
    Gathered,
    Trained,
    blocks,
    part_of_batch,
    reduce_gradients,
    seeded,
    tokens_and_targets,
    trained,
)
from tests.numerics.wrong_plan import data_parallel, megatron_with

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
    """An embedding that is cut along its columns, and joins them from the last rank on."""

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
        mesh: Mesh of one axis.
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
