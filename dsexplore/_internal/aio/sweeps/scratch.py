"""Temporary files without a name, of which nothing is left however a sweep ends.

A file is unlinked as soon as it is open, and reached through ``/proc`` from then on. Without ``/proc`` it keeps a
recognizable name until it is closed, and its owner holds a lock on it, which the kernel releases when the owner dies.
So the next start can remove abandoned files and leave those in use, even if containers do not see each other's
processes. On a filesystem without such locks, such as Lustre as it is often mounted, no file is removed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from dsexplore._internal.interrupts import uninterrupted
from dsexplore._internal.units import format_bytes

PREFIX = ".dsexplore-aio-"
_SUFFIX = ".tmp"
_SPARE = 1 << 20
"""Bytes that must stay free."""


class Scratch:
    """A new, empty file in a directory, which is removed by `close`, or when its process ends.

    As long as this process holds it open, ``path`` opens it, also in other processes of this user.

    Args:
        directory: the directory.
        nbytes: bytes that will be written; the filesystem must have room for them.

    Raises:
        OSError: the directory is missing or not writable, or has no room for `nbytes` (ENOSPC).
    """

    def __init__(self, directory: str | os.PathLike[str], nbytes: int) -> None:
        folder = os.path.realpath(directory)
        remove_abandoned(folder)
        check_space(folder, nbytes)
        self._owner = os.getpid()
        with uninterrupted():
            self.path, self.fd = _create(folder)
            nameless = f"/proc/{self._owner}/fd/{self.fd}"
            if Path(nameless).exists():
                Path(self.path).unlink()
                self.path = nameless

    def close(self) -> None:
        """Remove the file. May be called repeatedly, and in a forked child."""
        fd, self.fd = self.fd, -1
        if fd >= 0 and self._owner == os.getpid():
            if not self.path.startswith("/proc/"):
                with suppress(FileNotFoundError):
                    Path(self.path).unlink()
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def remove_abandoned(directory: str | os.PathLike[str]) -> list[Path]:
    """Remove the scratch files of processes that have ended, and return their paths."""
    removed = []
    for path in sorted(Path(directory).glob(f"{PREFIX}*{_SUFFIX}")):
        try:
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)  # NFS locks only files open for writing
        except OSError:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
            removed.append(path)
        except OSError:  # in use, or owned by another user
            pass
        finally:
            os.close(fd)
    return removed


def check_space(directory: str, nbytes: int) -> None:
    """Raise ENOSPC if a directory's filesystem has no room for that many bytes.

    Raises:
        OSError: too little space, or no such directory.
    """
    state = os.statvfs(directory)
    free = state.f_bavail * state.f_frsize
    if nbytes + _SPARE > free:
        raise OSError(
            errno.ENOSPC,
            f"{format_bytes(nbytes)} are needed and {format_bytes(free)} are free: "
            "give a smaller size, or a path on another disk",
            directory,
        )


def _create(folder: str) -> tuple[str, int]:
    """Create a locked file; return its path and descriptor."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    while True:
        path = str(Path(folder) / f"{PREFIX}{os.getpid()}-{secrets.token_hex(4)}{_SUFFIX}")
        fd = os.open(path, flags, 0o600)
        with suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_nlink:  # no other process has removed it before it was locked
            return path, fd
        os.close(fd)
