"""Which setting to take: the cheapest of those that cannot be told from the fastest, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dsexplore.aio.aio_config import AioConfig
from dsexplore.aio.statistics import Interval, ratio_interval

TIED = 0.005
"""Settings this close to the best count as equal to it, however sure the difference is."""
TIED_IF_UNSURE = 0.01
"""Settings whose interval reaches the best count as equal to it only within this distance."""


@dataclass(frozen=True)
class Best:
    """The setting to take, and how sure that is."""

    config: AioConfig
    ratio: Interval
    """Its rate relative to the default's, both measured in the same rounds."""
    rate: float
    """Bytes per second, for the user's mix of reads and writes."""
    fastest: AioConfig
    """The setting with the highest mean; `config` is the cheapest of those that cannot be told from it."""
    tied: tuple[AioConfig, ...]
    default_ratio: Interval
    """The default relative to the fastest."""

    def sentence(self, within: float = 0.03) -> str:
        """What to do, in one sentence."""
        gap = 1 - self.default_ratio.value
        if self.fastest == AioConfig():
            return "The default is the fastest setting found: nothing to gain."
        if self.config == AioConfig() or gap <= within:
            gain = "nothing to gain" if self.config == AioConfig() else f"little to gain by {self.config}"
            return f"The default is already within {gap * 100:.1f} % of the best setting found: {gain}."
        gain = f"{(self.ratio.value - 1) * 100:+.1f} %"
        if self.ratio.n < 2:
            return f"Take {self.config}: {gain} over the default, measured once."
        span = f"n {self.ratio.n}"
        if self.ratio.tells:
            span = f"{(self.ratio.low - 1) * 100:+.1f} to {(self.ratio.high - 1) * 100:+.1f} %"
        if self.ratio.low <= 1:
            return (
                f"{self.config} looks best: {gain} over the default ({span}), but the rates scatter too much to be "
                "sure: sweep again with more seconds, or on a quieter machine."
            )
        return f"Take {self.config}: {gain} over the default ({span})."


def tied_with_best(rounds: Mapping[AioConfig, Mapping[int, float]]) -> list[AioConfig]:
    """The settings that cannot be told from the best, the cheapest first.

    Cheap is fewer threads, then less memory in flight, then fewer requests in flight.

    Args:
        rounds: the ratio to the control of each setting in each round that it took part in.
    """
    means = {config: ratio_interval(list(ratios.values())).value for config, ratios in rounds.items() if ratios}
    best = max(means, key=lambda config: means[config])
    tied = [config for config in means if config == best or _is_tied(rounds[config], rounds[best])]
    return sorted(tied, key=cost)


def cost(config: AioConfig) -> tuple[int, int, int, bool, bool]:
    """What a setting takes of the machine, to be compared: the smaller, the cheaper."""
    return (
        config.thread_count,
        config.bytes_in_flight,
        config.queue_depth,
        config.single_submit,
        not config.overlap_events,
    )


def _is_tied(ratios: Mapping[int, float], best: Mapping[int, float]) -> bool:
    difference = paired(ratios, best)
    if difference is None:
        return False
    return difference.value > 1 - TIED or (difference.high >= 1 and difference.value > 1 - TIED_IF_UNSURE)


def paired(ratios: Mapping[int, float], best: Mapping[int, float]) -> Interval | None:
    """One setting relative to another, from the rounds that they share; None if there is none."""
    shared = [ratios[number] / best[number] for number in ratios if number in best]
    return ratio_interval(shared) if shared else None
