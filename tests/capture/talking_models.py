"""Models that communicate by themselves: one all_reduce forward and one backward, of a size that is known."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_reduce

WIDTH = 4
SIZE = 2 * WIDTH * 4


class Reduce(torch.autograd.Function):
    """All-reduces what passes, forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return all_reduce(x, "sum", dist.group.WORLD) * 1

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return all_reduce(gradient.contiguous(), "sum", dist.group.WORLD) * 1


class Talker(nn.Module):
    """One all-reduce of 2·4·e forward and one backward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Reduce.apply(self.linear(x))


class Pair(nn.Module):
    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


def x(**options: Any) -> torch.Tensor:
    return torch.ones(2, WIDTH, **options)


def forward_and_backward(*names: str) -> list[tuple[str, str]]:
    """Return one event each way per module that ran, backward in reverse."""
    return [*(("forward", name) for name in names), *(("backward", name) for name in reversed(names))]
