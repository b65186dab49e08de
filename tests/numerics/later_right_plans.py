"""Plans that compute what the model does: an image model, packed documents, pools, stages in turn, and dropout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import ScheduleInterleaved1F1B
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from tests.numerics.right_plans import RightPlan, adam, plain
from tests.numerics.trained_model import (
    IGNORED,
    LENGTH,
    WIDTH,
    ColumnParallel,
    Copied,
    Gathered,
    RowParallel,
    Trained,
    mean_loss,
    part_of_batch,
    reduce_gradients,
    seeded,
    tensor_parallel,
    tokens_and_targets,
    trained,
)

PATCHES = 7
"""Of an image, before which a class token stands: as many positions as `LENGTH`."""


class ImageModel(nn.Module):
    """Patches [batch, patches, 12] → classes: a class token first, attention by a layer of torch's, then its output."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Linear(12, WIDTH)
        self.token = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.places = nn.Embedding(PATCHES + 1, WIDTH)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 4, 32, 0.0, batch_first=True)
        self.output = nn.Linear(WIDTH, 5)
        self.held = torch.arange(PATCHES + 1)
        """Positions of this rank."""
        self.gather: Callable[[Tensor], Tensor] = lambda x: x

    def forward(self, images: Tensor) -> Tensor:
        x = torch.cat((self.token.expand(len(images), 1, WIDTH), self.patches(images)), 1)
        if len(self.held) <= PATCHES:
            x = x[:, self.held]
        x = x + self.places(self.held)
        return self.output(self.layer(self.gather(x))[:, 0])


def images() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    return torch.randn(8, PATCHES, 12, generator=generator), torch.randint(0, 5, (8,), generator=generator)


