"""What the disk benchmarks share: a file full of random data that goes away however they end."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from dsexplore._internal.aio.buffers import Buffer, fill_random
from dsexplore._internal.aio.handle import aio_handle
from dsexplore._internal.aio.sweeps.scratch import Scratch


def unwind_on_signals() -> None:
    """Let SIGTERM and SIGHUP end the program as an exception, so that everything is put back on the way out."""

    def end(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)


@contextmanager
def random_file(directory: str, size: int) -> Iterator[str]:
    """The path of a scratch file whose every block has been written once."""
    with Scratch(directory, size) as scratch:
        with aio_handle() as handle:
            handle.sync_pwrite(fill_random(Buffer(size)), scratch.path)
        yield scratch.path
