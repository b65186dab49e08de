"""``dsexplore.aio.sustained_writes``: the rate of a disk when it is written for long, past its caches."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from dsexplore._internal.aio.aio_config import NEAR_LIMIT
from dsexplore._internal.aio.aio_constants import PAGE
from dsexplore._internal.aio.buffers import Buffer, fill_random
from dsexplore._internal.aio.disk import disk_of
from dsexplore._internal.aio.handle import aio_handle
from dsexplore._internal.aio.sustained_result import SustainedWrites
from dsexplore._internal.aio.sweeps.scratch import Scratch
from dsexplore._internal.aio.transfer_file import make_durable
from dsexplore._internal.errors import UsageError
from dsexplore._internal.progress import track
from dsexplore._internal.signatures import names_arguments
from dsexplore._internal.units import format_bytes, parse_size

_MIN_BYTES = 64 << 20
"""Smallest size that is written: less says nothing of a cache."""
_NUM_WRITES = 64
"""Number of equal pieces of the file; each is timed."""
_MAX_CALL_BYTES = 256 << 20
"""Bytes that are written by one call at most."""


@names_arguments
def sustained_writes(folder: str | os.PathLike[str], size: int | str = "32GiB") -> SustainedWrites:
    """Write one large file with direct I/O and say where the disk gets slower, as a drive does once its cache is full.

    A sweep writes up to a GiB at a time, which the fast part of a drive (SLC cache, the cache of a controller or of a
    host) may hold; checkpoints and swapped states are larger. The file is removed.

    Args:
        folder: a directory on the disk.
        size: bytes to write, which count against the drive's endurance. They are rounded down to 64 equal pieces of
            whole pages: up to 64 pages of it are not written.

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