def made(model: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Return a model with the same weights in every process."""
    torch.manual_seed(0)
    return model(*arguments, **options)


def image_alone() -> Trained:
    return trained(made(ImageModel), *images(), loss=F.cross_entropy)


def image_by_sequence(mesh: DeviceMesh, shifted: int = 0) -> Trained:
    """Each rank embeds its positions; all ranks compute the rest from the gathered ones."""
    model = made(ImageModel)
    held = torch.arange(PATCHES + 1).chunk(mesh.size())[mesh.get_local_rank()]
    model.held = held
    if shifted:
        model.places.forward = lambda places: F.embedding((places - shifted).clamp(min=0), model.places.weight)
    model.gather = lambda x: Gathered.apply(x, mesh, 1)
    after = {id(one) for module in (model.layer, model.output) for one in module.parameters()}

    def reduce() -> None:
        for parameter in model.parameters():
            if id(parameter) not in after and parameter.grad is not None:
                dist.all_reduce(parameter.grad, group=mesh.get_group())
                parameter.grad /= mesh.size()

    return trained(model, *images(), loss=F.cross_entropy, before_optimizer=reduce)


class Largest(nn.Module):
    """The largest value of each feature over the positions of a sequence, without padding."""

    def __init__(self) -> None:
        super().__init__()
        self.lengths = torch.tensor([LENGTH - row % 5 for row in range(8)])
        self.counts_padding = False

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.arange(LENGTH) >= self.lengths[:, None]
        return (x if self.counts_padding else x.masked_fill(hidden[..., None], float("-inf"))).amax(1)


class Weighted(Largest):
    """The mean over positions by learned weights, without padding."""

    def __init__(self) -> None:
        super().__init__()
        self.weigh = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.arange(LENGTH) >= self.lengths[:, None]
        scores = self.weigh(x).squeeze(-1)
        scores = scores if self.counts_padding else scores.masked_fill(hidden, float("-inf"))
        return (scores.softmax(-1)[..., None] * x).sum(1)


class Sorter(nn.Module):
    """Token ids → classes, by a pool over positions."""

    def __init__(self, pool: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.embedding, self.hidden = nn.Embedding(32, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.pool, self.output = pool(), nn.Linear(WIDTH, 6)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(self.pool(self.hidden(self.embedding(tokens))))


def classes() -> tuple[Tensor, Tensor]:
    tokens, targets = tokens_and_targets()
    return tokens, targets[:, 0] % 6


def sorted_alone(pool: Callable[[], nn.Module]) -> Trained:
    return trained(made(Sorter, pool), *classes(), loss=F.cross_entropy)


def sorted_ddp(mesh: DeviceMesh, pool: Callable[[], nn.Module], *, counts_padding: bool = False) -> Trained:
    model = made(Sorter, pool)
    (model.pool.lengths,) = part_of_batch(mesh, "dp", model.pool.lengths)
    model.pool.counts_padding = counts_padding
    return trained(DistributedDataParallel(model), *part_of_batch(mesh, "dp", *classes()), loss=F.cross_entropy)


DOCUMENTS = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1])
"""To which document each position of a packed sequence belongs."""


def mask_of(queries: Tensor, keys: Tensor, documents: Tensor, key_documents: Tensor) -> Tensor:
    """Causal attention within documents, as a bias."""
    seen = (queries[:, None] >= keys) & (documents[:, None] == key_documents)
    return torch.zeros(seen.shape).masked_fill(~seen, float("-inf"))


def packed() -> Trained:
    model: Any = seeded()
    places = torch.arange(LENGTH)
    for layer in model.layers:
        layer.attention.mask = mask_of(places, places, DOCUMENTS, DOCUMENTS)
    return trained(model, *tokens_and_targets(), optimizer=adam)


def packed_by_sequence(mesh: DeviceMesh, *, ends_at_chunks: bool = False) -> Trained:
    model: Any = seeded()
    places = torch.arange(LENGTH)
    held = places.chunk(mesh.size())[mesh.get_local_rank()]
    documents = DOCUMENTS + 2 * (places // len(held)) if ends_at_chunks else DOCUMENTS
    model.start = int(held[0])
    for layer in model.layers:
        layer.attention.mask = mask_of(held, places, documents[held], documents)
        layer.attention.gather = lambda x: Gathered.apply(x, mesh, 2)
    data = part_of_batch(mesh, "cp", *tokens_and_targets(), dim=1)
    return trained(model, *data, optimizer=adam, before_optimizer=partial(reduce_gradients, model, mesh))


class FusedGate(nn.Module):
    """SwiGLU with gate and up in one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up, self.down = nn.Linear(WIDTH, 64), nn.Linear(32, WIDTH)
        self.drop = nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(self.drop(F.silu(gate) * up))


def gated(dropout: float = 0.0) -> Any:
    model: Any = seeded()
    torch.manual_seed(1)
    for layer in model.layers:
        layer.feed_forward = FusedGate()
        layer.feed_forward.drop.p = dropout
    return model


def gated_alone(dropout: float = 0.0) -> Trained:
    return trained(gated(dropout), *tokens_and_targets())


def gated_tp(mesh: DeviceMesh, groups: int = 2, *, dropout: float = 0.0, own_seeds: bool = True) -> Trained:
    model = gated(dropout)
    for layer in model.layers:
        network = layer.feed_forward
        network.gate_up = ColumnParallel(network.gate_up, mesh, groups)
        network.down = RowParallel(network.down, mesh)
    torch.manual_seed(mesh.get_local_rank() if own_seeds else 0)
    return trained(model, *tokens_and_targets())


def fsdp_cp(mesh: DeviceMesh) -> Trained:
    """Replicas along dp, shards along cp, each with a part of the sequence."""
    model: Any = seeded()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh["dp", "cp"])
        layer.attention.gather = lambda x: Gathered.apply(x, mesh["cp"], 2)
    fully_shard(model, mesh=mesh["dp", "cp"])
    places = torch.arange(LENGTH)
    held = places.chunk(mesh["cp"].size())[mesh["cp"].get_local_rank()]
    model.start = int(held[0])
    for layer in model.layers:
        layer.attention.mask = torch.zeros(len(held), LENGTH).masked_fill(held[:, None] < places, float("-inf"))
    data = part_of_batch(mesh, "dp", *part_of_batch(mesh, "cp", *tokens_and_targets(), dim=1))
    return trained(model, *data, optimizer=adam)


def zero_one(mesh: DeviceMesh) -> Trained:
    model = DistributedDataParallel(seeded())
    made_of = partial(ZeroRedundancyOptimizer, optimizer_class=torch.optim.AdamW, lr=1e-2)
    return trained(model, *part_of_batch(mesh, "dp", *tokens_and_targets()), optimizer=made_of)  # type: ignore[arg-type]


class Piece(nn.Module):
    """A stage of four: embeddings, a layer, a layer, or the head, under their names in the whole model."""

    def __init__(self, model: Any, stage: int) -> None:
        super().__init__()
        for name in (("embedding", "positions"), (), (), ("norm", "output"))[stage]:
            self.add_module(name, getattr(model, name))
        self.layers = nn.ModuleDict({str(stage - 1): model.layers[stage - 1]} if stage in (1, 2) else {})
        self.stage = stage

    def forward(self, x: Tensor) -> Tensor:
        if self.stage == 0:
            return self.embedding(x) + self.positions(torch.arange(x.shape[1]))
        for layer in self.layers.values():
            x = layer(x)
        return self.output(self.norm(x)) if self.stage == 3 else x


