"""Alternating runs: several ways of running one program, compared in one process while the machine's speed drifts."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from dsexplore._internal.aio.sweeps.statistics import Interval

Way = Callable[[], AbstractContextManager[Any]]

SELDOM = 20
"""In how many rounds a slow way takes part once."""


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
    """CPU seconds, by round: of the first run after entering a way, and of those after that."""

    first: dict[int, float]
    later: dict[int, list[float]]

    def medians(self) -> dict[int, float]:
        """Of each round's later runs."""
        return {number: statistics.median(seconds) for number, seconds in self.later.items()}

    def fastest_tenth(self) -> float:
        """Of all later runs the one that a tenth is faster than: what neighbors on the machine disturbed least."""
        seconds = sorted(each for of_round in self.later.values() for each in of_round)
        return seconds[len(seconds) // 10]


def alternate(
    program: Callable[[], None],
    ways: Mapping[str, Way],
    rounds: int,
    later: int,
    anew: frozenset[str] = frozenset(),
    seldom: frozenset[str] = frozenset(),
) -> dict[str, Runs]:
    """Run the program ``1 + later`` times per way and round, and return the CPU seconds of each.

    Those in ``anew`` are entered again for every run; those in ``seldom`` take part in every twentieth round only.

    The order turns by one place each round, and round about after each full turn, so that no way always runs first or
    after the same neighbor; what a way leaves to Python's garbage collector is collected before the next one begins.
    Entering and leaving a way is not timed: what is compared is the program inside.

    A program on one thread that never waits takes as much CPU time as wall time where it has the machine to itself;
    where it has not, only CPU time tells what the program costs.
    """
    runs = {name: Runs({}, {}) for name in ways}
    for number in range(rounds + 1):
        for name in _in_turn(list(ways), number):
            if name in seldom and number % SELDOM:
                continue
            if name in anew:
                first, *others = [_inside(ways[name], program, 1)[0] for _ in range(1 + later)]
            else:
                first, *others = _inside(ways[name], program, 1 + later)
            if number > 0:  # the first round warms caches up
                runs[name].first[number] = first
                runs[name].later[number] = others
    return runs


def switching(way: Way, rounds: int) -> float:
    """Median milliseconds of CPU to enter and leave a way with nothing inside."""
    took = []
    for _ in range(rounds):
        began = time.process_time()
        with way():
            pass
        took.append(time.process_time() - began)
    return 1e3 * statistics.median(took)


def _in_turn(names: list[str], number: int) -> list[str]:
    turns, turn = divmod(number, len(names))
    order = names[turn:] + names[:turn]
    return order[::-1] if turns % 2 else order


def _inside(way: Way, program: Callable[[], None], times: int) -> list[float]:
    gc.collect()
    with way():
        return [_timed(program) for _ in range(times)]


def _timed(program: Callable[[], None]) -> float:
    began = time.process_time()
    program()
    return time.process_time() - began


def ratios(seconds: Mapping[str, Mapping[int, float]], base: str) -> dict[str, list[float]]:
    """Each way's time over the base's of the same round."""
    return {name: [took / seconds[base][number] for number, took in sample.items()] for name, sample in seconds.items()}


def median_interval(sample: list[float]) -> Interval:
    """The median with its 95 % interval: whatever the sample's distribution, its median lies between the two of them
    whose ranks are 1.96 standard deviations of a binomial count from the middle."""
    many = len(sample)
    ordered, half = sorted(sample), 0.98 * math.sqrt(many)
    low, high = max(math.floor(many / 2 - half), 0), min(math.ceil(many / 2 + half), many)
    return Interval(statistics.median(ordered), ordered[low], ordered[high - 1], many)
