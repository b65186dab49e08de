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
from dsexplore._internal.aio.sweeps.references import Reference
from dsexplore._internal.aio.sweeps.statistics import median, ratio_interval

Mode = Literal["tensor", "ring"]
"""``tensor``: each request has its own place in a large buffer, as with DeepSpeed. ``ring``: depth × block bytes per
thread are used again and again, as with fio."""
Operation = Literal["read", "write"]
Rounds = dict[AioConfig, dict[int, float]]
"""{setting: {round: rate relative to the control}}."""
Phase = Literal["descent", "grid", "finals"]
"""``descent``: along one axis at a time; ``grid``: every setting; ``finals``: the fastest settings, repeatedly."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Measurement of one setting in one direction."""

    operation: Operation
    config: AioConfig
    bytes: int
    """Bytes that were moved."""
    seconds: float
    """Seconds in which they were moved."""
    cpu_seconds: float
    """Seconds of processor time, all threads together."""
    fsync_seconds: float
    """Seconds of the fsync after the writes; 0 for reads."""
    p50: float
    """Median of the requests' seconds."""
    p95: float
    """95th percentile of the requests' seconds."""
    p99: float
    """99th percentile of the requests' seconds."""
    longest: float
    """Seconds of the slowest request."""
    transfer: int = 0
    """Bytes of each tensor; 0 if an older sweep did not record them."""

    @property
    def rate(self) -> float:
        """Bytes per second, without fsync."""
        return self.bytes / self.seconds

    @property
    def durable_rate(self) -> float:
        """Bytes per second, with fsync."""
        return self.bytes / (self.seconds + self.fsync_seconds)

    @property
    def cpu_ms_per_gib(self) -> float:
        """Milliseconds of processor time, all threads together, per GiB moved."""
        return self.cpu_seconds * 1e3 * 2**30 / self.bytes


@dataclass(frozen=True, slots=True)
class RoundSlice:
    """A measured slice and the round that it belongs to; every round includes the control."""

    phase: Phase
    """How its setting was chosen; if there are finals, only they decide."""
    round: int
    """Number of the round, from 1."""
    sample: Sample
    """The measurement."""


def mix(rates: Mapping[str, float], read_share: float) -> float:
    """Return the bytes per second if `read_share` of the bytes are read and the rest written, one after the other.

    Example: ``mix({"read": 3e9, "write": 1e9}, 0.5)`` is 1.5e9. The rate of a single direction is returned unchanged.
    """
    if len(rates) < 2:
        return next(iter(rates.values()))
    return 1 / (read_share / rates["read"] + (1 - read_share) / rates["write"])


def operation_ratios(measured: Sequence[RoundSlice], control: AioConfig, operation: str) -> Rounds:
    """Return the rate of each setting relative to the control's in the same round, in one direction."""
    return mixed_ratios([m for m in measured if m.sample.operation == operation], control, read_share=1.0)


def mixed_ratios(measured: Sequence[RoundSlice], control: AioConfig, read_share: float) -> Rounds:
    """Return the mixed rate of each setting relative to the control's in the same round.

    It is the geometric mean over the tensor sizes. Rounds that lack a tensor size or a direction are omitted.
    """
    ratios_by_size = [_ratios(slices, control, read_share) for slices in by_transfer(measured).values()]
    mixed: Rounds = defaultdict(dict)
    if not ratios_by_size:
        return {}
    for config, ratios in ratios_by_size[0].items():
        for number in ratios:
            at_each_size = [by_config.get(config, {}).get(number) for by_config in ratios_by_size]
            measured_ratios = [ratio for ratio in at_each_size if ratio is not None]
            if len(measured_ratios) == len(ratios_by_size):
                mixed[config][number] = ratio_interval(measured_ratios).value
    return dict(mixed)


def lowest_ratios(measured: Sequence[RoundSlice], control: AioConfig, read_share: float) -> dict[AioConfig, float]:
    """Return the mean ratio of each setting to the control at the tensor size where it is lowest."""
    lowest: dict[AioConfig, float] = {}
    for slices in by_transfer(measured).values():
        for config, ratios in _ratios(slices, control, read_share).items():
            mean = ratio_interval(list(ratios.values())).value
            lowest[config] = min(mean, lowest.get(config, mean))
    return lowest


