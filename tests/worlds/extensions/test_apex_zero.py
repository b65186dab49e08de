"""Apex's sharded Adam takes the steps of torch's, and always sends whole buckets."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import dsexplore
from dsexplore._internal.errors import UsageError
from dsexplore._internal.worlds.extensions.apex import EXTENSIONS

ADAM: Any = EXTENSIONS["apex"]["contrib.optimizers.distributed_fused_adam.DistributedFusedAdam"]
KIB = 2**10
BUCKET = 64 * KIB
"""Bytes: a divisor of the weights' size, 128 · 128 · 4."""


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(128, 128), nn.Linear(128, 128))


def sent(ranks: int = 4, **options: Any) -> list[list[tuple[str, int]]]:
    """Return the messages at its construction, and in each of two steps."""
    with dsexplore.simulate(ranks), dsexplore.commtrace() as trace:
        layers = model().cuda()
        optimizer = ADAM(layers.parameters(), bucket_cap_mb=BUCKET / 2**20, **options)
        trace.step()
        for _ in range(2):
            layers(torch.ones(2, 128, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            trace.step()
    rows = trace.events.select("step", "op", "message_bytes").rows()
    return [[row[1:] for row in rows if row[0] == step] for step in range(3)]


def test_whole_buckets_are_sent() -> None:
    start, *steps = sent()
    assert start == [("broadcast", size) for size in (BUCKET, 512, BUCKET, 512)]
    for step in steps:  # biases of 512 B stand before weights: 129 KiB are in three buckets
        assert step == [("reduce_scatter", BUCKET)] * 3 + [("all_gather", BUCKET)] * 3


def test_dtypes_of_what_is_sent() -> None:
    _, step, _ = sent(grad_sync_dtype=torch.bfloat16, param_sync_dtype=torch.bfloat16)
    assert step == [("reduce_scatter", BUCKET)] * 2 + [("all_gather", BUCKET)] * 2  # 66,048 B
    _, step, _ = sent(grad_sync_dtype=torch.bfloat16)
    assert step == [("reduce_scatter", BUCKET)] * 2 + [("all_gather", 2 * BUCKET)] * 2


def test_accumulation_sends_once_and_a_norm_sends_four_bytes() -> None:
    with dsexplore.simulate(2), dsexplore.commtrace() as trace:
        layers = model().cuda()
        optimizer = ADAM(layers.parameters(), bucket_cap_mb=BUCKET / 2**20)
        with optimizer.no_sync():
            layers(torch.ones(2, 128, device="cuda")).sum().backward()
        layers(torch.ones(2, 128, device="cuda")).sum().backward()
        optimizer.clip_grad_norm(1.0)
        optimizer.step()
        with pytest.raises(UsageError, match="has no state_dict"):
            optimizer.state_dict()
        with pytest.raises(UsageError, match="no AMSGrad"):
            ADAM(layers.parameters(), amsgrad=True)
    rows = [row for row in trace.events.select("op", "message_bytes").rows() if row[0] != "broadcast"]
    assert rows == [("reduce_scatter", BUCKET)] * 3 + [("all_reduce", 4)] + [("all_gather", BUCKET)] * 3


@pytest.mark.parametrize("is_decoupled", [True, False])
def test_steps_are_torchs(is_decoupled: bool) -> None:
    kind = torch.optim.AdamW if is_decoupled else torch.optim.Adam
    x = torch.linspace(-1, 1, 256).reshape(2, 128)
    trained = []
    with dsexplore.simulate(1):
        for make in (
            lambda p: ADAM(p, 0.01, weight_decay=0.1, adam_w_mode=is_decoupled),
            lambda p: kind(p, 0.01, weight_decay=0.1),
        ):
            layers = model()
            optimizer = make(layers.parameters())
            for _ in range(3):
                layers(x).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            trained.append([parameter.detach().clone() for parameter in layers.parameters()])
    assert_close(*trained)
