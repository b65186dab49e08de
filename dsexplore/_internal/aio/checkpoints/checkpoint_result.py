"""What checkpoints of a model take on a disk: bytes, seconds, what a step feels, and how often one can be afforded."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from dsexplore._internal.aio.disk import Disk
from dsexplore._internal.display import Result
from dsexplore._internal.units import format_bytes, format_count, format_seconds, format_share

if TYPE_CHECKING:
    import polars


@dataclass(frozen=True)
class MethodCost:
    """Seconds of one checkpoint by one method."""

    name: str
    writers: str
    """``rank 0`` or ``every rank``."""
    save: float
    """Until every byte is on the disk, with fsync."""
    load: float
    """From a cold disk."""
    stall: float
    """Until the next step can begin."""
    every: float
    """Shortest time between two checkpoints for which stalls are no more of the time than was allowed."""


@dataclass(frozen=True)
class CheckpointCost(Result):
    """What checkpoints of a model take; made by ``dsexplore.sharding(...).checkpoint(disk)``."""

    title: str
    """Class of the model."""
    disk: Disk
    """Disk that was measured."""
    nbytes: int
    """Bytes of one checkpoint in all."""
    rank_bytes: int
    """Bytes of it that the rank with most of them writes."""
    ranks: int
    ranks_per_node: int
    """Ranks that share the disk."""
    overhead: float
    """Fraction of the time that steps may wait for checkpoints."""
    step_seconds: float | None
    """Seconds of a training step; None if not given."""
    methods: tuple[MethodCost, ...]
    """Seconds of each method."""
    notes: tuple[str, ...]
    """Assumptions, and what was not measured, as sentences."""

    def __repr__(self) -> str:
        return f"<CheckpointCost of {self.title}: {format_bytes(self.nbytes)} on {self.disk.label}>"

    @property
    def best(self) -> MethodCost:
        """Method that can be afforded most often; of equal ones the first to be durable."""
        return min(self.methods, key=lambda method: (method.every, method.save))

    def verdict(self) -> str:
        """Return what to save with, and how often it can be afforded."""
        best = self.best
        held = f"holds a step for {format_seconds(best.stall)}"
        later = "" if best.save <= best.stall else f" and is on the disk after {format_seconds(best.save)}"
        return f"Save with {best.name}: it {held}{later}; affordable every {self.interval(best)}."

    def interval(self, method: MethodCost) -> str:
        """Return how often a method can be afforded, in seconds, and in steps if their time is known."""
        if not self.step_seconds:
            return format_seconds(method.every)
        steps = max(-(-method.every // self.step_seconds), 1)
        return f"{format_count(int(steps), 'step')} ({format_seconds(method.every)})"

    def lines(self) -> list[str]:
        """Return the verdict, the bytes, and the assumptions, as sentences."""
        size = (
            f"A checkpoint has {format_bytes(self.nbytes)} in all, {format_bytes(self.rank_bytes)} of each rank at "
            f"most; steps may wait for {format_share(self.overhead, 1)} of the time."
        )
        return [self.verdict(), size, *self.notes]

    def to_frame(self) -> polars.DataFrame:
        """Return a row per method.

        Columns: ``method``; ``writers``, ``rank 0`` or ``every rank``; ``save`` and ``load``, seconds until all is on
        the disk and until it is loaded from a cold disk; ``stall``, seconds until the next step can begin; ``every``,
        shortest seconds between two checkpoints.
        """
        import polars as pl

        return pl.DataFrame([asdict(method) for method in self.methods]).rename({"name": "method"})
