"""Choose a setting: the cheapest of those about as fast as the fastest, if it is surely worth leaving the default."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dsexplore._internal.aio.aio_config import AioConfig
from dsexplore._internal.aio.sweeps.measurements import Measurements, Rounds, lowest_ratios
from dsexplore._internal.aio.sweeps.reference_rates import slower_elsewhere
from dsexplore._internal.aio.sweeps.statistics import MATTERS, Interval, median, ratio_interval
from dsexplore._internal.errors import UsageError
from dsexplore._internal.units import format_share

_SURE_PART = 0.5
"""Fraction of the mean gain that the low end of its interval must reach: +39 % (+8 to +79 %) is rejected."""
_HOLDS_UP = 0.98
"""Lowest ratio to the default that a setting must reach at each tensor size."""
_COST_STEP = 1.25
"""Ratio within which latencies and processor times count as equal, since they vary between sweeps."""
_WHOLE = 0.95
"""Fraction of a file that must hold data for its rates to be the disk's."""

RatiosByRound = Mapping[AioConfig, Mapping[int, float]]
"""{setting: {round: rate relative to the default}}."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Resources of the machine that a setting used while it was measured."""

    latency: float
    """Seconds of a request, 99th percentile."""
    cpu_ms_per_gib: float


@dataclass(frozen=True)
class Best:
    """The recommended setting, and how certain that is."""

    config: AioConfig
    """The default, unless another setting is surely worth it."""
    ratio: Interval
    """The setting's rate relative to the default's, both measured in the same rounds."""
    rate: float
    """Bytes per second, for the user's mix of reads and writes."""
    fastest: AioConfig
    """The setting with the highest mean."""
    fastest_ratio: Interval
    """The fastest setting's rate relative to the default's."""
    tied: tuple[AioConfig, ...]
    """The settings that are less than 5 % slower than the fastest, the cheapest first."""
    default_ratio: Interval
    """The default relative to the fastest."""
    doubts: tuple[str, ...] = ()
    """Why the default is kept although another setting looked faster."""

    def verdict(self) -> str:
        """Return the advice in one sentence."""
        gain = f"{(self.fastest_ratio.value - 1) * 100:+.1f} %"
        if self.doubts:
            looked = "" if self.fastest_ratio.value <= 1 else f" {self.fastest} looked faster, but may not be."
            return f"Keep the default: {'; '.join(self.doubts)}.{looked}"
        if self.fastest_ratio.value <= 1:
            return "The default is the fastest setting found: nothing to gain."
        if self.config != AioConfig():
            span = f"{(self.ratio.low - 1) * 100:+.1f} to {(self.ratio.high - 1) * 100:+.1f} %"
            return f"Take {self.config}: {(self.ratio.value - 1) * 100:+.1f} % over the default ({span})."
        if self.fastest_ratio.value < 1 + MATTERS:
            gap = (1 - self.default_ratio.value) * 100
            return f"The default is already within {gap:.1f} % of the best setting found: nothing to gain."
        span = f"n {self.fastest_ratio.n}"
        if self.fastest_ratio.is_narrow:
            span = f"{(self.fastest_ratio.low - 1) * 100:+.1f} to {(self.fastest_ratio.high - 1) * 100:+.1f} %"
        return (
            f"Keep the default: nothing measured is reliably faster. {self.fastest} looks best, {gain} ({span}): "
            "sweep again with more seconds, or on a quieter machine."
        )


def recommend(result: Measurements) -> Best:
    """Return the cheapest setting tied with the fastest, or the default unless that is surely worth it.

    Raises:
        UsageError: no setting was measured beside the default.
    """
    rounds = contenders(result)
    if not rounds:
        raise UsageError("the sweep ended before any setting was compared with the default: run it for longer")
    control = result.control
    costs = {tried: _cost(result, tried) for tried in rounds}
    worst = lowest_ratios(result.deciding, control, result.conditions.read_share)
    config, tied, unsure = choose(rounds, control, costs, worst)
    slower = slower_elsewhere(result.references, result.operations, config, control)
    doubts = (*_disk_doubts(result), *(doubt for doubt in (unsure, slower) if doubt))
    if doubts:
        config = control
    means = {config: ratio_interval(list(ratios.values())) for config, ratios in rounds.items()}
    fastest = max(means, key=lambda config: means[config].value)
    default = paired(rounds[control], rounds[fastest])
    assert default is not None  # every round has the control
    return Best(
        config=config,
        ratio=means[config],
        rate=result.mixed_rate(config),
        fastest=fastest,
        fastest_ratio=means[fastest],
        tied=tied,
        default_ratio=default,
        doubts=doubts,
    )


