"""Probabilities of dropout: where a plan has none, and where it drops elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from dsexplore import compare_numerics
from tests.numerics.trained_model import Trained

WIDTH = 8


class Block(nn.Module):
    """Two layers with dropout between them, and behind."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.drop, self.down = nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2), nn.Linear(WIDTH, WIDTH)
        self.late = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.late(self.down(self.drop(self.up(x))))  # type: ignore[no-any-return]


class MovedBlock(Block):
    """A model that calls dropout in its own forward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.late(self.down(F.dropout(self.drop(self.up(x)), 0.2, self.training)))  # type: ignore[no-any-return]


class Model(nn.Module):
    """A model with dropout of its own, and two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.first, self.second = Block(), Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(self.drop(x)))  # type: ignore[no-any-return]


def seeded() -> Model:
    torch.manual_seed(0)
    return Model()


def trained(model: nn.Module) -> Trained:
    x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def without(path: str, mesh: DeviceMesh) -> Trained:
    model = seeded()
    model.set_submodule(path, nn.Identity())
    return trained(model)


def moved(mesh: DeviceMesh) -> Trained:
    model = seeded()
    for block in (model.first, model.second):
        block.__class__ = MovedBlock
        block.drop = nn.Identity()  # type: ignore[assignment]
    return trained(model)


def compared(plan: Callable[[DeviceMesh], Trained]) -> tuple[bool, str | None, str | None]:
    report = compare_numerics(lambda: trained(seeded()), plan, mesh="dp=2", world_size=2, steps=1)
    return report.same, report.module, report.reason


@pytest.mark.parametrize("path", ["drop", "first.drop", "second.drop"])
def test_a_module_that_drops_nothing_is_named_where_others_drop(path: str) -> None:
    assert compared(partial(without, path)) == (False, path, "dropout")


def test_dropout_that_stands_elsewhere_in_the_parent_is_no_fault() -> None:
    assert compared(moved) == (True, None, None)
