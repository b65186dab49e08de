"""Run a learner's function as one rank of a simulated world, and record its collectives and its result."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import polars as pl
import torch.distributed as dist

from dsexplore._internal.lessons.requirement import Answer
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.worlds.commtrace import commtrace
from dsexplore._internal.worlds.simulate import simulate


@dataclass(frozen=True)
class AnswerRun:
    """The result of running a function as one rank.

    A simulated rank receives nothing: all_reduce leaves a tensor as it is, and all_gather returns copies of the rank's
    own part.
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


def run_answer(answer: Answer, *arguments: object, ranks: int, rank: int) -> AnswerRun:
    """Call the answer as a rank of a world.

    Args:
        answer: function of the learner.
        *arguments: arguments of the function, which may change them.
        ranks: number of ranks of the world.
        rank: rank to run as.
    """
    with simulate(ranks, rank=rank), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # on collectives that torch renames
        with noted_waits() as waited, commtrace() as trace:
            value = answer(*arguments)
    return AnswerRun(rank=rank, value=value, arguments=arguments, trace=trace, waits=len(waited))


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
