"""The result of `dsexplore.aio.loading`: seconds of each way to load, the disk's limit, and what to change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsexplore._internal.aio.checkpoints.checkpoint_files import Checkpoint
from dsexplore._internal.aio.checkpoints.loaders import DIRECT
from dsexplore._internal.aio.disk import Disk
from dsexplore._internal.aio.sweeps.statistics import median
from dsexplore._internal.display import Result
from dsexplore._internal.errors import UsageError
from dsexplore._internal.units import format_bytes, format_count, format_rate, format_seconds, format_share

if TYPE_CHECKING:
    import polars

_MATTERS = 0.1
"""Relative gain from which another call is advised, if each of its times is below each of the customary call's."""
_AT_LIMIT = 1.15
"""Ratio of a load's time to the disk's up to which the disk is the limit."""
_CACHED = 0.01
"""Fraction of the files that may be cached in a cold load."""


@dataclass(frozen=True, slots=True)
class LoadTime:
    """Seconds of one load."""

    call: float
    """Seconds in the library's calls, one per file."""
    fill: float
    """Seconds to copy the returned tensors into existing parameters, as ``load_state_dict`` does; 0 if the call fills
    the parameters itself. If the call maps the file, its bytes are read here."""

    @property
    def seconds(self) -> float:
        """Seconds until the parameters hold the values."""
        return self.call + self.fill


@dataclass(frozen=True)
class LoaderTimes:
    """Measured loads of one checkpoint with one call."""

    name: str
    """The call, as a user writes it."""
    maps: bool
    """True if the call maps the file, so that its bytes are read when they are copied."""
    cold: tuple[LoadTime, ...]
    """Loads after the files were dropped from the page cache."""
    warm: tuple[LoadTime, ...]
    """Loads just after the files were read through the page cache."""
    still_cached: float | None
    """Largest fraction of a file that was in the page cache before a cold load; None if unknown."""

    @property
    def cold_seconds(self) -> float:
        """Median seconds of the cold loads."""
        return median([load.seconds for load in self.cold])

    @property
    def warm_seconds(self) -> float:
        """Median seconds of the warm loads."""
        return median([load.seconds for load in self.warm])

    @property
    def waiting(self) -> float:
        """Seconds that a cold load waits for the disk: its time beyond that of a warm load."""
        return max(self.cold_seconds - self.warm_seconds, 0.0)

    def is_surely_faster_than(self, other: LoaderTimes) -> bool:
        """Return True if this call is faster by a tenth, and its slowest cold load beats the other's fastest."""
        slowest, fastest = max(load.seconds for load in self.cold), min(load.seconds for load in other.cold)
        return self.cold_seconds < other.cold_seconds * (1 - _MATTERS) and slowest < fastest


@dataclass(frozen=True)
class CheckpointTimes:
    """Measured loads of one checkpoint."""

    checkpoint: Checkpoint
    """The files that were loaded."""
    loaders: tuple[LoaderTimes, ...]
    """Times of each call, the customary one first."""
    limit: tuple[float, ...]
    """Bytes per second in each round at which the files were read with direct I/O, without creating tensors."""

    @property
    def disk_seconds(self) -> float:
        """Seconds that the disk takes for the files at its limit."""
        return self.checkpoint.nbytes / median(self.limit)

    @property
    def best(self) -> LoaderTimes:
        """Fastest of the calls that are surely faster than the customary one from a cold disk; else the customary."""
        usual = self.loaders[0]
        faster = [loader for loader in self.loaders[1:] if loader.is_surely_faster_than(usual)]
        return min(faster, key=lambda loader: loader.cold_seconds, default=usual)

    def is_at_limit(self, times: LoaderTimes) -> bool:
        """Return True if the disk limits a cold load: it takes hardly longer than the disk needs for the files."""
        return times.cold_seconds <= self.disk_seconds * _AT_LIMIT

    def is_busy(self, times: LoaderTimes) -> bool:
        """Return True if the processor takes most of the time of a cold load."""
        return not self.is_at_limit(times) and times.warm_seconds > times.cold_seconds / 2