class Pieces(nn.Module):
    """The stages of a rank, as one model with the names of the whole."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        super().__init__()
        for piece in pieces:
            for name in ("embedding", "positions", "norm", "output"):
                if hasattr(piece, name):
                    self.add_module(name, getattr(piece, name))
        self.layers = nn.ModuleDict({name: layer for piece in pieces for name, layer in piece.layers.items()})


def stages_in_turn(mesh: DeviceMesh) -> Trained:
    """Each rank holds two stages of four that are not neighbors."""
    whole, rank = seeded(), mesh.get_local_rank()
    pieces = [Piece(whole, stage) for stage in (rank, rank + 2)]
    stages = [PipelineStage(piece, piece.stage, 4, torch.device("cpu"), group=mesh.get_group()) for piece in pieces]
    schedule = ScheduleInterleaved1F1B(stages, 2, loss_fn=mean_loss)  # type: ignore[arg-type]
    model = Pieces(pieces)
    optimizer = adam(model.parameters())
    tokens, targets = tokens_and_targets()

    def step() -> None:
        if rank == 0:
            schedule.step(tokens)
        else:
            schedule.step(target=targets)
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def padded(**options: Any) -> Trained:
    return trained(seeded(**options), *tokens_and_targets(padded=True), optimizer=adam)


def accumulated_by_tokens(mesh: DeviceMesh, *, weighs: bool = True) -> Trained:
    """Microbatches with unequal numbers of targets, each divided by those of all."""
    model = DistributedDataParallel(seeded())
    optimizer = adam(model.parameters())
    tokens, targets = part_of_batch(mesh, "dp", *tokens_and_targets(padded=True))

    def step() -> None:
        count = (targets != IGNORED).sum()
        dist.all_reduce(count, group=mesh.get_group())
        for rows in (slice(0, 2), slice(2, None)):
            with model.no_sync() if rows.start == 0 else torch.enable_grad():
                logits = model(tokens[rows]).flatten(0, 1)
                loss = F.cross_entropy(logits, targets[rows].flatten(), ignore_index=IGNORED, reduction="sum")
                (loss * mesh.size() / count).backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def selective(mesh: DeviceMesh) -> Trained:
    """Recomputed but for products of matrices, with dropout by torch's own generator."""
    model: Any = seeded(dropout=0.2)
    kept = partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default, torch.ops.aten.addmm.default])
    for layer in model.layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, context_fn=kept)
    data = part_of_batch(mesh, "dp", *tokens_and_targets())
    return trained(model, *data, optimizer=adam, before_optimizer=partial(reduce_gradients, model, mesh))


def in_backward(mesh: DeviceMesh) -> Trained:
    """FSDP2 with an optimizer for each parameter, which steps as soon as its gradient is there."""
    model: Any = seeded()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for parameter in model.parameters():
        own = adam([parameter])

        def step_now(_parameter: Any, own: Any = own) -> None:
            own.step()
            own.zero_grad()

        parameter.register_post_accumulate_grad_hook(step_now)
    tokens, targets = part_of_batch(mesh, "dp", *tokens_and_targets())
    return model, lambda: mean_loss(model(tokens), targets).backward()


class OwnGenerator(nn.Module):
    """Dropout by a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(5)

    def forward(self, x: Tensor) -> Tensor:
        return x * (torch.rand(x.shape, generator=self.generator) > 0.25) / 0.75


def own_generator() -> Any:
    model: Any = seeded()
    model.layers[1].drop = OwnGenerator()
    return model


def copied_twice(mesh: DeviceMesh, *, twice: bool = False) -> Trained:
    model: Any = tensor_parallel(seeded(), mesh)
    if twice:
        group = mesh.get_group()
        model.layers[1].feed_forward.register_forward_pre_hook(lambda _m, args: Copied.apply(args[0], group))
    return trained(model, *tokens_and_targets())


LATER_RIGHT_PLANS = (
    RightPlan("image by sequence", image_by_sequence, image_alone, "sp=2"),
    RightPlan("largest without padding", partial(sorted_ddp, pool=Largest), partial(sorted_alone, Largest), "dp=2"),
    RightPlan("weighted without padding", partial(sorted_ddp, pool=Weighted), partial(sorted_alone, Weighted), "dp=2"),
    RightPlan("packed documents", packed_by_sequence, packed, "cp=2"),
    RightPlan("gate and up cut apart", gated_tp, gated_alone, "tp=2"),
    RightPlan("own draws of own features", partial(gated_tp, dropout=0.2), partial(gated_alone, 0.2), "tp=2"),
    RightPlan("FSDP2 and CP", fsdp_cp, plain, "dp=2,cp=2"),
    RightPlan("ZeroRedundancyOptimizer", zero_one, plain, "dp=2"),
    RightPlan("stages in turn", stages_in_turn, plain, "pp=2"),
    RightPlan("accumulated by tokens", accumulated_by_tokens, padded, "dp=2"),
    RightPlan("recomputed in part, with dropout", selective, partial(plain, dropout=0.2), "dp=2"),
    RightPlan("optimizer in backward", in_backward, plain, "dp=2"),
)
