"""The stand-ins for Apex's data parallelism and mixed precision send what closed forms say."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import dsexplore
from dsexplore._internal.errors import UsageError
from dsexplore._internal.worlds.extensions.apex_parallel import (
    DistributedDataParallel,
    initialize,
    master_params,
    scale_loss,
)

WIDTH = 8
LAYER = WIDTH * WIDTH + WIDTH
NORM = 2 * WIDTH


def sent(level: str = "O1", steps: int = 2, **options: Any) -> list[list[tuple[str, str, int]]]:
    """Return phase, dtype and bytes of the messages at the start and in each step."""
    with dsexplore.simulate(world_size=4), dsexplore.commtrace() as trace:
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH))
        model, optimizer = initialize(model, torch.optim.SGD(model.parameters(), lr=0.1), opt_level=level)
        ddp = DistributedDataParallel(model, **options)
        trace.step()
        for _ in range(steps):
            output = ddp(torch.randn(4, WIDTH))
            assert output.dtype == torch.float32
            with scale_loss(output.sum(), optimizer) as loss:
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            trace.step()
        assert len(list(master_params(optimizer))) == 6
    columns = trace.events.select("step", "op", "dtype", "message_bytes").rows()
    return [[row[1:] for row in columns if row[0] == step] for step in range(steps + 1)]


def test_gradients_of_a_dtype_are_reduced_together_until_their_order_is_known() -> None:
    whole = 4 * (2 * LAYER + NORM)
    start, first, second = sent(message_size=LAYER)
    assert start == [("broadcast", "float32", whole)]
    assert first == [("all_reduce", "float32", whole)]
    assert second == [("all_reduce", "float32", 4 * LAYER), ("all_reduce", "float32", 4 * (LAYER + NORM))]


def test_they_stay_together_where_they_are_to_be_delayed() -> None:
    _, first, second = sent(message_size=LAYER, delay_allreduce=True)
    assert first == second == [("all_reduce", "float32", 4 * (2 * LAYER + NORM))]


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("O0", [("float32", 4 * (2 * LAYER + NORM))]),
        ("O2", [("float16", 2 * 2 * LAYER), ("float32", 4 * NORM)]),
        ("O3", [("float16", 2 * (2 * LAYER + NORM))]),
    ],
)
def test_gradients_have_the_dtype_of_the_level(level: str, expected: list[tuple[str, int]]) -> None:
    start, first, _ = sent(level)
    assert sorted(row[1:] for row in start) == expected
    assert sorted(row[1:] for row in first) == expected


def test_a_level_that_apex_does_not_have_is_named() -> None:
    with pytest.raises(UsageError, match="opt_level='O4' is none of Apex's levels"):
        initialize(nn.Linear(1, 1), opt_level="O4")