@dataclass(frozen=True)
class LoadingResult(Result):
    """How fast checkpoints load; made by ``dsexplore.aio.loading(...)``."""

    title: str
    """Path of the checkpoint, or class of the model."""
    disk: Disk
    """Disk that holds the files."""
    measured: tuple[CheckpointTimes, ...]
    """Loads by checkpoint; of a model, one checkpoint per format."""
    notes: tuple[str, ...] = ()
    """What was not measured, as sentences."""

    def __repr__(self) -> str:
        return f"<LoadingResult of {self.title}: {format_count(len(self._rows()), 'way')} on {self.disk.label}>"

    def __getitem__(self, kind: str) -> CheckpointTimes:
        """Return the loads of one format: ``"safetensors"``, ``"torch.save"`` or ``"DCP"``.

        Raises:
            UsageError: the format was not measured.
        """
        for times in self.measured:
            if times.checkpoint.kind == kind:
                return times
        kinds = ", ".join(times.checkpoint.kind for times in self.measured)
        raise UsageError(f"format {kind!r} was not measured: there is {kinds}")

    @property
    def best(self) -> tuple[CheckpointTimes, LoaderTimes]:
        """Checkpoint and the call to load it with, from a cold disk."""
        return min(((times, times.best) for times in self.measured), key=lambda pair: pair[1].cold_seconds)

    def verdict(self) -> str:
        """Return what to load with, and what that gains."""
        times, best = self.best
        best_loader = f"{best.name} of {times.checkpoint.kind}" if len(self.measured) > 1 else best.name
        usual = times.loaders[0]
        cold = f"{format_seconds(best.cold_seconds)} cold, {format_seconds(best.warm_seconds)} warm"
        if best is usual:
            return f"Load with {best_loader}: {cold}; nothing measured is reliably faster."
        gain = usual.cold_seconds / best.cold_seconds
        return f"Load with {best_loader}: {cold}; {gain:.2g} times as fast as {usual.name} from a cold disk."

    def lines(self) -> list[str]:
        """Return the verdict, where the time goes, what to change, and notes, as sentences."""
        return [self.verdict(), *self._reasons(), *self._changes(), *self.notes, *self._doubts()]

    def _reasons(self) -> Iterator[str]:
        """Yield where the time of the customary call goes, by checkpoint."""
        for times in self.measured:
            usual = times.loaders[0]
            need = f"the disk needs {format_seconds(times.disk_seconds)} for {format_bytes(times.checkpoint.nbytes)}"
            need += f" at {format_rate(median(times.limit))}"
            cold = f"{usual.name}: {format_seconds(usual.cold_seconds)} cold"
            if usual.waiting < _MATTERS * usual.cold_seconds:
                yield f"{cold}, and no less when the file is in memory; {need}: the processor is the limit."
                continue
            warm = f"{format_seconds(usual.warm_seconds)} remain when the file is in memory"
            if times.is_busy(usual):
                limit = "most is the processor's work"
            else:
                limit = "it is the limit" if times.is_at_limit(usual) else "it waits for requests"
            yield f"{cold}, of which {warm}; {need}: {limit}."

    def _changes(self) -> Iterator[str]:
        """Yield what would make the best load faster, and when another call is faster."""
        times, best = self.best
        copying = median([load.fill for load in best.warm])
        if not best.maps and copying > _MATTERS * best.cold_seconds:
            yield (
                f"Copying into the parameters takes {format_seconds(copying)} of it: load_state_dict(…, assign=True) "
                "takes over the loaded tensors instead."
            )
        if times.is_at_limit(best):
            yield "Only fewer bytes (a smaller dtype), a faster disk, or files on several disks would be faster."
        elif times.is_busy(best):
            share = format_share(best.warm_seconds, max(best.cold_seconds, best.warm_seconds))
            yield f"{share} of it is the processor's work, which a faster disk does not shorten."
        if best.name == DIRECT and best.warm_seconds > (1 + _MATTERS) * times.loaders[0].warm_seconds:
            usual = times.loaders[0]
            yield (
                f"A file that was read or written just before is in memory: then {usual.name} takes "
                f"{format_seconds(usual.warm_seconds)}."
            )

    def _doubts(self) -> Iterator[str]:
        """Yield reasons why cold times or the disk's limit may be wrong."""
        cached = [loader.still_cached for times in self.measured for loader in times.loaders]
        measured = [share for share in cached if share is not None]
        if not self.disk.direct:
            yield f"No direct I/O ({self.disk.why_buffered}): the limit is that of reading through the page cache."
        if measured and max(measured) > _CACHED:
            yield (
                f"Up to {format_share(max(measured), 1)} of the files stayed in the page cache, because the filesystem "
                "keeps them or another program has them open: cold times are too short by as much."
            )
        if len(measured) < len(cached):
            yield "This system does not say whether files left the page cache: cold times may be too short."

    def _rows(self) -> list[tuple[CheckpointTimes, LoaderTimes]]:
        return [(times, loader) for times in self.measured for loader in times.loaders]

    def to_frame(self) -> polars.DataFrame:
        """Return a row per format and call.

        Columns: ``format``; ``call``; ``bytes`` of the files; ``cold`` and ``warm``, median seconds until the
        parameters hold the values; ``cold_call`` and ``warm_call``, seconds in the call itself; ``waiting``, seconds of
        ``cold`` beyond ``warm``; ``disk``, seconds that the disk needs for the files at its limit; ``rate``, bytes per
        second of ``cold``; ``still_cached``, largest fraction of a file that did not leave the page cache.
        """
        import polars as pl

        rows = [
            {
                "format": times.checkpoint.kind,
                "call": loader.name,
                "bytes": times.checkpoint.nbytes,
                "cold": loader.cold_seconds,
                "warm": loader.warm_seconds,
                "cold_call": median([load.call for load in loader.cold]),
                "warm_call": median([load.call for load in loader.warm]),
                "waiting": loader.waiting,
                "disk": times.disk_seconds,
                "rate": times.checkpoint.nbytes / loader.cold_seconds,
                "still_cached": loader.still_cached,
            }
            for times, loader in self._rows()
        ]
        return pl.DataFrame(rows)
