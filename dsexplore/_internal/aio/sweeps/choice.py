"""Recommend a setting: the cheapest of those as fast as the fastest, if it is surely better than the default."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from dsexplore._internal.aio.aio_config import AioConfig
from dsexplore._internal.aio.sweeps.measurements import Measurements, Rounds, lowest_ratios
from dsexplore._internal.aio.sweeps.references import slower_elsewhere
from dsexplore._internal.aio.sweeps.statistics import MATTERS, Interval, median, ratio_interval
from dsexplore._internal.errors import UsageError
from dsexplore._internal.units import format_share

_SURE_GAIN = 0.5
"""Fraction of the mean gain that the low end of its interval must reach: +39 % (+8 to +79 %) is rejected."""
_LOWEST_RATIO = 0.98
"""Ratio to the default that a recommended setting must reach at each tensor size."""
_COST_STEP = 1.25
"""Ratio within which latencies and processor times count as equal, since they vary between sweeps."""
_MIN_DATA_SHARE = 0.95
"""Fraction of a file that must hold data; otherwise its rates are not the disk's."""

RatiosByRound = Mapping[AioConfig, Mapping[int, float]]
"""{setting: {round: rate relative to the default}}."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Resources of the machine that a setting used while it was measured."""

    latency: float
    """99th percentile of the requests' seconds."""
    cpu_ms_per_gib: float
    """Milliseconds of processor time per GiB."""


@dataclass(frozen=True)
class Best:
    """The recommended setting, and how certain that is."""

    config: AioConfig
    """Recommended setting: the default, unless another setting is surely better."""
    ratio: Interval
    """Its rate relative to the default's, both measured in the same rounds."""
    rate: float
    """Its bytes per second, for the user's mix of reads and writes."""
    fastest: AioConfig
    """Setting with the highest mean ratio."""
    fastest_ratio: Interval
    """Rate of the fastest setting relative to the default's."""
    tied: tuple[AioConfig, ...]
    """Settings that are less than 5 % slower than the fastest, the cheapest first."""
    default_ratio: Interval
    """Rate of the default relative to the fastest setting's."""
    doubts: tuple[str, ...] = ()
    """Reasons to keep the default although another setting looked faster."""

    def verdict(self) -> str:
        """Return the advice in one or two sentences."""
        if self.doubts:
            looked = "" if self.fastest_ratio.value <= 1 else f" {self.fastest} looked faster, but may not be."
            return f"Keep the default: {'; '.join(self.doubts)}.{looked}"
        if self.fastest_ratio.value <= 1:
            return "The default is the fastest setting found: nothing to gain."
        if self.config != AioConfig():
            return f"Take {self.config}: {_gain(self.ratio.value)} over the default ({_gain_range(self.ratio)})."
        if self.fastest_ratio.value < 1 + MATTERS:
            gap = (1 - self.default_ratio.value) * 100
            return f"The default is already within {gap:.1f} % of the best setting found: nothing to gain."
        span = _gain_range(self.fastest_ratio) if self.fastest_ratio.is_narrow else f"n {self.fastest_ratio.n}"
        return (
            f"Keep the default: nothing measured is reliably faster. {self.fastest} looks best, "
            f"{_gain(self.fastest_ratio.value)} ({span}): sweep again with more seconds, or on a quieter machine."
        )


def _gain(ratio: float) -> str:
    """Return a ratio to the default as a gain: ``"+3.1 %"``."""
    return f"{(ratio - 1) * 100:+.1f} %"


def _gain_range(ratio: Interval) -> str:
    """Return the interval of a ratio as gains: ``"+1.2 to +5.0 %"``."""
    return f"{(ratio.low - 1) * 100:+.1f} to {_gain(ratio.high)}"


def recommend(result: Measurements) -> Best:
    """Return the cheapest setting tied with the fastest, or the default unless that setting is surely better.

    Raises:
        UsageError: no setting was measured beside the default.
    """
    rounds = contenders(result)
    if not rounds:
        raise UsageError("the sweep ended before any setting was compared with the default: run it for longer")
    control = result.control
    costs = {setting: _cost(result, setting) for setting in rounds}
    lowest = lowest_ratios(result.deciding, control, result.conditions.read_share)
    choice = choose(rounds, control, costs, lowest)
    slower = slower_elsewhere(result.references, result.operations, choice.config, control)
    doubts = (*_disk_doubts(result), *(doubt for doubt in (choice.doubt, slower) if doubt))
    config = control if doubts else choice.config
    means = {setting: ratio_interval(list(ratios.values())) for setting, ratios in rounds.items()}
    fastest = max(means, key=lambda config: means[config].value)
    default = paired(rounds[control], rounds[fastest])
    assert default is not None  # every round has the control
    return Best(
        config=config,
        ratio=means[config],
        rate=result.mixed_rate(config),
        fastest=fastest,
        fastest_ratio=means[fastest],
        tied=choice.tied,
        default_ratio=default,
        doubts=doubts,
    )