def contenders(result: Measurements) -> Rounds:
    """Return the rounds of the settings that were measured in the last round of the finals; without finals, of all.

    Settings dropped earlier were measured under other conditions.
    """
    numbers = {number for ratios in result.rounds.values() for number in ratios}
    if not numbers or result.deciding[0].phase != "finals":
        return result.rounds
    return {config: ratios for config, ratios in result.rounds.items() if max(numbers) in ratios}


def _cost(result: Measurements, config: AioConfig) -> Cost:
    samples = [m.sample for m in result.deciding if m.sample.config == config]
    return Cost(median([s.p99 for s in samples]), median([s.cpu_ms_per_gib for s in samples]))


def _disk_doubts(result: Measurements) -> Iterator[str]:
    """Yield reasons why what was measured may not be the disk."""
    disk, data_share = result.disk, result.conditions.data_share
    if disk.kind == "memory":
        yield "these files live in memory, so no disk was measured"
    elif not disk.direct:
        yield f"the page cache was measured, not the disk, since {disk.why_buffered}"
    if disk.kind == "loop":
        yield f"{disk.device} is a loop device, whose data may come from the page cache: sweep where its file lies"
    if data_share < _WHOLE:
        yield (
            f"{format_share(1 - data_share, 1)} of the file are holes or compressed, for which no disk is asked: "
            "sweep a file full of data, or a directory"
        )


def choose(
    rounds: RatiosByRound,
    control: AioConfig,
    costs: Mapping[AioConfig, Cost],
    worst: Mapping[AioConfig, float],
) -> tuple[AioConfig, tuple[AioConfig, ...], str]:
    """Return the recommended setting, those tied with the fastest, and why the default is kept if the fastest fails.

    Args:
        rounds: each setting's ratios to the default by round.
        control: the default setting.
        costs: resources that each setting used.
        worst: each setting's lowest mean ratio to the default at any one tensor size.
    """
    means = {config: ratio_interval(list(ratios.values())) for config, ratios in rounds.items()}
    tied = tied_with_best(rounds, costs)
    sure = [config for config in tied if _is_sure(means[config])]
    worth_it = [config for config in sure if means[config].value >= 1 + MATTERS]
    holding_up = [config for config in worth_it if worst[config] >= _HOLDS_UP]
    if holding_up:
        return holding_up[0], tied, ""
    fastest = max(means, key=lambda config: means[config].value)
    if means[fastest].n < 2:
        return control, tied, "each setting was measured only once, so give the sweep more seconds"
    if worth_it:
        slower = (1 - worst[worth_it[0]]) * 100
        return (
            control,
            tied,
            f"{worth_it[0]} is faster on average, but {slower:.1f} % slower at one of the tensor sizes",
        )
    return control, tied, ""


def _is_sure(ratio: Interval) -> bool:
    return ratio.n > 1 and ratio.low > 1 and ratio.low - 1 >= _SURE_PART * (ratio.value - 1)


def tied_with_best(rounds: RatiosByRound, costs: Mapping[AioConfig, Cost]) -> tuple[AioConfig, ...]:
    """Return the settings less than 5 % slower than the fastest in the rounds that they share, the cheapest first."""
    means = {config: ratio_interval(list(ratios.values())).value for config, ratios in rounds.items()}
    best = max(means, key=lambda config: means[config])
    tied = []
    for config in means:
        behind = paired(rounds[config], rounds[best])
        if behind is not None and behind.value > 1 - MATTERS:
            tied.append(config)
    return tuple(sorted(tied, key=lambda config: expense(config, costs[config])))


def expense(config: AioConfig, cost: Cost) -> tuple[int | bool, ...]:
    """Return a setting's cost as a sort key: bytes in flight, latency, processor time, threads, and further options."""
    return (
        config.bytes_in_flight,
        _step(cost.latency),
        _step(cost.cpu_ms_per_gib),
        config.thread_count,
        config.queue_depth,
        config.single_submit,
        not config.overlap_events,
    )


def _step(value: float) -> int:
    return round(math.log(max(value, 1e-9), _COST_STEP))


def paired(ratios: Mapping[int, float], best: Mapping[int, float]) -> Interval | None:
    """Return one setting relative to another, from the rounds that they share; None if there is none."""
    shared = [ratios[number] / best[number] for number in ratios if number in best]
    return ratio_interval(shared) if shared else None
