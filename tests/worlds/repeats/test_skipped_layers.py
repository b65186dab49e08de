"""Steps of a pipeline stage in a script that skip layers record what they record with all of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.worlds.commtrace import commtrace
from dsexplore._internal.worlds.repeats.layer_runs import CannotSkip
from dsexplore._internal.worlds.repeats.skipped_microbatches import skip_repeats
from dsexplore._internal.worlds.simulate import simulate
from tests.cost.same_tables import same

WIDTH, LAYERS, SEQUENCE, STAGES, MICROBATCHES = 8, 6, 4, 4, 6


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        y = self.down(F.gelu(self.up(self.norm(x))))
        return x + (y if scale is None else y * scale)


class Stack(nn.Module):
    """Layers in a container, called one after another."""

    def __init__(self, make: Callable[[], nn.Module] = Layer, *, named: bool = False, keywords: bool = False) -> None:
        super().__init__()
        layers = [make() for _ in range(LAYERS)]
        self.layers = nn.ModuleDict({str(at): one for at, one in enumerate(layers)}) if named else nn.ModuleList(layers)
        self.keywords = keywords

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers.values() if isinstance(self.layers, nn.ModuleDict) else self.layers:
            x = layer(x=x, scale=torch.ones(())) if self.keywords else layer(x)
        return x


Wrap = Callable[[nn.Module, DeviceMesh], nn.Module]


def plain(model: nn.Module, _mesh: DeviceMesh) -> nn.Module:
    return model


def sharded(model: nn.Module, mesh: DeviceMesh, **options: Any) -> nn.Module:
    for layer in model.layers.children():  # type: ignore[union-attr,operator]
        fully_shard(layer, mesh=mesh["dp"], **options)
    return fully_shard(model, mesh=mesh["dp"], **options)


def hybrid(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    for layer in model.layers.children():  # type: ignore[union-attr,operator]
        fully_shard(layer, mesh=mesh["dp", "tp"])
    return fully_shard(model, mesh=mesh["dp", "tp"])


def sliced(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    for layer in model.layers.children():  # type: ignore[union-attr,operator]
        plan: dict[str, Any] = {
            "norm": SequenceParallel(),
            "up": ColwiseParallel(input_layouts=Shard(1)),
            "down": RowwiseParallel(output_layouts=Shard(1)),
        }
        parallelize_module(layer, mesh["tp"], plan)
    return model


def sliced_and_sharded(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return sharded(sliced(model, mesh), mesh)


def checkpointed(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    layers: Any = model.layers
    for number, layer in enumerate(list(layers)):
        layers[number] = checkpoint_wrapper(layer, preserve_rng_state=False)
    return sharded(model, mesh)


class Recomputing(Layer):
    """Checkpoints itself."""

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        return checkpoint(super().forward, x, scale, use_reentrant=False)  # type: ignore[no-any-return]


def traced(
    index: int,
    kind: type[Any],
    make: Callable[[], nn.Module],
    wrap: Wrap,
    *,
    skips: bool,
    microbatches: int = MICROBATCHES,
    steps: int = 1,
) -> tuple[Tables, int]:
    """Return the tables of steps of one stage, and in how many containers layers were skipped."""
    with simulate(mesh=f"pp={STAGES},dp=2,tp=2", rank=index * 4, fake=True) as mesh:
        model = wrap(make(), mesh)
        example = torch.zeros(1, SEQUENCE, WIDTH, requires_grad=index > 0)
        described = example, torch.zeros(1, SEQUENCE, WIDTH, requires_grad=True)
        stage = PipelineStage(model, index, STAGES, torch.device("cpu"), *described, group=mesh.get_group("pp"))
        schedule = kind(stage, microbatches, loss_fn=nn.MSELoss())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batch = torch.zeros(microbatches, SEQUENCE, WIDTH)
        sent, target = () if index else (batch,), {"target": batch} if index == STAGES - 1 else {}
        with commtrace() as trace, skip_repeats(is_script=True) if skips else nullcontext() as skipped:
            for _ in range(steps):
                schedule.step(*sent, **target)
                if wrap is not sliced_and_sharded:  # torch refuses norms of two meshes together
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                trace.step()
    if skipped is None:
        return trace.tables, 0
    return skipped.whole(trace.tables), len(skipped.repeating)


def check(index: int, kind: type[Any], make: Callable[[], nn.Module], wrap: Wrap, **options: Any) -> int:
    """Hold a trace with some layers to that with all; return in how many containers layers were skipped."""
    tables, containers = traced(index, kind, make, wrap, skips=True, **options)
    same(tables, traced(index, kind, make, wrap, skips=False, **options)[0])
    return containers


@pytest.mark.parametrize(
    ("index", "kind", "wrap"),
    [
        (0, ScheduleGPipe, plain),
        (0, ScheduleGPipe, sliced_and_sharded),
        (0, ScheduleGPipe, checkpointed),
        (1, Schedule1F1B, plain),
        (1, Schedule1F1B, hybrid),
        (1, Schedule1F1B, sliced),
        (1, Schedule1F1B, sliced_and_sharded),
        (3, Schedule1F1B, sharded),
        (3, Schedule1F1B, sliced),
        (3, Schedule1F1B, checkpointed),
    ],
)
def test_every_row_is_that_of_all_layers(index: int, kind: type[Any], wrap: Wrap) -> None:
    assert check(index, kind, Stack, wrap) > 0


@pytest.mark.parametrize(
    ("make", "wrap"),
    [
        (partial(Stack, named=True), sharded),
        (partial(Stack, keywords=True), sharded),
        (partial(Stack, Recomputing), sharded),
        (Stack, partial(sharded, reshard_after_forward=False)),
        (Stack, partial(sharded, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32, torch.float32))),
    ],
)
def test_ways_to_hold_and_to_call_layers(make: Callable[[], nn.Module], wrap: Wrap) -> None:
    assert check(0, Schedule1F1B, make, wrap) > 0


class TwoStacks(Stack):
    """Two containers of layers, called in the order in which they were made, or in the other."""

    def __init__(self, *, swapped: bool) -> None:
        super().__init__()
        self.more: Any = nn.ModuleList(Layer() for _ in range(LAYERS))
        if swapped:
            self.layers, self.more = self.more, self.layers

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = super().forward(x)
        for layer in self.more:
            x = layer(x)
        return x


@pytest.mark.parametrize("swapped", [False, True])
def test_two_containers_of_layers_in_any_order(swapped: bool) -> None:
    assert check(1, Schedule1F1B, partial(TwoStacks, swapped=swapped), sharded) > 0


class Twice(Stack):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(super().forward(x))


def test_layers_that_are_called_twice_in_a_forward() -> None:
    assert check(1, Schedule1F1B, Twice, sharded) > 0


@pytest.mark.parametrize(("index", "microbatches"), [(0, 5), (2, 4), (3, 4), (3, 6)])
def test_any_number_of_microbatches(index: int, microbatches: int) -> None:
    check(index, Schedule1F1B, Stack, sharded, microbatches=microbatches)


@pytest.mark.parametrize("wrap", [sharded, checkpointed])
def test_a_second_step_begins_as_the_first_one_would_have_left_it(wrap: Wrap) -> None:
    assert check(1, Schedule1F1B, Stack, wrap, steps=2) > 0


def test_layers_of_transformers() -> None:
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    config = pytest.importorskip("transformers").LlamaConfig(
        hidden_size=WIDTH, intermediate_size=16, num_attention_heads=2, num_hidden_layers=LAYERS, use_cache=False
    )
    config._attn_implementation = "sdpa"

    class Model(Stack):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(llama.LlamaDecoderLayer(config, number) for number in range(LAYERS))
            self.rotary = llama.LlamaRotaryEmbedding(config)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            places = self.rotary(x, torch.arange(SEQUENCE)[None])
            for layer in self.layers:
                x = layer(x, attention_mask=None, position_embeddings=places)
            return x

    assert check(1, Schedule1F1B, Model, sharded) > 0


class Hooked(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.up.register_forward_hook(lambda _module, _inputs, output: output)


class Patched(Layer):
    def __init__(self) -> None:
        super().__init__()
        forward = self.up.forward
        self.up.forward = lambda x: forward(x)  # type: ignore[method-assign]


class Waiting(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.down.weight.register_post_accumulate_grad_hook(lambda _parameter: None)


class Reading(Layer):
    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        return super().forward(x, scale) * (2 if x.sum().item() > 3 else 1)


class Dropping(Layer):
    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        return super().forward(x, scale) if random.random() < 2 else x


class Pairs(Layer):
    def forward(self, x: Any, scale: torch.Tensor | None = None) -> Any:
        return super().forward(x[0] if isinstance(x, tuple) else x, scale), None


class Unpacking(Stack):
    def __init__(self) -> None:
        super().__init__(Pairs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)[0]


class Sending(Layer):
    """Sends in some layers, which nothing but the forward shows."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        self.number = Sending.made % LAYERS
        Sending.made += 1

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        if self.number == 4:
            dist.all_reduce(torch.ones(2))
        return super().forward(x, scale)


