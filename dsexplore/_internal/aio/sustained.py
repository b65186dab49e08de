"""``dsexplore.aio.sustained_writes``: the rate of a disk over a long write, and where its cache was full."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from dsexplore._internal.aio.aio_config import NEAR_LIMIT
from dsexplore._internal.aio.aio_constants import PAGE
from dsexplore._internal.aio.buffers import Buffer, fill_random
from dsexplore._internal.aio.disk import Disk, disk_of
from dsexplore._internal.aio.handle import aio_handle
from dsexplore._internal.aio.sweeps.scratch import Scratch
from dsexplore._internal.aio.sweeps.statistics import median
from dsexplore._internal.aio.transfer_file import make_durable
from dsexplore._internal.display import Result
from dsexplore._internal.errors import UsageError
from dsexplore._internal.progress import track
from dsexplore._internal.signatures import names_arguments
from dsexplore._internal.units import format_bytes, format_rate, format_seconds, parse_size

if TYPE_CHECKING:
    import polars

_SLOWER = 0.8
"""Ratio of the rate after a piece to the rate before it below which the disk got slower there."""
_MIN_PIECES = 3
"""Number of pieces that there must be before and after."""


@dataclass(frozen=True)
class SustainedWrites(Result):
    """Pieces written one after another; made by ``dsexplore.aio.sustained_writes(...)``."""

    disk: Disk
    """Disk that was measured."""
    pieces: tuple[tuple[int, float], ...]
    """(bytes, seconds) of each piece."""
    fsync_seconds: float
    """Seconds of the fsync after the last piece."""

    @property
    def nbytes(self) -> int:
        """Bytes of all pieces."""
        return sum(nbytes for nbytes, _ in self.pieces)

    @property
    def rates(self) -> list[float]:
        """Bytes per second of each piece."""
        return [nbytes / seconds for nbytes, seconds in self.pieces]

    @property
    def durable_rate(self) -> float:
        """Bytes per second of all pieces, with the fsync at the end."""
        return self.nbytes / (sum(seconds for _, seconds in self.pieces) + self.fsync_seconds)

    @property
    def full_at(self) -> int | None:
        """Bytes after which the disk got slower and stayed so; None if it did not."""
        count = self._fast_pieces
        return None if count is None else sum(nbytes for nbytes, _ in self.pieces[:count])

    @property
    def _fast_pieces(self) -> int | None:
        """Number of pieces before the disk got slower and stayed so; None if it did not.

        The pieces are divided where two constant rates, one before and one after, fit the measured rates best.
        """
        rates = self.rates
        at = min(range(1, len(rates)), key=lambda at: _deviation(rates[:at]) + _deviation(rates[at:]), default=0)
        if min(at, len(rates) - at) < _MIN_PIECES or median(rates[at:]) >= _SLOWER * median(rates[:at]):
            return None
        return at

    def verdict(self) -> str:
        """Return the rate that lasts, and for how many bytes the disk was faster."""
        count, full_at = self._fast_pieces, self.full_at
        if count is None or full_at is None:
            return f"The disk writes {format_rate(median(self.rates))} throughout {format_bytes(self.nbytes)}."
        before, after = format_rate(median(self.rates[:count])), format_rate(median(self.rates[count:]))
        return f"The disk writes {before} for the first {format_bytes(full_at)}, then {after}: a cache was full."

    def lines(self) -> list[str]:
        """Return the verdict, the rate with fsync, and what is unknown, as sentences."""
        return [self.verdict(), *self._remarks()]

    def _remarks(self) -> Iterator[str]:
        """Yield the rate with fsync, and reasons to doubt the rates."""
        rate = format_rate(self.durable_rate)
        yield f"With the fsync at the end, {format_seconds(self.fsync_seconds)}, that is {rate} in all."
        if not self.disk.direct:
            why = self.disk.why_buffered
            yield f"The page cache was written first ({why}): only the rate with fsync is the disk's."
        if self.full_at is None:
            yield "A cache larger than what was written is not seen: write more to be sure."

    def to_frame(self) -> polars.DataFrame:
        """Return a row per piece. Columns: ``end``, bytes written so far; ``rate``, bytes per second of the piece."""
        import polars as pl

        reached = list(accumulate(nbytes for nbytes, _ in self.pieces))
        return pl.DataFrame({"end": reached, "rate": self.rates}, schema={"end": pl.Int64(), "rate": pl.Float64()})


def _deviation(rates: list[float]) -> float:
    """Return the sum of the absolute deviations from the median."""
    middle = median(rates)
    return sum(abs(rate - middle) for rate in rates)


_MIN_BYTES = 64 << 20
"""Smallest size to write; less would fill no cache."""
_NUM_WRITES = 64
"""Number of equal pieces of the file, each of which is timed."""
_MAX_CALL_BYTES = 256 << 20
"""Largest number of bytes that one call writes."""


@names_arguments
def sustained_writes(folder: str | os.PathLike[str], size: int | str = "32GiB") -> SustainedWrites:
    """Write one large file with direct I/O, and say where the disk gets slower because a cache is full.

    A sweep writes up to a GiB at a time, which may fit into a cache of the drive (SLC), of its controller or of a host;
    checkpoints and swapped states are larger. The file is removed.

    Args:
        folder: a directory on the disk.
        size: bytes to write, which count against the drive's endurance; they are rounded down to 64 equal pieces of
            whole pages.

    Raises:
        UsageError: a size below 64 MiB.
        OSError: the folder cannot be written, or has no room.
    """
    nbytes = parse_size(size)
    if nbytes < _MIN_BYTES:
        raise UsageError(f"size {size} is too small to fill a cache: give {format_bytes(_MIN_BYTES)} or more")
    return write_pieces(folder, nbytes, time.perf_counter)


def write_pieces(folder: str | os.PathLike[str], nbytes: int, clock: Callable[[], float]) -> SustainedWrites:
    """Write `nbytes` in equal pieces, each rounded down to whole pages; `clock` returns seconds."""
    piece = nbytes // _NUM_WRITES // PAGE * PAGE
    memory = fill_random(Buffer(min(piece, _MAX_CALL_BYTES)))
    pieces = []
    with Scratch(folder, nbytes) as file, aio_handle.from_config(NEAR_LIMIT) as handle:
        with track("writing", _NUM_WRITES, "pieces") as work:
            for number in range(_NUM_WRITES):
                begun = clock()
                for at in range(0, piece, _MAX_CALL_BYTES):
                    handle.sync_pwrite(memory.bytes[: piece - at], file.path, number * piece + at)
                pieces.append((piece, clock() - begun))
                work.advance(1)
        begun = clock()
        make_durable(file.fd)
        fsync = clock() - begun
        return SustainedWrites(disk_of(file.path), tuple(pieces), fsync)
