"""Find a fast setting in few measurements. Pure logic: measuring and the clock are passed in."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from dsexplore._internal.aio import aio_constants as c
from dsexplore._internal.aio.aio_config import AioConfig
from dsexplore._internal.aio.sweeps.statistics import MATTERS, Interval, ratio_interval
from dsexplore._internal.errors import UsageError

AXES: dict[str, tuple[Any, ...]] = {
    c.AIO_QUEUE_DEPTH: (1, 2, 4, 8, 16, 32, 64),
    c.AIO_THREAD_COUNT: (1, 2, 4),
    c.AIO_BLOCK_SIZE: tuple(128 * 1024 << step for step in range(7)),
    c.AIO_OVERLAP_EVENTS: (True, False),
    c.AIO_SINGLE_SUBMIT: (False, True),
}
"""Values to try for each key, in the order in which the keys are searched: the most important first."""

MOST_FINALISTS = 6
"""Number of settings that are compared in the finals, besides the control."""
_WORTH_MOVING = 1.02
_NEAR = 0.9
"""Fraction of the highest score that a finalist chosen for its low cost must reach."""
FEWEST_ROUNDS = 3
"""Number of rounds of finals before which nothing is considered sure."""
_GIVEN_UP = 0.2
"""A finalist this far below the best, divided by the rounds so far, is dropped: 10 % after two. None is dropped that
may be tied with the best."""

Measure = Callable[[Sequence[AioConfig]], dict[AioConfig, float]]
"""Measures settings in one round beside the control, and returns each rate relative to the control's."""


def checked_axes(given: Mapping[str, Sequence[Any]]) -> dict[str, tuple[Any, ...]]:
    """Return the default axes with some replaced by the caller's.

    Raises:
        UsageError: an unknown key, an empty axis, or a value that `AioConfig` rejects.
    """
    axes = dict(AXES)
    for key, values in given.items():
        if key not in axes:
            raise UsageError(f"axis {key!r} is unknown: sweep over {', '.join(AXES)}")
        listed = tuple(values) if isinstance(values, Iterable) and not isinstance(values, str) else (values,)
        if not listed:
            raise UsageError(f"axis {key!r} has no values: give at least one, or leave it out for {AXES[key]}")
        axes[key] = tuple(dict.fromkeys(getattr(AioConfig(**{key: value}), key) for value in listed))
    return axes


def fills_queues(config: AioConfig, size: int) -> bool:
    """Return True if `size` bytes fill the queues several times over; the default setting always fits."""
    return config.bytes_in_flight <= max(size // 4, AioConfig().bytes_in_flight)


def grid(axes: Mapping[str, Sequence[Any]], fits: Callable[[AioConfig], bool]) -> list[AioConfig]:
    """Return every combination of the axes' values for which `fits` is true."""
    every = (AioConfig(**dict(zip(axes, values, strict=True))) for values in product(*axes.values()))
    return [config for config in every if fits(config)]


def descend(
    start: AioConfig,
    axes: Mapping[str, Sequence[Any]],
    measure: Measure,
    more: Callable[[], bool],
    fits: Callable[[AioConfig], bool],
) -> dict[AioConfig, float]:
    """Move along one axis at a time to the best value on it, until a full pass brings no gain or time is up.

    However short the time, one axis is measured; if no axis has a choice, only the start.

    Returns:
        The last ratio of every setting measured.
    """
    scores: dict[AioConfig, float] = {}
    best, improved = start, True
    while improved and (more() or not scores):
        improved = False
        for key, values in axes.items():
            tried = (_fitting(best.with_(**{key: value}), axes, fits) for value in values)
            line = list(dict.fromkeys(config for config in tried if config is not None))
            if len(line) < 2 or (scores and not more()):
                continue
            scores.update(measure(line))
            winner = max(line, key=lambda config: scores.get(config, 0.0))
            if winner != best and scores[winner] > scores.get(best, 0.0) * _WORTH_MOVING:
                best, improved = winner, True
    return scores or dict(measure([start]))


def _fitting(
    config: AioConfig, axes: Mapping[str, Sequence[Any]], fits: Callable[[AioConfig], bool]
) -> AioConfig | None:
    """Return the setting, or else the same with the next lower depth of the axes that fits; None if there is none.

    Depth is searched first, and its gain may be luck: larger blocks would then be omitted.
    """
    smaller = sorted((depth for depth in axes[c.AIO_QUEUE_DEPTH] if depth < config.queue_depth), reverse=True)
    candidates = (config.with_(**{c.AIO_QUEUE_DEPTH: depth}) for depth in (config.queue_depth, *smaller))
    return next(filter(fits, candidates), None)


def finals(
    finalists: Sequence[AioConfig],
    measure: Measure,
    more: Callable[[], bool],
    shuffle: random.Random,
    width: float = 0.03,
) -> dict[AioConfig, list[float]]:
    """Measure finalists round after round in shuffled order, until every interval is narrower than `width`.

    At least one round is measured, so that the verdict never rests on the descent, which favors the lucky. Settings
    that are surely or far worse than the best are dropped on the way.

    Returns:
        The ratio of each finalist in each round that it took part in.
    """
    ratios: dict[AioConfig, list[float]] = {config: [] for config in finalists}
    running = list(finalists)
    while not any(ratios.values()) or more():
        shuffle.shuffle(running)
        for config, ratio in measure(running).items():
            if config in ratios:
                ratios[config].append(ratio)
        rounds = len(ratios[running[0]])
        means = {config: ratio_interval(ratios[config]).value for config in running}
        best = max(means, key=lambda config: means[config])
        behind = {config: _relative(ratios[config], ratios[best]) for config in running}
        if rounds >= FEWEST_ROUNDS and all(ratio_interval(ratios[config]).width < width for config in running):
            break
        if rounds >= 2:
            limit = 1 - max(_GIVEN_UP / rounds, 1.5 * MATTERS)
            running = [config for config in running if behind[config].value >= limit]
        if rounds >= FEWEST_ROUNDS:
            running = [config for config in running if behind[config].high >= 1 - MATTERS]
    return ratios


def _relative(ratios: Sequence[float], best: Sequence[float]) -> Interval:
    """Return one setting relative to another over the same rounds, so that noise in the control cancels."""
    return ratio_interval([mine / other for mine, other in zip(ratios, best, strict=True)])


def strongest(scores: Mapping[AioConfig, float], control: AioConfig, count: int = MOST_FINALISTS) -> list[AioConfig]:
    """Return `count` finalists: half by the highest scores, half the cheapest with nearly as high scores.

    A score rests on one measurement, so the highest are partly luck; the cheapest of many equal ones are the same from
    sweep to sweep. The control is omitted: it is measured in every round anyway.
    """
    ranked = sorted((config for config in scores if config != control), key=lambda config: -scores[config])
    near = [config for config in ranked if scores[config] >= scores[ranked[0]] * _NEAR]
    cheap = sorted(near, key=lambda config: (config.bytes_in_flight, config.thread_count, config.queue_depth))
    return list(dict.fromkeys([*ranked[: -(-count // 2)], *cheap[: count // 2], *ranked]))[:count]


def chunks(configs: Sequence[AioConfig], count: int) -> Iterator[list[AioConfig]]:
    """Yield the settings in parts of at most `count`."""
    for at in range(0, len(configs), count):
        yield list(configs[at : at + count])
