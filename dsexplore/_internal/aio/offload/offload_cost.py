"""What states on a disk take of a training step: bytes, seconds, and the tokens per second that the disk allows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from dsexplore._internal.aio.disk import Disk
from dsexplore._internal.display import Result
from dsexplore._internal.units import format_count, format_rate, format_seconds, format_share

if TYPE_CHECKING:
    import polars


@dataclass(frozen=True)
class Swap:
    """What one node moves in a step for one kind of state."""

    what: str
    """``optimizer states`` or ``parameters``."""
    read: float
    """Bytes read in a step."""
    written: float
    """Bytes written in a step."""
    read_seconds: float
    write_seconds: float
    exposed: float
    """Seconds that the step becomes longer."""

    @property
    def seconds(self) -> float:
        """Seconds that the disk is busy."""
        return self.read_seconds + self.write_seconds


@dataclass(frozen=True)
class OffloadCost(Result):
    """What states on a disk take of a step; made by ``dsexplore.sharding(...).offload(disk)``."""

    title: str
    """Class of the model."""
    disk: Disk
    """Disk that was measured."""
    read_rate: float
    """Bytes per second of reads with the recommended setting."""
    write_rate: float
    """Bytes per second of writes with the recommended setting."""
    node_parameters: int
    """Parameters of one node, which share the disk."""
    ranks: int
    swaps: tuple[Swap, ...]
    """Bytes moved in a step, by kind of state."""
    step_seconds: float | None
    """Seconds of a step without a disk; None if not given."""
    tokens: int | None
    """Tokens of a step on one node; None if not given."""
    notes: tuple[str, ...]
    """Assumptions, as sentences."""

    def __repr__(self) -> str:
        return f"<OffloadCost of {self.title}: {format_seconds(self.exposed)} per step on {self.disk.label}>"

    @property
    def exposed(self) -> float:
        """Seconds that a step becomes longer."""
        return sum(swap.exposed for swap in self.swaps)

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens of one node per second, with the step's own time if that is known; None if no tokens were given."""
        if self.tokens is None:
            return None
        return self.tokens / (self.exposed + (self.step_seconds or 0.0))

    def verdict(self) -> str:
        """Return what the disk takes of a step, and the tokens per second that it allows."""
        what = " and ".join(swap.what for swap in self.swaps)
        said = f"Swapping {what} makes a step {format_seconds(self.exposed)} longer"
        if self.step_seconds:
            whole = self.step_seconds + self.exposed
            said += f": {format_share(self.exposed, whole)} of the {format_seconds(whole)} that it then takes"
        if self.tokens_per_second is None:
            return f"{said}."
        feeds = "the node trains" if self.step_seconds else "this disk feeds at most"
        return f"{said}; {feeds} {format_count(round(self.tokens_per_second), 'token')}/s."

    def lines(self) -> list[str]:
        """Return the verdict, the disk's rates, what would shorten the step, and the assumptions, as sentences."""
        rates = f"The disk reads {format_rate(self.read_rate)} and writes {format_rate(self.write_rate)}."
        return [self.verdict(), rates, *self._changes(), *self.notes]

    def _changes(self) -> Iterator[str]:
        if self.step_seconds and self.exposed > 0.1 * self.step_seconds:
            times = self.exposed / (0.1 * self.step_seconds)
            more = f"{times:,.0f}" if times >= 10 else f"{times:.1f}"
            yield (
                f"For a tenth of the step's own time, it takes {more} times the disks or nodes, or as many times "
                "the tokens per optimizer step (gradient accumulation)."
            )

    def to_frame(self) -> polars.DataFrame:
        """Return a row per kind of state.

        Columns: ``what``; ``read`` and ``written``, bytes of one node per step; ``read_seconds`` and
        ``write_seconds``, of the disk; ``exposed``, seconds that the step becomes longer.
        """
        import polars as pl

        return pl.DataFrame([asdict(swap) for swap in self.swaps])
