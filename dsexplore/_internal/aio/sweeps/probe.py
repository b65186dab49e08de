"""How fast a disk is at first sight, so that a sweep can be planned for it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from dsexplore._internal.aio.buffers import Buffer, fill_random

_PROBE = 16 << 20
"""Bytes written first, to see how fast the disk is."""
_PROBES = 4
_PROBE_SECONDS = 0.3
"""Seconds after which it is not tried again: other programs only add to a time, so a slow try may be their doing."""


def probed_rate(fd: int, nbytes: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the bytes per second at which the first bytes of a file reach the disk: the fastest of a few tries."""
    data = fill_random(Buffer(min(nbytes, _PROBE)))
    durations: list[float] = []
    while sum(durations) < _PROBE_SECONDS and len(durations) < _PROBES:
        begun = clock()
        os.pwrite(fd, data.bytes.data, 0)
        os.fsync(fd)
        durations.append(clock() - begun)
    return data.nbytes / min(durations)