def mixed_rate(measured: Sequence[RoundSlice], read_share: float) -> float:
    """Return the median bytes per second of one setting for a mix of reads and writes.

    It is the geometric mean over the tensor sizes.
    """
    mixed_rates = []
    for slices in by_transfer(measured).values():
        by_operation: dict[str, list[float]] = defaultdict(list)
        for m in slices:
            by_operation[m.sample.operation].append(m.sample.rate)
        mixed_rates.append(mix({operation: median(rates) for operation, rates in by_operation.items()}, read_share))
    return ratio_interval(mixed_rates).value


def by_transfer(measured: Iterable[RoundSlice]) -> dict[int, list[RoundSlice]]:
    """Return the slices of each tensor size, the smallest first."""
    groups: dict[int, list[RoundSlice]] = defaultdict(list)
    for m in measured:
        groups[m.sample.transfer].append(m)
    return dict(sorted(groups.items()))


def _ratios(measured: Sequence[RoundSlice], control: AioConfig, read_share: float) -> Rounds:
    """Return the mixed rate of each setting relative to the control's, at one tensor size, for complete rounds."""
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
    """Name of the engine."""
    unavailable: dict[str, str]
    """{engine, program or measurement: why it could not run}."""
    mode: str
    """``tensor`` or ``ring``, see `Mode`."""
    write_mode: str
    """``overwrite``, ``fresh`` or ``fallocated``; ``none`` for a file that is only read."""
    size: int
    """Bytes of the file that were used."""
    read_share: float
    """Fraction of the user's traffic that is reads, 0 to 1."""
    seconds: float | None
    """Seconds that the sweep was given; None for a full grid."""
    slice_seconds: float
    """Seconds of a slice."""
    huge_share: float | None
    """Fraction of the tensors' memory on huge pages; None if unknown, or in ring mode."""
    cached_share: float | None
    """Fraction of the file in the page cache when reading began; None if unknown."""
    system: str
    """Operating system, and number of processors."""
    started: str
    """Time at which the sweep began, in ISO 8601."""
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
    """A sentence on what was omitted because the disk is slow; empty if nothing was."""
    loop: str = "Python"
    """Language of the loop that kept the queues full: ``C``, or ``Python`` with the reason. Older sweeps had only
    Python."""


@dataclass(frozen=True)
class Measurements:
    """Every slice that a sweep measured, on which disk, and how."""

    disk: Disk
    """Disk that was measured."""
    conditions: Conditions
    """How it was measured."""
    measured: tuple[RoundSlice, ...]
    """Slices, in the order of measurement."""
    references: tuple[Reference, ...] = ()
    """Rates of other programs and kinds of memory."""
    control: AioConfig = field(default_factory=AioConfig)
    """Setting to which ratios are relative: the default."""
    bytes_written: int = 0
    """Bytes that the sweep wrote to the disk, which count against the drive's endurance."""
    elapsed: float = 0.0
    """Seconds that the sweep took."""
    interrupted: bool = False
    """True if Ctrl-C ended the sweep."""
    unfinished_round: int | None = None
    """Number of the round that was interrupted by Ctrl-C; None if none was."""
    spent: bool = False
    """True if the sweep ended because it reached its limit of bytes to write."""

    @property
    def operations(self) -> list[str]:
        """Measured directions: ``read``, ``write`` or both."""
        return [op for op in ("read", "write") if any(m.sample.operation == op for m in self.measured)]

    @property
    def deciding(self) -> tuple[RoundSlice, ...]:
        """Slices that decide: those of the finished rounds of the finals, or all if there are none."""
        finals = tuple(m for m in self.measured if m.phase == "finals" and m.round != self.unfinished_round)
        return finals or self.measured

    @cached_property
    def rounds(self) -> Rounds:
        """Mixed rate of each setting relative to the control's, in each deciding round."""
        return mixed_ratios(self.deciding, self.control, self.conditions.read_share)

    def mixed_rate(self, config: AioConfig) -> float:
        """Return the median bytes per second of one setting for the user's mix of reads and writes."""
        return mixed_rate([m for m in self.deciding if m.sample.config == config], self.conditions.read_share)
