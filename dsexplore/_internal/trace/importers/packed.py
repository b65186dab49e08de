"""Read files, gzipped or not, block by block; a small file that unpacks to very many bytes is refused."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

_BLOCK = 1 << 23
_MOST_BLANK = 1 << 20
"""Largest number of blank bytes in the middle of a file."""
_ALWAYS = 1 << 26
"""Bytes that any file may unpack to."""
_LARGEST_RATIO = 200
"""Bytes that a larger file may unpack to, as a multiple of its size; traces and dumps have ratios of 10 to 100."""


def blocks_of(file: Path) -> Iterator[bytes]:
    """Yield the content of a file, unpacked if it is gzipped, without blank blocks at its beginning.

    Raises:
        OSError, EOFError, zlib.error: the file cannot be read, or is cut off.
        ValueError: it unpacks to much more than any trace does, or is blank for megabytes after its beginning.
    """
    with file.open("rb") as opened:
        is_packed = opened.read(2) == b"\x1f\x8b"
        opened.seek(0)
        most = most_unpacked(file)
        stream = cast(IO[bytes], gzip.GzipFile(fileobj=opened)) if is_packed else opened
        total = blank = 0
        while block := stream.read(_BLOCK):
            blank = blank + len(block) if block.isspace() else 0
            if blank and not total:
                continue
            total += len(block)
            if blank > _MOST_BLANK:
                raise ValueError(f"it is blank for {_MOST_BLANK:,} bytes")
            if is_packed and total > most:
                raise ValueError(f"it unpacks to more than {_LARGEST_RATIO} times its size")
            yield block


def most_unpacked(file: Path) -> int:
    """Return the largest number of bytes that a compressed file may unpack to."""
    return max(_ALWAYS, _LARGEST_RATIO * file.stat().st_size)


def content_of(file: Path) -> bytes:
    """Return the blocks of `blocks_of` together.

    Raises:
        OSError, EOFError, zlib.error, ValueError: the file cannot be read, see `blocks_of`.
    """
    return b"".join(blocks_of(file))
