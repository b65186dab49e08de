"""Plans with one fault each, written by somebody who had not read the rules."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from tests.numerics.further_models import encoder
from tests.numerics.outsider_models import Decoder, TopTwoModel, Towers
from tests.numerics.outsider_plans import (
    adapters,
    alone,
    linear_layers_cut,
    made,
    one_key_head,
    relative,
    sloped,
    top_two,
    trained_adapters,
    with_adapters,
    zigzag,
)
from tests.numerics.outsider_right_plans import (
    heads_of,
    images_and_texts,
    masked,
    pooled,
    pooled_ddp,
    towers,
    trained_towers,
    ulysses,
    vocabulary_loss,
)
from tests.numerics.trained_model import (
    LENGTH,
    ColumnParallel,
    Gathered,
    Trained,
    part_of_batch,
    reduce_gradients,
    seeded,
    tokens_and_targets,
    trained,
)
from tests.numerics.wrong_plan import WrongPlan


def slopes_of_first_heads(mesh: DeviceMesh) -> Trained:
    model = linear_layers_cut(sloped(), mesh)
    model.bias.heads = slice(0, heads_of(mesh).stop - heads_of(mesh).start)
    return trained(model, *tokens_and_targets())


def by_sequence(mesh: DeviceMesh, model: Any, *, window_of: str = "whole") -> Trained:
    """Keys are gathered over cp; each rank has its positions."""
    length, rank = LENGTH // mesh.size(), mesh.get_local_rank()
    mine = torch.arange(rank * length, (rank + 1) * length)
    model.places = mine
    for layer in model.layers:
        layer.attention.query_places = mine if window_of == "whole" else mine - mine[0]
        layer.attention.gather = lambda x: Gathered.apply(x, mesh, 2)
    data = part_of_batch(mesh, "cp", *tokens_and_targets(), dim=1)
    return trained(model, *data, before_optimizer=partial(reduce_gradients, model, mesh))


def bias_from_zero(mesh: DeviceMesh) -> Trained:
    return by_sequence(mesh, relative())


def window_from_zero(mesh: DeviceMesh) -> Trained:
    return by_sequence(mesh, made(Decoder, window=3), window_of="chunk")


def zigzag_tokens_alone(mesh: DeviceMesh) -> Trained:
    """Tokens are cut in zigzag, positions are those of a plain cut."""

    def change(model: Any, mesh: DeviceMesh) -> None:
        model.places = torch.arange(LENGTH).chunk(mesh.size())[mesh.get_local_rank()]

    return zigzag(mesh, change)


def gathered_without_gradient(mesh: DeviceMesh) -> Trained:
    """all_gather does not differentiate: own features are put in their place, and the rest has no gradient."""
    model = made(Towers)

    def gather(x: Tensor) -> Tensor:
        parts = [torch.empty_like(x) for _ in range(mesh.size())]
        dist.all_gather(parts, x.detach().contiguous(), group=mesh.get_group())
        parts[mesh.get_local_rank()] = x
        return torch.cat(parts)

    data = part_of_batch(mesh, "dp", *images_and_texts())
    return trained_towers(model, *data, gather=gather, reduce=partial(reduce_gradients, model, mesh))


def rows_not_sorted_back(model: Any) -> None:
    model.mixture.routed.sorts_back = False


def means_of_masked(mesh: DeviceMesh) -> Trained:
    """Masked language modelling: each rank's mean is of as many tokens as are masked there."""
    model = encoder()
    (model.lengths,) = part_of_batch(mesh, "dp", model.lengths)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return trained(model, *part_of_batch(mesh, "dp", *masked()))


def masked_alone() -> Trained:
    return trained(encoder(), *masked())


def adapter_of_each_rank(mesh: DeviceMesh) -> Trained:
    """Adapters are made after each rank has been given a seed for its data."""
    model = with_adapters()
    torch.manual_seed(dist.get_rank())
    nn.init.normal_(model.layers[0].attention.wv.a)
    data = part_of_batch(mesh, "dp", *tokens_and_targets())
    return trained_adapters(model, *data, before_optimizer=partial(reduce_gradients, model, mesh))