def contenders(result: Measurements) -> Rounds:
    """Return the ratios of the settings that were measured in the last round of the finals; without finals, of all.

    Settings that were dropped earlier were measured under other conditions.
    """
    numbers = {number for ratios in result.rounds.values() for number in ratios}
    if not numbers or result.deciding[0].phase != "finals":
        return result.rounds
    return {config: ratios for config, ratios in result.rounds.items() if max(numbers) in ratios}


def _cost(result: Measurements, config: AioConfig) -> Cost:
    """Return the median resources that a setting used in the deciding slices."""
    samples = [measured.sample for measured in result.deciding if measured.sample.config == config]
    latency = median([sample.p99 for sample in samples])
    return Cost(latency, cpu_ms_per_gib=median([sample.cpu_ms_per_gib for sample in samples]))


def _disk_doubts(result: Measurements) -> Iterator[str]:
    """Yield reasons why the measured rates may not be the disk's."""
    disk, data_share = result.disk, result.conditions.data_share
    if disk.kind == "memory":
        yield "these files live in memory, so no disk was measured"
    elif not disk.direct:
        yield f"the page cache was measured, not the disk, since {disk.why_buffered}"
    if disk.kind == "loop":
        yield f"{disk.device} is a loop device, whose data may come from the page cache: sweep where its file lies"
    if data_share < _MIN_DATA_SHARE:
        yield (
            f"{format_share(1 - data_share, 1)} of the file are holes or compressed, for which no disk is asked: "
            "sweep a file full of data, or a directory"
        )


class Choice(NamedTuple):
    """A setting chosen by its ratios alone."""

    config: AioConfig
    tied: tuple[AioConfig, ...]
    """Settings tied with the fastest, the cheapest first."""
    doubt: str
    """Why the default is kept although another setting looked faster; empty if there is no such reason."""


def choose(
    rounds: RatiosByRound,
    control: AioConfig,
    costs: Mapping[AioConfig, Cost],
    lowest: Mapping[AioConfig, float],
) -> Choice:
    """Choose the cheapest setting tied with the fastest, or the default unless that setting is surely better.

    Args:
        rounds: ratios of each setting to the default, by round.
        control: the default setting.
        costs: resources that each setting used.
        lowest: lowest mean ratio of each setting to the default at any tensor size.
    """
    means = {config: ratio_interval(list(ratios.values())) for config, ratios in rounds.items()}
    tied = tied_with_best(rounds, costs)
    sure = [config for config in tied if _is_sure(means[config])]
    better = [config for config in sure if means[config].value >= 1 + MATTERS]
    better_at_each_size = [config for config in better if lowest[config] >= _LOWEST_RATIO]
    if better_at_each_size:
        return Choice(better_at_each_size[0], tied, doubt="")
    fastest = max(means, key=lambda config: means[config].value)
    doubt = ""
    if means[fastest].n < 2:
        doubt = "each setting was measured only once, so give the sweep more seconds"
    elif better:
        slower = (1 - lowest[better[0]]) * 100
        doubt = f"{better[0]} is faster on average, but {slower:.1f} % slower at one of the tensor sizes"
    return Choice(control, tied, doubt)


def _is_sure(ratio: Interval) -> bool:
    """Return True if a setting is faster than the default at the low end of the interval, and by enough of the gain."""
    return ratio.n > 1 and ratio.low > 1 and ratio.low - 1 >= _SURE_GAIN * (ratio.value - 1)


def tied_with_best(rounds: RatiosByRound, costs: Mapping[AioConfig, Cost]) -> tuple[AioConfig, ...]:
    """Return the settings less than 5 % slower than the fastest in the rounds that they share, the cheapest first."""
    means = {config: ratio_interval(list(ratios.values())).value for config, ratios in rounds.items()}
    best = max(means, key=lambda config: means[config])
    tied = []
    for config in means:
        ratio = paired(rounds[config], rounds[best])
        if ratio is not None and ratio.value > 1 - MATTERS:
            tied.append(config)
    return tuple(sorted(tied, key=lambda config: expense(config, costs[config])))


def expense(config: AioConfig, cost: Cost) -> tuple[int | bool, ...]:
    """Return the cost of a setting as a sort key: bytes in flight, latency, processor time, threads, other options."""
    return (
        config.bytes_in_flight,
        _step(cost.latency),
        _step(cost.cpu_ms_per_gib),
        config.thread_count,
        config.queue_depth,
        config.single_submit,
        not config.overlap_events,
    )


def _step(cost: float) -> int:
    """Return a cost in steps of `_COST_STEP`, so that nearly equal costs are equal."""
    return round(math.log(max(cost, 1e-9), _COST_STEP))


def paired(ratios: Mapping[int, float], best: Mapping[int, float]) -> Interval | None:
    """Return the ratio of a setting to another one over the rounds that they share; None if they share none."""
    shared = [ratios[number] / best[number] for number in ratios if number in best]
    return ratio_interval(shared) if shared else None
