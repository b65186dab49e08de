"""Models of transformers send on fake tensors what they send on real ones.

Modules: ``worlds/fake/``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import dsexplore

pytestmark = pytest.mark.filterwarnings("ignore:.*fake tensors")
DEVICE = "cuda"
SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def vision_transformer() -> nn.Module:
    """Return a model that is initialized by ``trunc_normal_``, which redraws values out of bounds."""
    config = transformers.ViTConfig(**SMALL, image_size=16, patch_size=8, num_labels=10)
    return transformers.ViTForImageClassification(config)


def images() -> dict[str, torch.Tensor]:
    labels = torch.randint(0, 10, (2,), device=DEVICE)
    return {"pixel_values": torch.randn(2, 3, 16, 16, device=DEVICE), "labels": labels}


def mixture_of_experts() -> nn.Module:
    """Return a model in fp32; torch's fake grouped product requires bfloat16."""
    experts: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 2}
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**SMALL, **experts, vocab_size=64))


def tokens() -> dict[str, torch.Tensor]:
    ids = torch.randint(0, 64, (2, 8), device=DEVICE)
    return {"input_ids": ids, "labels": ids}


def train(make: Callable[[], nn.Module], batch: Callable[[], dict[str, torch.Tensor]], wrap: Any) -> None:
    model = wrap(make().to(DEVICE))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        loss = model(**batch()).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        assert loss.item() < 100


@pytest.mark.parametrize(
    ("make", "batch", "wrap"),
    [(vision_transformer, images, DistributedDataParallel), (mixture_of_experts, tokens, fully_shard)],
)
def test_train(make: Callable[[], nn.Module], batch: Callable[[], dict[str, torch.Tensor]], wrap: Any) -> None:
    program = functools.partial(train, make, batch, wrap)
    sent = []
    for fake in (False, True):
        with dsexplore.commtrace(world_size=4, fake=fake, hardware="h100") as trace:
            program()
        sent.append(trace.events.drop("group", "start", "end").rows())
    real, on_fake_tensors = sent
    assert len(real) > 2
    assert on_fake_tensors == real
