"""Find a fast setting in few measurements; the functions that measure and that watch the time are arguments."""

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
"""{key: values to try}, in the order in which the keys are searched: the most important first."""

MOST_FINALISTS = 6
"""Number of settings that are compared in the finals, besides the control."""
_MIN_STEP = 1.02
"""Ratio of rates from which the descent moves to a better setting."""
_NEAR = 0.9
"""Fraction of the highest score that a finalist must reach to be chosen for its low cost."""
FEWEST_ROUNDS = 3
"""Number of rounds of finals before which no result is certain."""
_DROP_LIMIT = 0.2
"""A finalist that is slower than the best by this fraction, divided by the number of rounds, is dropped: 10 % after two
rounds. A finalist that may be tied with the best is kept."""

Measure = Callable[[Sequence[AioConfig]], dict[AioConfig, float]]
"""Measures settings in one round beside the control, and returns each rate relative to the control's."""


def checked_axes(changes: Mapping[str, Sequence[Any]]) -> dict[str, tuple[Any, ...]]:
    """Return the default axes with some replaced; a single value is an axis of one value.

    Raises:
        UsageError: an unknown key, an empty axis, or a value that `AioConfig` rejects.
    """
    axes = dict(AXES)
    for key, axis in changes.items():
        if key not in axes:
            raise UsageError(f"axis {key!r} is unknown: sweep over {', '.join(AXES)}")
        values = tuple(axis) if isinstance(axis, Iterable) and not isinstance(axis, str) else (axis,)
        if not values:
            raise UsageError(f"axis {key!r} has no values: give at least one, or leave it out for {AXES[key]}")
        axes[key] = tuple(dict.fromkeys(getattr(AioConfig(**{key: value}), key) for value in values))
    return axes


def fills_queues(config: AioConfig, size: int) -> bool:
    """Return True if `size` bytes fill the queues of a setting at least four times; the default setting always fits."""
    return config.bytes_in_flight <= max(size // 4, AioConfig().bytes_in_flight)


def grid(axes: Mapping[str, Sequence[Any]], fits: Callable[[AioConfig], bool]) -> list[AioConfig]:
    """Return every combination of the axes' values for which `fits` is true."""
    combinations = (AioConfig(**dict(zip(axes, values, strict=True))) for values in product(*axes.values()))
    return [config for config in combinations if fits(config)]


def descend(
    start: AioConfig,
    axes: Mapping[str, Sequence[Any]],
    measure: Measure,
    more: Callable[[], bool],
    fits: Callable[[AioConfig], bool],
) -> dict[AioConfig, float]:
    """Move along one axis at a time to its best value, until a pass over all axes brings no gain or time is up.

    At least one axis is measured, however short the time; if no axis has two values, only the start is measured.

    Args:
        start: setting to start with.
        axes: {key: values to try}.
        measure: measures settings in one round.
        more: returns True as long as there is time for another round.
        fits: returns True if a setting can be measured.

    Returns:
        {measured setting: its last ratio to the control}.
    """
    scores: dict[AioConfig, float] = {}
    best, improved = start, True
    while improved and (more() or not scores):
        improved = False
        for key, values in axes.items():
            fitting = (_fitting(best.with_(**{key: value}), axes, fits) for value in values)
            candidates = list(dict.fromkeys(config for config in fitting if config is not None))
            if len(candidates) < 2 or (scores and not more()):
                continue
            scores.update(measure(candidates))
            winner = max(candidates, key=lambda config: scores.get(config, 0.0))
            if winner != best and scores[winner] > scores.get(best, 0.0) * _MIN_STEP:
                best, improved = winner, True
    return scores or dict(measure([start]))


def _fitting(
    config: AioConfig, axes: Mapping[str, Sequence[Any]], fits: Callable[[AioConfig], bool]
) -> AioConfig | None:
    """Return the setting, or if it does not fit, the setting with the next lower depth that does; None if none does.

    Depth is searched first, and a large depth may have won by luck; without this, larger blocks would not be tried.
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
    """Measure finalists in rounds, in shuffled order, until every interval is narrower than `width`.

    At least one round is measured, since the descent favors settings that were lucky. Settings that are far or surely
    slower than the best are dropped on the way.

    Args:
        finalists: settings to compare.
        measure: measures settings in one round.
        more: returns True as long as there is time for another round.
        shuffle: random generator for the order.
        width: relative width of an interval, see `Interval.width`.

    Returns:
        {finalist: its ratios to the control in the rounds that it took part in}.
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
        to_best = {config: _relative(ratios[config], ratios[best]) for config in running}
        if rounds >= FEWEST_ROUNDS and all(ratio_interval(ratios[config]).width < width for config in running):
            break
        if rounds >= 2:
            limit = 1 - max(_DROP_LIMIT / rounds, 1.5 * MATTERS)
            running = [config for config in running if to_best[config].value >= limit]
        if rounds >= FEWEST_ROUNDS:
            running = [config for config in running if to_best[config].high >= 1 - MATTERS]
    return ratios


def _relative(ratios: Sequence[float], best: Sequence[float]) -> Interval:
    """Return the ratio of a setting to the best one over the same rounds, in which noise of the control cancels."""
    return ratio_interval([ratio / best_ratio for ratio, best_ratio in zip(ratios, best, strict=True)])


def strongest(scores: Mapping[AioConfig, float], control: AioConfig, count: int = MOST_FINALISTS) -> list[AioConfig]:
    """Return `count` finalists: half with the highest scores, half the cheapest of those with nearly as high scores.

    A score is a single measurement, so the highest are partly luck; the cheapest of many equal settings are the same in
    each sweep. The control is omitted, as it is measured in every round.
    """
    ranked = sorted((config for config in scores if config != control), key=lambda config: -scores[config])
    near = [config for config in ranked if scores[config] >= scores[ranked[0]] * _NEAR]
    cheap = sorted(near, key=lambda config: (config.bytes_in_flight, config.thread_count, config.queue_depth))
    by_score, by_cost = ranked[: count - count // 2], cheap[: count // 2]
    return list(dict.fromkeys([*by_score, *by_cost, *ranked]))[:count]


def chunks(configs: Sequence[AioConfig], count: int) -> Iterator[list[AioConfig]]:
    """Yield the settings in lists of at most `count`."""
    for at in range(0, len(configs), count):
        yield list(configs[at : at + count])
