"""Parquet files that carry the digest of their own bytes, so that damage is found before a reader parses them.

A Parquet file is ``PAR1``, the columns, a footer, the footer's length in 4 bytes, and ``PAR1`` again. Parquet readers
are written for speed and trust the file; a flipped bit can crash the process. So one of the footer's key-value pairs
holds the SHA-256 of the file, computed with the digits of the digest as zeros. The pair is found by its bytes alone:
its key, a field header (0x18: next field, a string), the length 64 (0x40), and 64 hexadecimal digits.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from dsexplore._internal.errors import TraceFileError
from dsexplore._internal.trace.importers.file_kinds import kind_not_read

KEY = "dsexplore.digest"
PLACEHOLDER = "0" * 64
"""Initial value of `KEY`, which `write_digest` replaces by the digest."""

_MAGIC = b"PAR1"
_MARK = KEY.encode("ascii") + b"\x18\x40"
_CHUNK = 1 << 20


def write_digest(file: Path) -> None:
    """Write the digest of a complete Parquet file into it.

    Raises:
        TraceFileError: its metadata has no `PLACEHOLDER` under `KEY`.
    """
    place = _place_of_digest(file, _footer_start(file))
    if place is None:
        raise TraceFileError(f"{file} has no place for a digest: write it with metadata {KEY}={PLACEHOLDER!r}")
    digits = _digest(file, place)
    with file.open("r+b") as raw:
        raw.seek(place)
        raw.write(digits)


def check_digest(file: Path) -> None:
    """Raise unless `file` is a complete Parquet file whose digest matches its bytes.

    Raises:
        TraceFileError: it is truncated, not Parquet, without a digest, or damaged; the message says which.
    """
    place = _place_of_digest(file, _footer_start(file))
    if place is None:
        raise TraceFileError(f"{file} is a Parquet file, but not a dsexplore trace: Trace.save writes those")
    with file.open("rb") as raw:
        raw.seek(place)
        written = raw.read(len(PLACEHOLDER))
    if written != _digest(file, place):
        raise TraceFileError(f"{file} is damaged: its content is not what was written; copy or record it again")


def _footer_start(file: Path) -> int:
    """Return the position of the footer.

    Raises:
        TraceFileError: the file is truncated or not Parquet.
    """
    size = file.stat().st_size
    with file.open("rb") as raw:
        head = raw.read(4)
        raw.seek(max(0, size - 8))
        tail = raw.read(8)
    if head != _MAGIC[: len(head)]:
        raise TraceFileError(f"{file} is not a dsexplore trace: it is {kind_not_read(file)}")
    length = int.from_bytes(tail[:4], "little")
    if size < 12 or tail[4:] != _MAGIC or length > size - 12:
        raise TraceFileError(f"{file} is truncated: {size} bytes without a Parquet footer; copy or record it again")
    return size - 8 - length


def _place_of_digest(file: Path, footer: int) -> int | None:
    """Return the position of the digest's 64 digits; None if the footer has none."""
    with file.open("rb") as raw:
        raw.seek(footer)
        position = raw.read().rfind(_MARK)
    return footer + position + len(_MARK) if position >= 0 else None


def _digest(file: Path, place: int) -> bytes:
    """Return the SHA-256 of the file as hexadecimal digits, with the 64 digits at `place` taken as zeros."""
    digest = hashlib.sha256()
    with file.open("rb") as raw:
        remaining = place
        while remaining:
            chunk = raw.read(min(remaining, _CHUNK))
            digest.update(chunk)
            remaining -= len(chunk)
        raw.seek(place + len(PLACEHOLDER))
        digest.update(PLACEHOLDER.encode("ascii"))
        while chunk := raw.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest().encode("ascii")
