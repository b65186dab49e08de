"""Unpack archives of a job's files into a temporary folder, with limits on their number and size."""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from dsexplore._internal.errors import TraceFileError
from dsexplore._internal.trace.importers.packed import most_unpacked

_MOST_FILES = 100_000
_BLOCK = 1 << 20


@contextmanager
def unpacked(archive: Path) -> Iterator[Path]:
    """Unpack a tar file, gzipped or not, into a folder that is removed afterwards.

    Only files are unpacked, under their names without ``..``; links and hidden files are omitted.

    Raises:
        TraceFileError: the archive cannot be read, or unpacks to much more than any trace does.
    """
    with tempfile.TemporaryDirectory(prefix="dsexplore-archive-") as scratch:
        folder = Path(scratch, archive.name)
        folder.mkdir()
        try:
            with tarfile.open(archive, "r|*") as opened:
                _unpack(opened, folder, most_unpacked(archive))
        except (OSError, EOFError, ValueError, tarfile.TarError) as error:
            raise TraceFileError(f"{archive} cannot be unpacked ({error}): copy or pack it again") from error
        yield folder


def _unpack(opened: tarfile.TarFile, folder: Path, most: int) -> None:
    """Unpack up to `most` bytes into a folder.

    Raises:
        ValueError: there are more bytes or files.
    """
    total = 0
    for count, member in enumerate(opened):
        total += max(member.size, 0)
        if total > most or count >= _MOST_FILES:
            raise ValueError(f"it unpacks to more than {most:,} bytes, or {_MOST_FILES:,} files")
        parts = [part for part in PurePosixPath(member.name).parts if part not in ("/", "..")]
        content = opened.extractfile(member) if member.isfile() and parts and not parts[-1].startswith(".") else None
        if content is None:
            continue
        target = folder.joinpath(*parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            while block := content.read(_BLOCK):
                file.write(block)
