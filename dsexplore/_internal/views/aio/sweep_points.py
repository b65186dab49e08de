"""The measurements of a sweep as points, one per setting and direction.

A point has the medians over its slices. With several tensor sizes, its rate is the geometric mean over the sizes.
"""

from __future__ import annotations

from dataclasses import dataclass

from dsexplore._internal.aio.aio_config import AioConfig
from dsexplore._internal.aio.sweeps.measurements import RoundSlice, mix, mixed_rate
from dsexplore._internal.aio.sweeps.result import SweepResult
from dsexplore._internal.aio.sweeps.statistics import median
from dsexplore._internal.units import format_rate


@dataclass(frozen=True)
class Point:
    """Result of one setting in one direction, or in the user's mix of both."""

    config: AioConfig
    rate: float
    """Rate in bytes per second."""
    p50: float
    """Median latency of a request in seconds."""
    p99: float
    """Latency in seconds that 99 % of requests do not exceed."""


def directions(result: SweepResult) -> list[str]:
    """Return the directions that can be drawn: those measured, plus ``"mix"`` if both were."""
    return [*result.operations, *(["mix"] if len(result.operations) == 2 else [])]


def points(result: SweepResult, direction: str) -> list[Point]:
    """Return each setting's medians in one direction; the latencies of the mix are the slower direction's."""
    by_config: dict[AioConfig, dict[str, list[RoundSlice]]] = {}
    for m in result.measured:
        by_config.setdefault(m.sample.config, {}).setdefault(m.sample.operation, []).append(m)
    medians = []
    for config, measured in sorted(by_config.items()):
        wanted = result.operations if direction == "mix" else [direction]
        if not all(operation in measured for operation in wanted):
            continue
        rate = mixed_rate([m for operation in wanted for m in measured[operation]], result.conditions.read_share)
        p50 = max(median([m.sample.p50 for m in measured[operation]]) for operation in wanted)
        p99 = max(median([m.sample.p99 for m in measured[operation]]) for operation in wanted)
        medians.append(Point(config, rate, p50, p99))
    return medians


def thread_counts(result: SweepResult, direction: str) -> list[int]:
    """Return the measured thread counts in ascending order."""
    return sorted({point.config.thread_count for point in points(result, direction)})


def cells(result: SweepResult, direction: str, threads: int) -> dict[tuple[int, int], Point]:
    """Return {(block size, queue depth): fastest point over the ways of submitting and reaping} at one thread count."""
    best: dict[tuple[int, int], Point] = {}
    for point in points(result, direction):
        key = point.config.block_size, point.config.queue_depth
        if point.config.thread_count == threads and (key not in best or point.rate > best[key].rate):
            best[key] = point
    return best


def limit_of(result: SweepResult, direction: str) -> tuple[float, str] | None:
    """Return (bytes per second, text) of the fastest reference in a direction or the mix; None without a reference.

    The text calls it the disk's limit only if no measured setting is faster.
    """
    most: dict[str, float] = {}
    for reference in result.references:
        most[reference.operation] = max(most.get(reference.operation, 0.0), reference.rate)
    wanted = result.operations if direction == "mix" else [direction]
    if not all(operation in most for operation in wanted):
        return None
    rate = mix({operation: most[operation] for operation in wanted}, result.conditions.read_share)
    fastest = max((point.rate for point in points(result, direction)), default=0.0)
    what = "the disk's limit" if rate >= fastest else "the fastest other tool, which settings here exceed"
    return rate, f"{what}, {format_rate(rate)}"
