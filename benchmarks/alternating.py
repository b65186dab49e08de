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
        return f"{self.median:7.3f} [{self.lower:6.3f}, {self.upper:6.3f}]"


def spread(sample: list[float]) -> Spread:
    """Median and quartiles."""
    lower, median, upper = statistics.quantiles(sample, n=4, method="inclusive")
    return Spread(median, lower, upper)


@dataclass(frozen=True)
class Runs:
    """CPU seconds of each round: of the first run after entering a way, and of the run after that."""

    first: list[float]
    later: list[float]


def alternate(
    program: Callable[[], None], ways: Mapping[str, Way], rounds: int, anew: frozenset[str] = frozenset()
) -> dict[str, Runs]:
    """Run the program twice per way and round, and return the CPU seconds of each.

    Those in ``anew`` are entered again for the second run.

    The order turns by one place each round, so that no way always runs first or after the same neighbour. Entering
    and leaving a way is not timed: what is compared is the program inside.

    A program on one thread that never waits takes as much CPU time as wall time where it has the machine to itself;
    where it has not, only CPU time tells what the program costs.
    """
    names = list(ways)
    runs = {name: Runs([], []) for name in names}
    for number in range(rounds + 1):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            with ways[name]():
                first = _timed(program)
                later = None if name in anew else _timed(program)
            if later is None:
                with ways[name]():
                    later = _timed(program)
            if number > 0:  # the first round warms caches up
                runs[name].first.append(first)
                runs[name].later.append(later)
    return runs


def _timed(program: Callable[[], None]) -> float:
    began = time.process_time()
    program()
    return time.process_time() - began


def ratios(seconds: Mapping[str, list[float]], base: str) -> dict[str, Spread]:
    """Each way's time over the base's of the same round."""
    return {
        name: spread([took / other for took, other in zip(sample, seconds[base], strict=True)])
        for name, sample in seconds.items()
    }
