"""All that a sweep measured: every slice, the disk, the conditions, and rates relative to the default setting.

Each round measures some settings and the default, the *control*. A setting is compared with the control of its own
round, so that a drifting disk affects both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from dsexplore._internal.aio.aio_config import AioConfig
from dsexplore._internal.aio.disk import Disk
from dsexplore._internal.aio.sweeps.measure import Sample
from dsexplore._internal.aio.sweeps.reference_rates import Reference
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


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions of a sweep."""

    backend: str
    unavailable: dict[str, str]
    """{engine: why it could not run}."""
    mode: str
    write_mode: str
    """``overwrite``, ``fresh`` or ``fallocated``; ``none`` for a file that is only read."""
    size: int
    read_share: float
    """Fraction of the user's traffic that is reads, 0 to 1."""
    seconds: float | None
    slice_seconds: float
    huge_share: float | None
    cached_share: float | None
    """Fraction of the file that was still in the page cache when reading began."""
    system: str
    started: str
    transfers: tuple[int, ...] = ()
    """Bytes of each tensor size that was moved; empty for older sweeps."""
    data_share: float = 1.0
    """Fraction of the file that is read from the disk; the rest is holes or compressed away."""
    processes: int = 1
    """Number of processes that moved tensors at the same time."""
    further_folders: tuple[str, ...] = ()
    """Directories on other disks that were measured together with `SweepResult.disk`."""
    most_written: int | None = None
    """Limit of bytes to write; None for no limit."""
    memory: str = "huge"
    """Pages of the tensors: ``ordinary`` or ``huge``; older sweeps had only huge ones."""
    left_out: str = ""
    """A sentence on what a slow disk left no time for; empty if nothing."""
    loop: str = "Python"
    """What kept the queues full: ``C``, or ``Python`` with the reason; Python takes more time per request than a fast
    disk. Older sweeps had only Python."""


@dataclass(frozen=True)
class Measurements:
    """Every slice that a sweep measured, and where and how."""

    disk: Disk
    conditions: Conditions
    measured: tuple[RoundSlice, ...]
    references: tuple[Reference, ...] = ()
    control: AioConfig = field(default_factory=AioConfig)
    bytes_written: int = 0
    """Bytes that the sweep wrote to the disk, which count against the drive's endurance."""
    elapsed: float = 0.0
    interrupted: bool = False
    """True if Ctrl-C ended the sweep."""
    unfinished_round: int | None = None
    """Number of the round that Ctrl-C interrupted; None if it interrupted none."""
    spent: bool = False
    """True if the sweep ended because it reached its limit of bytes to write."""

    @property
    def operations(self) -> list[str]:
        """``read``, ``write`` or both, as measured."""
        return [op for op in ("read", "write") if any(m.sample.operation == op for m in self.measured)]

    @property
    def deciding(self) -> tuple[RoundSlice, ...]:
        """Slices that decide: the finished rounds of the finals; all slices if there is none."""
        finals = tuple(m for m in self.measured if m.phase == "finals" and m.round != self.unfinished_round)
        return finals or self.measured

    @cached_property
    def rounds(self) -> Rounds:
        """Mixed rate of each setting as a ratio to the control's, in each deciding round."""
        return mixed_ratios(self.deciding, self.control, self.conditions.read_share)

    def mixed_rate(self, config: AioConfig) -> float:
        """Return the median bytes per second of one setting for the user's mix of reads and writes."""
        return mixed_rate([m for m in self.deciding if m.sample.config == config], self.conditions.read_share)