class SharedWeights(Stack):
    def __init__(self) -> None:
        super().__init__()
        layers: Any = self.layers
        layers[4].up.weight = layers[2].up.weight


class SharedPart(Stack):
    def __init__(self) -> None:
        super().__init__()
        for layer in self.layers:
            layer.norm = self.layers[0].norm  # type: ignore[index,union-attr]


class OuterCheckpoint(Stack):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(super().forward, x, use_reentrant=False)  # type: ignore[no-any-return]


def replicated(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return DistributedDataParallel(model, process_group=mesh.get_group("dp"))


def prefetching(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    sharded(model, mesh)
    layers: Any = model.layers
    for number in range(LAYERS - 2):
        layers[number].set_modules_to_forward_prefetch([layers[number + 1], layers[number + 2]])
    return model


class HookingTensors(Layer):
    """Has some layers wait for a gradient, which the forward's collectives do not show."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        self.number = HookingTensors.made % LAYERS
        HookingTensors.made += 1

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        out = super().forward(x, scale)
        if self.number == 4:
            out.register_hook(lambda _gradient: dist.all_reduce(torch.ones(2)))
        return out


class Doubling(HookingTensors):
    """Has another graph of autograd in some layers."""

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        out = Layer.forward(self, x, scale)
        return out * 2 if self.number == 4 else out


@pytest.mark.parametrize("layer", [Hooked, Patched, Waiting, Reading, Dropping])
def test_layers_that_do_more_than_torch_shows_are_all_run(layer: type[Layer]) -> None:
    assert check(1, Schedule1F1B, partial(Stack, layer), plain) == 0


@pytest.mark.parametrize("make", [Unpacking, SharedWeights, SharedPart])
def test_layers_that_are_no_chain_of_separate_ones_are_all_run(make: Callable[[], nn.Module]) -> None:
    assert check(1, Schedule1F1B, make, plain) == 0


@pytest.mark.parametrize("wrap", [replicated, prefetching])
def test_wrappers_that_count_on_every_layer_run_all(wrap: Wrap) -> None:
    assert check(1, Schedule1F1B, Stack, wrap) == 0


class Late(nn.Module):
    """Sends in its second forward, where it is the layer of that number."""

    def __init__(self, sends: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.state = {"runs": 0, "sends": sends}  # which no setting of the layer shows

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear(x)
        self.state["runs"] += 1
        if self.state["sends"] and self.state["runs"] == 2:
            dist.all_reduce(torch.ones(2))
        return out


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (partial(Stack, Sending), "events"),
        (partial(Stack, HookingTensors), "called in different ways"),
        (partial(Stack, Doubling), "called in different ways"),
        (OuterCheckpoint, "RuntimeError"),
    ],
)
def test_layers_that_differ_where_only_a_call_shows_it_end_the_program(
    make: Callable[[], nn.Module], reason: str
) -> None:
    with pytest.raises(CannotSkip, match=reason):
        traced(1, Schedule1F1B, make, plain, skips=True)


def test_layers_that_differ_in_a_later_microbatch_end_the_program() -> None:
    numbers = iter(range(LAYERS))
    call = nn.Module.__call__
    with pytest.raises(CannotSkip, match="events"):
        traced(1, Schedule1F1B, partial(Stack, lambda: Late(next(numbers) == 1)), plain, skips=True)
    assert nn.Module.__call__ is call
