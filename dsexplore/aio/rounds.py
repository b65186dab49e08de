"""From slices to ratios: each setting beside the control of its own round, so that a drifting machine meets both."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from dsexplore.aio.aio_config import AioConfig
from dsexplore.aio.measure import Sample

Rounds = dict[AioConfig, dict[int, float]]
"""The ratio to the control of each setting in each round that it took part in."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One slice, with the round it belongs to; every round has the control in it."""

    phase: str
    """``descent``, ``grid`` or ``finals``: only finals decide, if there are any."""
    round: int
    sample: Sample


def mix(rates: Mapping[str, float], read_share: float) -> float:
    """Bytes per second when ``read_share`` of the bytes are read and the rest written, one after the other.

    ``mix({"read": 3e9, "write": 1e9}, 0.5)`` is 1.5e9. With one direction measured, it is that one's rate.
    """
    if len(rates) < 2:
        return next(iter(rates.values()))
    return 1 / (read_share / rates["read"] + (1 - read_share) / rates["write"])


def operation_ratios(measured: list[Measured], control: AioConfig, operation: str) -> Rounds:
    """The rate of each setting relative to the control's in the same round, in one direction."""
    return _ratios([m for m in measured if m.sample.operation == operation], control, 1.0)


def mixed_ratios(measured: list[Measured], control: AioConfig, read_share: float) -> Rounds:
    """The mixed rate of each setting relative to the control's in the same round, of rounds that are complete."""
    return _ratios(measured, control, read_share)


def _ratios(measured: list[Measured], control: AioConfig, read_share: float) -> Rounds:
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
