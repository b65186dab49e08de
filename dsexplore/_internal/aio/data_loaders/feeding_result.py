"""The result of `dsexplore.aio.feeding`: how fast a data loader gives samples, and what limits it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsexplore._internal.aio.data_loaders.process_use import ProcessUse
from dsexplore._internal.display import Result
from dsexplore._internal.units import (
    format_bytes,
    format_count,
    format_number,
    format_rate,
    format_seconds,
    format_share,
)

if TYPE_CHECKING:
    import polars

_BUSY = 0.8
"""Fraction of the time from which a process counts as busy."""
_QUEUES = 0.3
"""Fraction of its runnable time from which a process is limited by waiting for a processor."""
_FEW = 0.01
"""Fraction of the bytes that were read up to which the disk does not count as the limit; also of the time, up to which
waiting for a processor is not shown."""


@dataclass(frozen=True)
class FeedingResult(Result):
    """Measured batches of a data loader; made by ``dsexplore.aio.feeding(...)``."""

    batches: int
    """Number of batches."""
    samples: int
    """Number of samples in all batches."""
    nbytes: int
    """Bytes of the tensors in all batches."""
    seconds: float
    """Seconds in which the batches were taken."""
    workers: int
    """Number of worker processes."""
    of_main: ProcessUse
    """Use of the process that takes the batches."""
    of_workers: ProcessUse
    """Use of all workers."""
    step_seconds: float | None
    """Seconds of a training step without waiting for input; None if unknown."""
    processors: int
    """Number of processors that these processes may use."""

    @property
    def rate(self) -> float:
        """Samples per second."""
        return self.samples / self.seconds

    @property
    def most_by_processors(self) -> float | None:
        """Samples per second if all processors did nothing else; None if no processor time was measured."""
        busy = self.of_main.cpu_seconds + self.of_workers.cpu_seconds
        return self.samples / busy * self.processors if busy > 0 else None

    @property
    def worker_share(self) -> float:
        """Fraction of the time that a worker, or without workers this process, computes."""
        if not self.workers:
            return min(self.of_main.cpu_seconds / self.seconds, 1.0)
        return min(self.of_workers.cpu_seconds / self.workers / self.seconds, 1.0)

    @property
    def disk_rate(self) -> float:
        """Bytes per second that a disk delivered."""
        return (self.of_main.from_disk + self.of_workers.from_disk) / self.seconds

    @property
    def stall(self) -> float | None:
        """Seconds that each step waits for its batch; None if the time of a step is unknown."""
        if self.step_seconds is None:
            return None
        return max(self.seconds / self.batches - self.step_seconds, 0.0)

    @property
    def queued_share(self) -> float:
        """Fraction of the time that a worker, or without workers this process, waits for a processor."""
        queued = self.of_workers.queued_seconds / self.workers if self.workers else self.of_main.queued_seconds
        return min(queued / self.seconds, 1.0)

    @property
    def limit(self) -> str:
        """``workers``, ``this process``, ``processors``, ``other programs``, ``disk`` or ``neither``."""
        busy = self.of_main.cpu_seconds + self.of_workers.cpu_seconds
        if self.workers and busy >= _BUSY * self.processors * self.seconds:
            return "processors"
        ready = self.worker_share + self.queued_share
        if ready >= _BUSY and self.queued_share >= _QUEUES * ready:
            return "other programs"
        if ready >= _BUSY:
            return "workers" if self.workers else "this process"
        if self.of_main.cpu_seconds + self.of_main.queued_seconds >= _BUSY * self.seconds:
            queues = self.of_main.queued_seconds >= _QUEUES * (self.of_main.cpu_seconds + self.of_main.queued_seconds)
            return "other programs" if queues else "this process"
        nbytes = max(self.of_main.read + self.of_workers.read, self.nbytes)
        return "disk" if self.of_main.from_disk + self.of_workers.from_disk > _FEW * nbytes else "neither"

    def verdict(self) -> str:
        """Return whether a step waits for input, and what limits the loader."""
        text = f"The loader gives {format_number(self.rate)} samples/s"
        if self.stall is not None and self.step_seconds is not None:
            if self.stall:
                share = format_share(self.stall, self.step_seconds + self.stall)
                text += f"; a step waits {format_seconds(self.stall)} for its batch, {share} of it"
            else:
                text += "; a step does not wait for it"
        return f"{text}. {_LIMITS[self.limit]}"

    def lines(self) -> list[str]:
        """Return the verdict, what was used, and what to change, as sentences."""
        return [self.verdict(), *self._used(), *self._changes()]

    def _used(self) -> Iterator[str]:
        """Yield sentences on the processor time and the bytes that were used."""
        who = format_count(self.workers, "worker") if self.workers else "This process"
        queued = self.queued_share
        waits = f" and waiting for a processor {format_share(queued, 1)}" if queued >= _FEW else ""
        disk = format_rate(self.disk_rate) if self.disk_rate else "nothing"
        yield (
            f"{who}, busy {format_share(self.worker_share, 1)}{waits} of the time; "
            f"{format_bytes(self.nbytes / self.batches)} per batch; {disk} came from a disk."
        )
        if self.most_by_processors is not None:
            yield (
                f"{format_count(self.processors, 'processor')} could prepare "
                f"{format_number(self.most_by_processors)} samples/s if they did nothing else."
            )

    def _changes(self) -> Iterator[str]:
        """Yield what to change, unless a step does not wait."""
        if self.stall == 0:
            return
        if self.limit == "workers":
            yield f"Give it more workers: num_workers={min(2 * self.workers, self.processors)} or more."
        elif self.limit == "this process":
            if self.workers:
                yield "This process unpacks what workers send: send tensors and larger batches, not lists of objects."
            else:
                yield "Let workers prepare the batches: num_workers=4."
        elif self.limit == "processors":
            yield "Prepare less per step: decode and tokenize beforehand, or use more processors."
        elif self.limit == "other programs":
            yield "End what else runs here, or give this program processors of its own; more workers would wait, too."
        elif self.limit == "disk":
            yield "Read larger pieces in order (shards), more at a time (num_workers), or take a faster disk."

    def to_frame(self) -> polars.DataFrame:
        """Return one row.

        Columns: ``samples_per_second``; ``batches``; ``seconds``; ``workers``; ``worker_share``, fraction of the time
        that a worker computes; ``queued_share``, fraction of the time that it waits for a processor; ``from_disk``,
        bytes per second; ``most_by_processors``, samples per second; ``stall``, seconds that a step waits; ``limit``.
        """
        import polars as pl

        return pl.DataFrame(
            {
                "samples_per_second": [self.rate],
                "batches": [self.batches],
                "seconds": [self.seconds],
                "workers": [self.workers],
                "worker_share": [self.worker_share],
                "queued_share": [self.queued_share],
                "from_disk": [self.disk_rate],
                "most_by_processors": [self.most_by_processors],
                "stall": [self.stall],
                "limit": [self.limit],
            }
        )


_LIMITS = {
    "workers": "Its workers compute all the time: they are the limit.",
    "this process": "The process that takes the batches computes all the time: it is the limit.",
    "processors": "All processors are busy: they are the limit.",
    "other programs": "It could compute, and waits for processors that other programs use: they are the limit.",
    "disk": "Workers wait while a disk delivers: it is the limit.",
    "neither": "Neither processor nor disk is the limit: it waits for something else, such as a network or a lock.",
}
