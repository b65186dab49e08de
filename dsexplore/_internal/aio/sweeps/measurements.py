"""All that a sweep measured, as data: every slice, the disk, and the conditions."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from dsexplore._internal.aio.aio_config import AioConfig
from dsexplore._internal.aio.disk import Disk
from dsexplore._internal.aio.sweeps.reference_rates import Reference
from dsexplore._internal.aio.sweeps.rounds import Rounds, RoundSlice, mixed_rate, mixed_ratios


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
