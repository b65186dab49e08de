"""A file for transfers: one descriptor for direct requests, and one that goes through the page cache."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dsexplore._internal.aio.aio_constants import PAGE, SECTOR
from dsexplore._internal.aio.backends import syscalls as sc
from dsexplore._internal.errors import UsageError

O_DIRECT: int = getattr(os, "O_DIRECT", 0)
_NO_NAME = ctypes.create_string_buffer(1)


def make_durable(fd: int) -> None:
    """Wait until written data is on the disk, and the metadata that is needed to read it."""
    getattr(os, "fdatasync", os.fsync)(fd)


class Alignment(NamedTuple):
    """Alignment, in bytes, of offsets, lengths and addresses of direct requests on a file."""

    memory: int
    offset: int


def direct_alignment(fd: int) -> Alignment | None:
    """Return the alignment that the filesystem requires of direct requests (statx); None if it accepts none.

    Kernels before 6.1 do not report it. Then whole sectors are assumed, and rejected requests are completed without
    O_DIRECT.
    """
    assumed = Alignment(SECTOR, SECTOR)
    if not sc.SUPPORTED:
        return assumed
    answer = np.zeros(1, sc.STATX_BUFFER)
    name = ctypes.addressof(_NO_NAME)
    if sc.statx(sc.STATX, fd, name, sc.AT_EMPTY_PATH, sc.STATX_DIOALIGN, answer.ctypes.data) < 0:
        return assumed
    mask, memory, offset = answer[0].item()
    if not mask & sc.STATX_DIOALIGN:
        return assumed
    return Alignment(memory, offset) if memory and offset else None


class TransferFile:
    """An open file in one direction.

    Args:
        file: a path, or a descriptor that the caller has opened and closes.
        write: True to write; a path that does not exist is created with mode 0600, as DeepSpeed does. False to read.
        direct: try O_DIRECT; a filesystem that rejects it is used through the page cache.

    Raises:
        OSError: the file cannot be opened; the error names the path.
        UsageError: writes to the descriptor would be appended.
    """

    def __init__(self, file: str | os.PathLike[str] | int, *, write: bool, direct: bool = True) -> None:
        self.write = write
        self._guard = threading.Lock()
        self._plain: int | None = None
        self._is_owned = not isinstance(file, int)
        self.why_buffered: str | None = None
        if isinstance(file, int):
            import fcntl

            self.path: str = _path_of(file)
            self.fd = file
            flags = fcntl.fcntl(file, fcntl.F_GETFL)
            if write and flags & os.O_APPEND:
                raise UsageError(
                    f"descriptor {file} ({self.path}) is open for appending, which sends each request to the end of "
                    "the file whatever its offset: open the file without append"
                )
            self.direct = bool(flags & O_DIRECT)
        else:
            self.path = os.fspath(file)
            self.fd, self.direct = self._open(direct)
            if self.path.startswith("/proc/"):  # a descriptor's path: errors are to name the file
                self.path = _path_of(self.fd)
        self.alignment = (direct_alignment(self.fd) or Alignment(SECTOR, SECTOR)) if self.direct else Alignment(1, 1)

    def _open(self, direct: bool) -> tuple[int, bool]:
        """Open the path; return the descriptor, and True if it is direct."""
        flags = (os.O_WRONLY | os.O_CREAT if self.write else os.O_RDONLY) | os.O_CLOEXEC
        if direct and O_DIRECT:
            try:
                return os.open(self.path, flags | O_DIRECT, 0o600), True
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self.why_buffered = "the filesystem refuses O_DIRECT (EINVAL)"
        elif direct:
            self.why_buffered = "this system has no O_DIRECT"
        return os.open(self.path, flags, 0o600), False

    @property
    def boundary(self) -> int:
        """Alignment in bytes of the begin and end of the direct part of a transfer: whole pages, at least."""
        return max(PAGE, self.alignment.offset) if self.direct else 1

    def plain_fd(self) -> int:
        """Return a descriptor of the same file through the page cache, opened on first use."""
        if not self.direct:
            return self.fd
        with self._guard:
            if self._plain is None:
                flags = (os.O_WRONLY if self.write else os.O_RDONLY) | os.O_CLOEXEC
                self._plain = os.open(f"/proc/self/fd/{self.fd}", flags)
            return self._plain

    def open_for_reading(self, *, direct: bool = False) -> int:
        """Return a new descriptor to read the file back; the caller closes it."""
        flags = os.O_RDONLY | os.O_CLOEXEC | (O_DIRECT if direct and self.direct else 0)
        return os.open(f"/proc/self/fd/{self.fd}" if O_DIRECT else self.path, flags)

    def close(self) -> None:
        """Close the descriptors that were opened here, not the caller's; may be called repeatedly."""
        with self._guard:
            plain, self._plain = self._plain, None
            is_owned, self._is_owned = self._is_owned, False
        if plain is not None:
            os.close(plain)
        if is_owned:
            os.close(self.fd)


def _path_of(fd: int) -> str:
    """Return the path of an open descriptor; raise OSError if it is not open."""
    os.fstat(fd)
    try:
        return str(Path(f"/proc/self/fd/{fd}").readlink())
    except OSError:
        return f"descriptor {fd}"
