"""Convert slices to ratios: each setting relative to the control in its own round, so that drift affects both."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from dsexplore._internal.aio.aio_config import AioConfig
from dsexplore._internal.aio.sweeps.measure import Sample
from dsexplore._internal.aio.sweeps.statistics import median, ratio_interval

Rounds = dict[AioConfig, dict[int, float]]
"""{setting: {round: rate relative to the control}}."""
Phase = Literal["descent", "grid", "finals"]
"""``descent``: along one axis at a time; ``grid``: every setting; ``finals``: the strongest, again and again."""


@dataclass(frozen=True, slots=True)
class RoundSlice:
    """One slice and the round it belongs to; every round includes the control."""

    phase: Phase
    """How its setting was chosen: only finals decide, if there are any."""
    round: int
    sample: Sample


def mix(rates: Mapping[str, float], read_share: float) -> float:
    """Return the bytes per second if `read_share` of the bytes are read and the rest written, one after the other.

    ``mix({"read": 3e9, "write": 1e9}, 0.5)`` is 1.5e9. If one direction was measured, its rate is returned.
    """
    if len(rates) < 2:
        return next(iter(rates.values()))
    return 1 / (read_share / rates["read"] + (1 - read_share) / rates["write"])


def operation_ratios(measured: Sequence[RoundSlice], control: AioConfig, operation: str) -> Rounds:
    """Return the rate of each setting relative to the control's in the same round, in one direction."""
    return mixed_ratios([m for m in measured if m.sample.operation == operation], control, 1.0)


def mixed_ratios(measured: Sequence[RoundSlice], control: AioConfig, read_share: float) -> Rounds:
    """Return the mixed rate of each setting relative to the control's in the same round, for complete rounds.

    For several tensor sizes, it is the geometric mean over the sizes.
    """
    parts = [_ratios(m, control, read_share) for m in by_transfer(measured).values()]
    mixed: Rounds = defaultdict(dict)
    for config, ratios in parts[0].items() if parts else ():
        for number in ratios:
            if all(number in part.get(config, {}) for part in parts):
                mixed[config][number] = ratio_interval([part[config][number] for part in parts]).value
    return dict(mixed)


def lowest_ratios(measured: Sequence[RoundSlice], control: AioConfig, read_share: float) -> dict[AioConfig, float]:
    """Return the lowest mean ratio of each setting to the control at any one tensor size."""
    lowest: dict[AioConfig, float] = {}
    for part in by_transfer(measured).values():
        for config, ratios in _ratios(part, control, read_share).items():
            mean = ratio_interval(list(ratios.values())).value
            lowest[config] = min(mean, lowest.get(config, mean))
    return lowest


def mixed_rate(measured: Sequence[RoundSlice], read_share: float) -> float:
    """Return the median bytes per second of one setting for a mix of reads and writes.

    For several tensor sizes, it is the geometric mean over the sizes.
    """
    rates = []
    for part in by_transfer(measured).values():
        by_operation: dict[str, list[float]] = defaultdict(list)
        for m in part:
            by_operation[m.sample.operation].append(m.sample.rate)
        rates.append(mix({operation: median(values) for operation, values in by_operation.items()}, read_share))
    return ratio_interval(rates).value


def by_transfer(measured: Iterable[RoundSlice]) -> dict[int, list[RoundSlice]]:
    """Return the slices of each tensor size, the smallest first."""
    groups: dict[int, list[RoundSlice]] = defaultdict(list)
    for m in measured:
        groups[m.sample.transfer].append(m)
    return dict(sorted(groups.items()))


def _ratios(measured: Sequence[RoundSlice], control: AioConfig, read_share: float) -> Rounds:
    rates: dict[tuple[int, AioConfig], dict[str, float]] = defaultdict(dict)
    for m in measured:
        rates[m.round, m.sample.config][m.sample.operation] = m.sample.rate
    directions = {m.sample.operation for m in measured}
    ratios: Rounds = defaultdict(dict)
    for (number, config), by_operation in rates.items():
        base = rates.get((number, control), {})
        if directions == by_operation.keys() == base.keys():
            ratios[config][number] = mix(by_operation, read_share) / mix(base, read_share)
    return dict(ratios)
