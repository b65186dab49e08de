"""Run a learner's function as one rank of a simulated world, and record its collectives and its result."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import polars as pl
import torch
import torch.distributed as dist
from torch import Tensor, nn

from dsexplore._internal.lessons.requirement import Answer
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.worlds.commtrace import commtrace
from dsexplore._internal.worlds.simulate import simulate


@dataclass(frozen=True)
class Play:
    """The result of running a function as one rank.

    A simulated rank receives nothing: the summands of other ranks are missing, and their parts are copies of its own.
    So an all_reduce leaves its tensor as it is, and an all_gather repeats the rank's part.
    """

    rank: int
    value: object
    """Value that the function returned."""
    arguments: tuple[object, ...]
    """Arguments of the function, which it may have changed."""
    trace: Trace
    waits: int
    """Number of works of collectives on which ``wait`` was called."""

    @property
    def events(self) -> pl.DataFrame:
        """Collectives in program order, without those of start-up."""
        return self.trace.events.filter(pl.col("phase") != "start-up")

    def of(self, op: str) -> pl.DataFrame:
        """Return the collectives of one op."""
        return self.events.filter(pl.col("op") == op)

    def sent(self) -> str:
        """Return the collectives as text, for hints: ``"8 all_reduce of 1,024 bytes"``."""
        if self.events.is_empty():
            return "nothing"
        counted = self.events.group_by("op", "message_bytes", maintain_order=True).len()
        return ", ".join(f"{count} {op} of {size:,} bytes" for op, size, count in counted.rows())


def play(answer: Answer, ranks: int, rank: int, *arguments: object) -> Play:
    """Call the answer as a rank of a world.

    Args:
        answer: function of the learner.
        ranks: number of ranks of the world.
        rank: rank to run.
        *arguments: arguments of the function, which may change them.
    """
    with simulate(ranks, rank=rank), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # on collectives that torch renames
        with noted_waits() as waited, commtrace() as trace:
            value = answer(*arguments)
    return Play(rank=rank, value=value, arguments=arguments, trace=trace, waits=len(waited))


@contextmanager
def noted_waits() -> Iterator[dict[int, dist.Work]]:
    """Collect the works on which ``wait`` is called in the block, by identity."""
    waited: dict[int, dist.Work] = {}
    original = dist.Work.wait

    def wait(work: dist.Work, *arguments: Any, **named: Any) -> bool:
        waited[id(work)] = work
        return original(work, *arguments, **named)

    dist.Work.wait = wait  # type: ignore[method-assign, assignment]
    try:
        yield waited
    finally:
        dist.Work.wait = original  # type: ignore[method-assign]


def numbers(*shape: int, seed: int) -> Tensor:
    """Return random numbers that are the same in each run."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def layers(count: int, width: int) -> nn.Sequential:
    """Return `count` square linear layers without biases, with the same weights in each run."""
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(count)))
    with torch.no_grad():
        for index, parameter in enumerate(model.parameters()):
            parameter.copy_(numbers(width, width, seed=index) / width)
    return model


def is_close(got: object, wanted: Tensor) -> bool:
    """Return True if an answer is a tensor with these values and this shape, up to rounding."""
    if not isinstance(got, Tensor) or got.shape != wanted.shape:
        return False
    return torch.allclose(got.detach(), wanted, rtol=1e-4, atol=1e-5 * float(wanted.abs().max()))