def replicas_counted_twice(mesh: DeviceMesh) -> Trained:
    """The norm sums squares over tp, including those of embeddings and norms, which all ranks hold."""
    model = linear_layers_cut(made(Decoder), mesh)

    def clip() -> None:
        gradients = [one.grad for one in model.parameters() if one.grad is not None]
        square = torch.stack([one.square().sum() for one in gradients]).sum()
        dist.all_reduce(square, group=mesh.get_group())
        for one in gradients:
            one *= (0.1 / square.sqrt()).clamp(max=1.0)

    return trained(model, *tokens_and_targets(), before_optimizer=clip)


def clipped() -> Trained:
    model = made(Decoder)
    return trained(
        model, *tokens_and_targets(), before_optimizer=lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    )


class Trusted(torch.optim.Optimizer):
    """Each parameter moves by a part of its norm, as in LARS and LAMB."""

    def __init__(self, parameters: Any, of_shard: bool = False) -> None:
        super().__init__(parameters, {})
        self.of_shard = of_shard

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                gradient = parameter.grad
                if self.of_shard and isinstance(parameter, DTensor):
                    parameter, gradient = parameter.to_local(), gradient.to_local()
                parameter -= 0.1 * gradient * (parameter.norm() / gradient.norm())


def trusted() -> Trained:
    return trained(relative(), *tokens_and_targets(), optimizer=Trusted)


def norms_of_shards(mesh: DeviceMesh) -> Trained:
    model = relative()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    data = part_of_batch(mesh, "dp", *tokens_and_targets())
    return trained(model, *data, optimizer=partial(Trusted, of_shard=True))


def scheduled(mesh: DeviceMesh | None = None) -> Trained:
    """A schedule is stepped once for each rank, as if it were prepared for split batches."""
    model = relative()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    tokens, targets = tokens_and_targets() if mesh is None else part_of_batch(mesh, "dp", *tokens_and_targets())

    def step() -> None:
        nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).backward()
        if mesh is not None:
            reduce_gradients(model, mesh)
        optimizer.step()
        for _ in range(1 if mesh is None else mesh.size()):
            schedule.step()
        optimizer.zero_grad()

    return model, step


def drawn_again(mesh: DeviceMesh) -> Trained:
    """Recomputation that does not restore the generator: dropout drops others in backward."""
    model: Any = seeded(dropout=0.2)
    layer = model.layers[1]
    layer.forward = partial(
        checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False, determinism_check="none"
    )
    torch.manual_seed(dist.get_rank())
    data = part_of_batch(mesh, "dp", *tokens_and_targets())
    return trained(model, *data, before_optimizer=partial(reduce_gradients, model, mesh))


def summed_by_fsdp(mesh: DeviceMesh) -> Trained:
    model = relative()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for module in (*model.layers, model):
        module.set_force_sum_reduction_for_comms(True)  # gloo cannot divide
        module.set_gradient_divide_factor(1.0)
    return trained(model, *part_of_batch(mesh, "dp", *tokens_and_targets()))


def own_part_zeroed(mesh: DeviceMesh) -> Trained:
    """ZeRO 1 by hand: each rank's optimizer holds half of the parameters, and zeroes the gradients of these."""
    model = relative()
    held = list(model.parameters())
    optimizer = torch.optim.SGD(held[mesh.get_local_rank() :: mesh.size()], lr=0.1)
    tokens, targets = part_of_batch(mesh, "dp", *tokens_and_targets())

    def step() -> None:
        nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).backward()
        reduce_gradients(model, mesh)
        optimizer.step()
        for at, parameter in enumerate(held):
            dist.broadcast(parameter.detach(), at % mesh.size())
        optimizer.zero_grad()

    return model, step


def column_of_joined_inputs(mesh: DeviceMesh) -> Trained:
    """Keys have one head, and queries are cut as if heads were counted from the last rank."""
    model = linear_layers_cut(made(Decoder), mesh)
    whole = made(Decoder)
    for layer, of in zip(model.layers, whole.layers, strict=True):
        cut = ColumnParallel(of.attention.wq, mesh)
        other = mesh.size() - 1 - mesh.get_local_rank()
        cut.weight = nn.Parameter(of.attention.wq.weight.detach().chunk(mesh.size())[other].clone())
        cut.bias = nn.Parameter(of.attention.wq.bias.detach().chunk(mesh.size())[other].clone())
        layer.attention.wq = cut
    return trained(model, *tokens_and_targets())


