"""Further plans with one fault each: for a small Llama, convolutions, experts and embeddings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.parallel import DistributedDataParallel

from tests.numerics.further_models import Convolutions, encoder, images_and_classes, llama, token_mixture
from tests.numerics.further_right_plans import (
    TP_PLAN,
    TiedStage,
    by_schedule,
    encoded,
    images,
    llama_adam,
    vocabulary,
)
from tests.numerics.right_plans import Stage, adam, plain
from tests.numerics.trained_model import (
    Copied,
    Gathered,
    Trained,
    part_of_batch,
    seeded,
    tensor_parallel,
    tokens_and_targets,
    trained,
)
from tests.numerics.wrong_llama_plans import (
    bias_of_each_rank,
    by_rows,
    clipped_before_reduction,
    heads_of_others,
    hsdp_without_replicas,
    keys_in_turn,
    llama_clipped,
    llama_sgd,
    loss_still_scaled,
    never_synchronized,
    norms_of_sequence_parts,
    not_zeroed,
    own_half_updated,
    rate_times_ranks,
    rotary_of_chunk,
    same_batch,
    summed_over_cp,
)
from tests.numerics.wrong_plan import GITHUB, WrongPlan, sgd

# others


def norms_of_own_batch(mesh: DeviceMesh) -> Trained:
    torch.manual_seed(0)
    model = DistributedDataParallel(Convolutions("batch"))
    return trained(model, *part_of_batch(mesh, "dp", *images_and_classes()), loss=F.cross_entropy, optimizer=adam)


def channels_in_turn(mesh: DeviceMesh) -> Trained:
    torch.manual_seed(0)
    model: Any = Convolutions()
    model.first = OutputChannels(model.first, mesh)
    return trained(model, *images_and_classes(), loss=F.cross_entropy, optimizer=adam)


class OutputChannels(nn.Module):
    """A convolution whose output channels are cut, and joined in turn."""

    def __init__(self, whole: nn.Conv2d, mesh: DeviceMesh) -> None:
        super().__init__()
        self.mesh, rank = mesh, mesh.get_local_rank()
        self.weight = nn.Parameter(whole.weight.detach().chunk(mesh.size())[rank].clone())
        self.bias = nn.Parameter(whole.bias.detach().chunk(mesh.size())[rank].clone())  # type: ignore[union-attr]

    def forward(self, images: Tensor) -> Tensor:
        out = F.conv2d(Copied.apply(images, self.mesh.get_group()), self.weight, self.bias, padding=1)
        parts = Gathered.apply(out, self.mesh, 1).chunk(self.mesh.size(), 1)
        return torch.stack(parts, 2).flatten(1, 2)


def mask_of_first_rows(mesh: DeviceMesh) -> Trained:
    """Return a plan in which each rank hides the padding of the first rows of the whole batch."""
    model = DistributedDataParallel(encoder())
    return trained(model, *part_of_batch(mesh, "dp", *tokens_and_targets()), optimizer=adam)


def padding_attended(mesh: DeviceMesh) -> Trained:
    model = encoder()
    model.hides_padding = False
    return trained(DistributedDataParallel(model), *part_of_batch(mesh, "dp", *tokens_and_targets()), optimizer=adam)


def experts_with(
    mesh: DeviceMesh, change: Callable[[Any], Any], *, divides: bool = True, reduces: bool = True
) -> Trained:
    """Experts of tokens, with a fault."""
    model: Any = token_mixture()
    model.mixture.mesh = mesh
    model.mixture.experts = nn.ModuleList([model.mixture.experts[mesh.get_local_rank()]])
    change(model)
    held = {id(parameter) for parameter in model.mixture.experts.parameters()}

    def reduce() -> None:
        for name, parameter in model.named_parameters():
            if id(parameter) in held:
                parameter.grad /= mesh.size() if divides else 1
            elif reduces or not name.startswith("norm"):
                dist.all_reduce(parameter.grad, group=mesh.get_group())
                parameter.grad /= mesh.size()

    return trained(model, *part_of_batch(mesh, "ep", *tokens_and_targets()), before_optimizer=reduce, optimizer=sgd_of)


def sgd_of(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def experts_sgd() -> Trained:
    return trained(token_mixture(), *tokens_and_targets())


def exchanged_experts(model: Any) -> None:
    model.mixture.places = (1, 0)


def tied_apart(mesh: DeviceMesh) -> Trained:
    return by_schedule(mesh, partial(TiedStage, seeded(tied=True)), ScheduleGPipe)


def microbatches_summed(mesh: DeviceMesh) -> Trained:
    return by_schedule(mesh, partial(Stage, seeded()), Schedule1F1B, scale_grads=False)


def vocabulary_from_zero(mesh: DeviceMesh) -> Trained:
    def change(model: Any) -> None:
        model.embedding.offset = 0

    return vocabulary(mesh, change)


def vocabulary_in_parts(mesh: DeviceMesh) -> Trained:
    def change(model: Any) -> None:
        model.embedding.reduces = False

    return vocabulary(mesh, change)


def embedding_of_rank(mesh: DeviceMesh) -> Trained:
    """Return an embedding that each rank has made for itself."""
    model = llama()
    torch.manual_seed(dist.get_rank())
    nn.init.normal_(model.embedding.weight)
    return by_rows(mesh, model)


def dropped_by_rank(mesh: DeviceMesh) -> Trained:
    model = tensor_parallel(seeded(dropout=0.1), mesh["tp"])
    torch.manual_seed(dist.get_rank())
    return trained(model, *tokens_and_targets(), optimizer=adam)


def averaged_over_all_ranks(mesh: DeviceMesh) -> Trained:
    """Return a DTensor plan beside a hook that averages gradients over all ranks, tp among them."""
    model: Any = llama()
    for layer in model.layers:
        parallelize_module(layer, mesh["tp"], TP_PLAN)

    def reduce() -> None:
        for parameter in model.parameters():
            gradient = parameter.grad
            local = gradient.to_local() if hasattr(gradient, "to_local") else gradient
            dist.all_reduce(local, group=mesh["dp"].get_group())
            local /= dist.get_world_size()

    return trained(model, *part_of_batch(mesh, "dp", *tokens_and_targets()), before_optimizer=reduce)


LAYER_1 = "layers.1.attention"
FURTHER_WRONG_PLANS = (
    WrongPlan("keys in turn", "permutation", keys_in_turn, (f"{LAYER_1}.wo", LAYER_1), "forward", "dp=2", llama_sgd),
    WrongPlan(
        "values of the other rank",
        "permutation",
        heads_of_others,
        ("layers.0.attention.wo", "layers.0.attention", "layers.0.attention.wv"),
        "forward",
        reference=llama_sgd,
    ),
    WrongPlan(
        "rotary of a chunk",
        "shift",
        rotary_of_chunk,
        ("rotary",),
        "forward",
        "cp=2",
        llama_adam,
        f"{GITHUB}/thunlp/Seq1F1B/issues/6",
    ),
    WrongPlan("summed over cp", "factor", summed_over_cp, ("",), "gradient", "cp=2", llama_sgd),
    WrongPlan(
        "norms of parts of a sequence",
        "missing reduction",
        norms_of_sequence_parts,
        ("layers.1.network_norm", "layers.0.network_norm"),
        "gradient",
        "tp=2",
        llama_sgd,
    ),
    WrongPlan(
        "replicas never meet",
        "missing reduction",
        hsdp_without_replicas,
        ("",),
        "gradient",
        "replicate=2,shard=2",
        llama_sgd,
    ),
    WrongPlan("same batch", "shift", same_batch, ("embedding",), "forward", "dp=2", llama_sgd),
    WrongPlan("never synchronized", "missing reduction", never_synchronized, ("",), "gradient", "dp=2", llama_sgd),
    WrongPlan("clipped before", "local norm", clipped_before_reduction, ("",), "gradient", "dp=2", llama_clipped),
    WrongPlan("rate times ranks", "factor", rate_times_ranks, ("",), "optimizer", "dp=2", llama_sgd),
    WrongPlan("own half updated", "stale parameters", own_half_updated, ("",), "optimizer", "dp=2", llama_sgd),
    WrongPlan("not zeroed", "stale gradients", not_zeroed, ("",), "gradient", "dp=2", llama_sgd),
    WrongPlan("loss still scaled", "factor", loss_still_scaled, ("",), "gradient", "dp=2", llama_sgd),
    WrongPlan(
        "bias of each rank",
        "factor",
        bias_of_each_rank,
        ("layers.0.feed_forward.down", "layers.0.feed_forward"),
        "forward",
        reference=sgd,
        source=f"{GITHUB}/huggingface/text-generation-inference/issues/1036",
    ),
    WrongPlan("channels in turn", "permutation", channels_in_turn, ("first",), "forward", "tp=2", images),
    WrongPlan(
        "mask of first rows", "mask", mask_of_first_rows, ("layers.0", "layers.0.self_attn"), "forward", "dp=2", encoded
    ),
    WrongPlan(
        "padding attended", "mask", padding_attended, ("layers.0", "layers.0.self_attn"), "forward", "dp=2", encoded
    ),
    WrongPlan(
        "experts exchanged",
        "permutation",
        partial(experts_with, change=exchanged_experts),
        ("mixture", "mixture.experts.0", "mixture.experts.1"),
        "forward",
        "ep=2",
        experts_sgd,
    ),
    WrongPlan(
        "experts summed",
        "factor",
        partial(experts_with, change=id, divides=False),
        ("mixture.experts.1", "mixture.experts.0"),
        "gradient",
        "ep=2",
        experts_sgd,
    ),
    WrongPlan(
        "norm of experts not reduced",
        "missing reduction",
        partial(experts_with, change=id, reduces=False),
        ("norm",),
        "gradient",
        "ep=2",
        experts_sgd,
    ),
    WrongPlan(
        "tied apart",
        "missing reduction",
        tied_apart,
        ("embedding", "output"),
        "gradient",
        "pp=2",
        partial(plain, tied=True),
        f"{GITHUB}/uw-syfi/piper/issues/13",
    ),
    WrongPlan("microbatches summed", "factor", microbatches_summed, ("",), "gradient", "pp=2", sgd),
    WrongPlan("vocabulary from zero", "shift", vocabulary_from_zero, ("embedding",), "forward", reference=plain),
    WrongPlan(
        "vocabulary in parts", "missing reduction", vocabulary_in_parts, ("embedding",), "forward", reference=plain
    ),
    WrongPlan(
        "embedding of each rank", "stale parameters", embedding_of_rank, ("embedding",), "forward", "dp=2", llama_sgd
    ),
    WrongPlan(
        "dropped by each rank",
        "dropout",
        dropped_by_rank,
        ("layers.0.drop",),
        "forward",
        "tp=2",
        partial(plain, dropout=0.1),
    ),
    WrongPlan("averaged over all ranks", "factor", averaged_over_all_ranks, ("",), "gradient", reference=llama_sgd),
)
