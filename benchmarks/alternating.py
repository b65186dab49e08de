"""Alternating runs: several ways of running one program, compared in one process while the machine's speed drifts."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

Way = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of a sample."""

    median: float
    lower: float
    upper: float

    def __str__(self) -> str:
        return f"{self.median:7.3f}  [{self.lower:.3f}, {self.upper:.3f}]"


def spread(sample: list[float]) -> Spread:
    """Median and quartiles."""
    lower, median, upper = statistics.quantiles(sample, n=4, method="inclusive")
    return Spread(median, lower, upper)


def alternate(program: Callable[[], None], ways: Mapping[str, Way], rounds: int) -> dict[str, list[float]]:
    """Run the program once per way and round, and return the seconds of each.

    The order turns by one place each round, so that no way always runs first or after the same neighbour. Entering
    and leaving a way is not timed: what is compared is the program inside.
    """
    names = list(ways)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds + 1):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            with ways[name]():
                began = time.perf_counter()
                program()
                took = time.perf_counter() - began
            if number > 0:  # the first round warms caches up
                seconds[name].append(took)
    return seconds


def ratios(seconds: Mapping[str, list[float]], base: str) -> dict[str, Spread]:
    """Each way's time over the base's of the same round."""
    return {
        name: spread([took / other for took, other in zip(sample, seconds[base], strict=True)])
        for name, sample in seconds.items()
    }
