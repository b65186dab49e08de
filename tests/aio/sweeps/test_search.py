"""Search for settings on disks that are formulas."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsexplore._internal.aio.aio_config import AioConfig
from dsexplore._internal.aio.sweeps import search
from dsexplore._internal.aio.sweeps.choice import Cost, tied_with_best
from dsexplore._internal.aio.sweeps.statistics import Interval, median, quantile, ratio_interval
from dsexplore._internal.errors import UsageError

CONTROL = AioConfig()


class Disk:
    """Saturating in depth, peaked in block size, with noise; counts how often it is asked."""

    def __init__(self, knee: float, peak: int, thread_gain: float, noise: float, seed: int = 0) -> None:
        self.knee, self.peak, self.thread_gain, self.noise = knee, peak, thread_gain, noise
        self.random = random.Random(seed)
        self.asked = 0

    def true(self, config: AioConfig) -> float:
        in_flight = config.queue_depth * config.thread_count * config.block_size / (1 << 20)
        depth = in_flight / (in_flight + self.knee)
        block = math.exp(-((math.log2(config.block_size / self.peak) / 8) ** 2))
        threads = 1 + self.thread_gain * (config.thread_count - 1)
        return depth * block * threads * (1 if config.overlap_events else 0.9) * (0.98 if config.single_submit else 1)

    def measure(self, configs: Sequence[AioConfig]) -> dict[AioConfig, float]:
        self.asked += len(configs)
        rates = {c: self.true(c) * math.exp(self.random.gauss(0, self.noise)) for c in [CONTROL, *configs]}
        return {config: rate / rates[CONTROL] for config, rate in rates.items()}


def anything(_: AioConfig) -> bool:
    return True


@settings(deadline=None, max_examples=40)
@given(
    knee=st.floats(0.5, 30),
    peak=st.sampled_from([1 << 18, 1 << 20, 1 << 22]),
    gain=st.floats(-0.2, 0.3),
    seed=st.integers(0, 100),
)
def test_descent_and_finals_come_close_to_the_best_of_the_grid(knee: float, peak: int, gain: float, seed: int) -> None:
    disk = Disk(knee, peak, gain, 0.01, seed)
    scores = search.descend(CONTROL, search.AXES, disk.measure, lambda: disk.asked < 120, anything)
    ratios = search.finals(search.strongest(scores, CONTROL), disk.measure, lambda: disk.asked < 400, random.Random(1))
    rounds = {config: dict(enumerate(values)) for config, values in ratios.items()}
    chosen = tied_with_best(rounds, {config: Cost(1e-3, 10.0) for config in rounds})[0]
    best = max(disk.true(config) for config in search.grid(search.AXES, anything))
    assert disk.true(chosen) / best > 0.88  # at most 5 % are given away for the cheapest


def test_descent_asks_little_and_stops_when_nothing_improves() -> None:
    disk = Disk(4, 1 << 20, 0.1, 0.0)
    scores = search.descend(CONTROL, search.AXES, disk.measure, lambda: True, anything)
    winner = max(scores, key=lambda config: scores[config])
    best = max(search.grid(search.AXES, anything), key=disk.true)
    assert disk.true(winner) == pytest.approx(disk.true(best), rel=0.01)
    assert disk.asked < len(search.grid(search.AXES, anything)) / 5


def test_descent_measures_one_axis_however_short_the_time() -> None:
    disk = Disk(4, 1 << 20, 0.1, 0.0)
    scores = search.descend(CONTROL, search.AXES, disk.measure, lambda: False, anything)
    assert scores.keys() == {CONTROL.with_(queue_depth=depth) for depth in search.AXES["queue_depth"]}


def test_half_of_the_strongest_are_fast_and_the_others_cheap_then_fast_again() -> None:
    ranked = [CONTROL.with_(queue_depth=depth) for depth in (1, 128, 64, 2, 4)]
    scores = {config: 1.01 - place / 1000 for place, config in enumerate(ranked)} | {CONTROL: 2.0}
    assert [config.queue_depth for config in search.strongest(scores, CONTROL, 4)] == [1, 128, 2, 64]
    assert [config.queue_depth for config in search.strongest(scores, CONTROL, 3)] == [1, 128, 64]


def test_descent_without_a_choice_measures_its_start() -> None:
    disk, only = Disk(4, 1 << 20, 0.1, 0.0), AioConfig(queue_depth=32, thread_count=2)
    axes = {key: (getattr(only, key),) for key in search.AXES}
    scores = search.descend(only, axes, disk.measure, lambda: True, anything)
    assert scores[only] == pytest.approx(disk.true(only) / disk.true(CONTROL))
    assert set(scores) <= {only, CONTROL}


def test_settings_that_do_not_fit_are_never_measured() -> None:
    disk = Disk(40, 1 << 22, 0.3, 0.0)

    def fits(config: AioConfig) -> bool:
        return config.bytes_in_flight <= 16 << 20

    scores = search.descend(CONTROL, search.AXES, disk.measure, lambda: True, fits)
    assert scores
    assert all(fits(config) for config in scores)
    assert all(fits(config) for config in search.grid(search.AXES, fits))


def test_large_blocks_are_tried_where_a_large_depth_was_lucky() -> None:
    """A disk with a limit of requests per second: depth changes nothing, and the rate is proportional to the block."""

    def measure(configs: Sequence[AioConfig]) -> dict[AioConfig, float]:
        luck = 1.03 if len({config.block_size for config in configs}) == 1 else 1.0
        return {c: c.block_size / CONTROL.block_size * (luck if c.queue_depth == 64 else 1.0) for c in configs}

    scores = search.descend(
        CONTROL, search.AXES, measure, lambda: True, lambda config: search.fills_queues(config, 512 << 20)
    )
    winner = max(scores, key=lambda config: scores[config])
    assert winner.block_size == max(search.AXES["block_size"])
    assert all(search.fills_queues(config, 512 << 20) for config in scores)


def test_finals_end_when_intervals_are_narrow_and_drop_the_surely_worse() -> None:
    disk = Disk(4, 1 << 20, 0.0, 0.002)
    good, bad = AioConfig(queue_depth=64), AioConfig(queue_depth=1)
    ratios = search.finals([good, bad], disk.measure, lambda: disk.asked < 1000, random.Random(0), width=0.004)
    assert disk.asked < 1000
    assert len(ratios[bad]) < len(ratios[good])
    assert len(ratios[bad]) >= 2


def test_two_rounds_give_up_only_what_is_far_behind() -> None:
    """Drop a setting that is 11 % behind after two rounds, and keep one that is 9 % behind."""
    best, near, far = (AioConfig(queue_depth=depth) for depth in (64, 32, 16))
    rates = {best: 1.0, near: 0.91, far: 0.89}
    rounds: list[list[AioConfig]] = []

    def measure(configs: Sequence[AioConfig]) -> dict[AioConfig, float]:
        rounds.append(sorted(configs, key=lambda config: -config.queue_depth))
        return {config: rates[config] for config in configs}

    search.finals([best, near, far], measure, lambda: len(rounds) < 3, random.Random(0), width=0.0)
    assert rounds == [[best, near, far], [best, near, far], [best, near]]


def test_half_of_the_finalists_are_the_cheapest_of_the_near() -> None:
    scores = {AioConfig(queue_depth=depth): 1.0 + depth / 1000 for depth in range(1, 65)}
    depths = [config.queue_depth for config in search.strongest(scores, CONTROL)]
    assert depths == [64, 63, 62, 1, 2, 3]
    scores[AioConfig(queue_depth=1)] = 0.9  # too far behind the highest
    assert [config.queue_depth for config in search.strongest(scores, CONTROL)][3:] == [2, 3, 4]
    assert [config.queue_depth for config in search.strongest(scores, CONTROL, 1)] == [64]
    assert [config.queue_depth for config in search.strongest(scores, CONTROL, 3)] == [64, 63, 2]
    few = {CONTROL: 2.0, AioConfig(queue_depth=2): 1.0, AioConfig(queue_depth=4): 0.5}
    assert [config.queue_depth for config in search.strongest(few, CONTROL)] == [2, 4]


def test_finals_keep_what_may_be_tied() -> None:
    disk = Disk(4, 1 << 20, 0.0, 0.002)
    good, *others = (AioConfig(queue_depth=depth) for depth in range(64, 0, -1))
    near = [config for config in others if disk.true(config) > 0.96 * disk.true(good)][-1]
    ratios = search.finals([good, near], disk.measure, lambda: disk.asked < 60, random.Random(0), width=0.0)
    assert len(ratios[near]) == len(ratios[good]) > 10


def test_axes() -> None:
    assert search.checked_axes({"queue_depth": [4, 8, 4]})["queue_depth"] == (4, 8)
    assert search.checked_axes({"thread_count": 2})["thread_count"] == (2,)
    powers = search.checked_axes({"queue_depth": 2 ** np.arange(3)})["queue_depth"]
    assert [(value, type(value)) for value in powers] == [(1, int), (2, int), (4, int)]
    assert len(search.grid(search.checked_axes({"queue_depth": [4, 8]}), anything)) == 2 * 3 * 7 * 2 * 2
    with pytest.raises(UsageError, match="axis 'depth' is unknown: sweep over queue_depth"):
        search.checked_axes({"depth": [1]})
    with pytest.raises(UsageError, match="'queue_depth' has no values"):
        search.checked_axes({"queue_depth": []})
    with pytest.raises(UsageError, match="block_size 1000 is not a multiple"):
        search.checked_axes({"block_size": [1000]})


def test_ratio_interval() -> None:
    assert ratio_interval([2.0]) == Interval(2.0, 0.0, math.inf, 1)
    assert ratio_interval([2.0, 2.0]).width == pytest.approx(0)
    narrow = ratio_interval([1.0, 1.1, 0.9, 1.05, 0.95] * 4)
    wide = ratio_interval([1.0, 1.1, 0.9, 1.05, 0.95])
    assert wide.low < narrow.low < narrow.value < narrow.high < wide.high
    assert str(ratio_interval([2.0, 2.0])) == "2.000 (2.000–2.000, n 2)"
    with pytest.raises(ValueError, match="at least one"):
        ratio_interval([])


def test_ratio_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    generator = random.Random(3)
    samples = ([math.exp(generator.gauss(0.1, 0.2)) for _ in range(6)] for _ in range(2000))
    covered = sum(interval.low <= math.exp(0.1) <= interval.high for interval in map(ratio_interval, samples))
    assert 0.93 < covered / 2000 < 0.97


def test_median_and_quantile() -> None:
    assert (median([3, 1, 2]), median([4, 1, 2, 3])) == (2, 2.5)
    ordered = [float(i) for i in range(100)]
    assert (quantile(ordered, 0.5), quantile(ordered, 0.99), quantile([7.0], 0.95)) == (50, 99, 7)


def test_an_interval_that_says_nothing_is_not_spelt_out() -> None:
    assert str(Interval(3.148, 1e-5, 1.2e6, 2)) == "3.148 (n 2, scatters too much)"
    assert str(Interval(1.02, 0.98, 1.07, 5)) == "1.020 (0.980–1.070, n 5)"


def test_descent_measures_no_axis_that_has_one_value() -> None:
    disk, asked = Disk(4, 1 << 20, 0.1, 0.0), list[int]()

    def measure(configs: Sequence[AioConfig]) -> dict[AioConfig, float]:
        asked.append(len(configs))
        return disk.measure(configs)

    axes = {"queue_depth": (8,), "block_size": (1 << 18, 1 << 20), "thread_count": (1,)}
    search.descend(CONTROL.with_(queue_depth=8, thread_count=1), axes, measure, lambda: True, anything)
    assert set(asked) == {2}
