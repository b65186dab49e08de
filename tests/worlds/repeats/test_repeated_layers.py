"""Layers of a script that differ all run; if only a call shows the difference, the program ends.

Modules: ``worlds/repeats/repeated_layers.py``, ``worlds/repeats/skipped_layers.py``.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import Schedule1F1B
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from dsexplore._internal.worlds.repeats.layer_runs import CannotSkip
from tests.worlds.repeats.layered_stages import LAYERS, WIDTH, Layer, Stack, Wrap, check, plain, sharded, traced


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
    """Registers a hook for gradients in some layers, which no collective of the forward shows."""

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
    """Has another autograd graph in some layers."""

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
    """Sends a message in its second forward, if it is made to."""

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
