"""Steps of a pipeline stage that skip layers have the same tables as steps that run them all."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe

from tests.worlds.repeats.layered_stages import (
    LAYERS,
    SEQUENCE,
    WIDTH,
    Layer,
    Recomputing,
    Stack,
    Wrap,
    check,
    checkpointed,
    hybrid,
    plain,
    sharded,
    sliced,
    sliced_and_sharded,
)


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