ATTENTION = ("layers.0.attention", "layers.0.attention.wo")
plain = partial(alone, partial(made, Decoder), adapted=False)
OUTSIDER_WRONG_PLANS = (
    WrongPlan(
        "slopes of the first heads",
        "shift",
        slopes_of_first_heads,
        ("bias",),
        "forward",
        "tp=2",
        partial(alone, sloped, adapted=False),
    ),
    WrongPlan(
        "relative bias from zero",
        "shift",
        bias_from_zero,
        ("bias", "bias.table"),
        "forward",
        "cp=2",
        partial(alone, relative, adapted=False),
    ),
    WrongPlan(
        "window from zero",
        "mask",
        window_from_zero,
        ATTENTION,
        "forward",
        "cp=2",
        partial(alone, partial(made, Decoder, window=3), adapted=False),
    ),
    WrongPlan(
        "tokens alone in zigzag",
        "shift",
        zigzag_tokens_alone,
        ("embedding", "positions", "layers.0", "layers.0.before", *ATTENTION),
        "forward",
        "cp=2",
        partial(alone, partial(made, Decoder)),
    ),
    WrongPlan(
        "gathered without gradient",
        "factor",
        gathered_without_gradient,
        ("image", "text", "table"),
        "gradient",
        "dp=2",
        towers,
    ),
    WrongPlan(
        "rows of experts not sorted back",
        "permutation",
        partial(top_two, change=rows_not_sorted_back),
        ("mixture", "mixture.routed", "mixture.unsorted"),
        "forward",
        "ep=2",
        partial(alone, partial(made, TopTwoModel), adapted=False),
    ),
    WrongPlan("means of masked tokens", "unequal batches", means_of_masked, ("",), "backward", "dp=2", masked_alone),
    WrongPlan(
        "adapter of each rank",
        "stale parameters",
        adapter_of_each_rank,
        ("layers.0.attention.wv",),
        "forward",
        "dp=2",
        adapters,
    ),
    WrongPlan("replicas counted twice", "local norm", replicas_counted_twice, ("",), "gradient", "tp=2", clipped),
    WrongPlan(
        "trusted by norms of shards", "local norm", norms_of_shards, ("", "output"), "optimizer", "dp=2", trusted
    ),
    WrongPlan("scheduled for each rank", "factor", scheduled, ("",), "optimizer", "dp=2", scheduled),
    WrongPlan(
        "drawn again in backward",
        "dropout",
        drawn_again,
        ("layers.1", "layers.1.drop", "layers.1.attention", "layers.1.attention.wo"),
        "backward",
        "dp=2",
        lambda: trained(seeded(dropout=0.2), *tokens_and_targets()),
    ),
    WrongPlan(
        "exponentials not summed",
        "missing reduction",
        partial(vocabulary_loss, reduces=False),
        ("", "output"),
        "backward",
        "tp=2",
        partial(alone, partial(made, Decoder)),
    ),
    WrongPlan(
        "key head of two ranks not reduced",
        "missing reduction",
        partial(one_key_head, reduces=False),
        ("layers.1.attention.wk", "layers.1.attention.wv", "layers.1.attention"),
        "gradient",
        reference=partial(alone, partial(made, Decoder, key_heads=1)),
    ),
    WrongPlan(
        "FSDP2 that sums", "factor", summed_by_fsdp, ("",), "gradient", "dp=2", partial(alone, relative, adapted=False)
    ),
    WrongPlan(
        "heads come back backwards",
        "permutation",
        partial(ulysses, backwards=True),
        ATTENTION,
        "forward",
        "cp=2",
        partial(alone, partial(made, Decoder)),
    ),
    WrongPlan(
        "own part zeroed",
        "stale gradients",
        own_part_zeroed,
        ("",),
        "gradient",
        "dp=2",
        partial(alone, relative, adapted=False),
    ),
    WrongPlan(
        "pool over padding", "padding", partial(pooled_ddp, counts_padding=True), ("pool",), "forward", "dp=2", pooled
    ),
    WrongPlan(
        "queries of the other rank",
        "permutation",
        column_of_joined_inputs,
        (*ATTENTION, "layers.0.attention.wq"),
        "forward",
        "tp=2",
        plain,
    ),
)
