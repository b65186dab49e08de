"""The disk that a path is on: filesystem, device, whether direct I/O works, and a first estimate of its rate."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dsexplore._internal.aio.aio_constants import PAGE
from dsexplore._internal.aio.backends import syscalls as sc
from dsexplore._internal.aio.buffers import Buffer, fill_random
from dsexplore._internal.aio.transfer_file import O_DIRECT, Alignment, TransferFile, direct_alignment, make_durable

_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "ceph", "glusterfs", "beegfs", "9p", "afs"}
_NETWORK_FUSE = {"fuse.sshfs", "fuse.glusterfs", "fuse.ceph-fuse", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone"}
_VIRTUAL_DRIVERS = {"virtio_blk", "vbd", "xen-blkfront"}
_VIRTUAL_MODELS = ("qemu", "vmware", "vbox", "virtual")
_MEMORY = {"tmpfs", "ramfs", "zram"}
_PROBE = 16 << 20
"""Bytes written at once for a first estimate of the rate."""
_PROBES = 4
_PROBE_SECONDS = 0.3
"""Seconds after which no further write is tried: other programs only add to a time, so a slow one may be theirs."""


@dataclass(frozen=True, slots=True)
class Disk:
    """Facts about the filesystem and device under a path."""

    path: str
    """As the caller gave it."""
    filesystem: str
    """The filesystem's type, as the mount table names it: ``ext4``, ``xfs``, ``tmpfs``, ``nfs4``."""
    mount: str
    device: str
    model: str
    kind: str
    """``disk``, ``memory`` (tmpfs, no disk), ``loop`` (a device whose data is in a file) or ``network`` (a remote disk
    and the network)."""
    free_bytes: int
    direct: bool
    """True if a direct read past the page cache succeeded."""
    why_buffered: str | None
    memory_alignment: int
    offset_alignment: int
    is_virtual: bool = False
    """True for a device of a virtual machine; its host may keep a cache."""

    @property
    def label(self) -> str:
        """One line: ``ext4 on /dev/vda (disk, direct I/O)``."""
        way = "direct I/O" if self.direct else "page cache"
        return f"{self.filesystem} on {self.device} ({self.kind}, {way})"


def disk_of(path: str | os.PathLike[str], *, direct: bool = True) -> Disk:
    """Return facts on the disk that an existing file is on. A direct read is tried; nothing is written.

    Raises:
        OSError: the file cannot be opened.
    """
    name = os.path.realpath(path)
    filesystem, mount, device = _mount_of(name)
    why = None if direct else "buffered I/O was asked for"
    alignment: Alignment | None = None
    if why is None:
        alignment, why = _try_direct(os.fspath(path), filesystem)
    free = os.statvfs(path)
    return Disk(
        path=os.fspath(path),
        filesystem=filesystem,
        mount=mount,
        device=device,
        model=_model_of(path),
        kind="loop" if _is_loop(path) else _kind_of(filesystem, device),
        free_bytes=free.f_bavail * free.f_frsize,
        direct=why is None,
        why_buffered=why,
        memory_alignment=alignment.memory if alignment else 1,
        offset_alignment=alignment.offset if alignment else 1,
        is_virtual=_is_virtual(path),
    )


def drop_cached(fd: int) -> float | None:
    """Write a file's dirty pages, drop its cached ones, and return the fraction of pages still cached.

    It works without privileges. None if the system cannot report that (Linux before 6.5).
    """
    with suppress(OSError):
        make_durable(fd)
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    return cached_share(fd)


def cached_share(fd: int) -> float | None:
    """Return the fraction of a file in the page cache, 0 to 1; None if the system cannot report it."""
    size = os.fstat(fd).st_size
    if not sc.SUPPORTED or size == 0:
        return None
    whole = ctypes.create_string_buffer(struct.pack("=QQ", 0, size))
    answer = ctypes.create_string_buffer(40)
    if sc.cachestat(sc.CACHESTAT, fd, ctypes.addressof(whole), ctypes.addressof(answer), 0) < 0:
        return None
    (pages,) = struct.unpack_from("=Q", answer, 0)
    return min(float(pages * os.sysconf("SC_PAGE_SIZE") / size), 1.0)


def _try_direct(path: str, filesystem: str) -> tuple[Alignment | None, str | None]:
    """Try a direct read of one block; return (required alignment, None), or (None, why it failed)."""
    target = TransferFile(path, write=False)
    try:
        if not target.direct:
            return None, target.why_buffered
        alignment = direct_alignment(target.fd)
        if alignment is None:
            return None, "the filesystem says that it takes no direct requests (statx)"
        trial = Buffer(max(alignment.offset, PAGE))
        try:
            os.preadv(target.fd, [trial.bytes.data], 0)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return None, "a direct read was refused (EINVAL)"
        if not O_DIRECT or filesystem in _MEMORY:
            return None, "the files of this filesystem are the page cache"
        return alignment, None
    finally:
        target.close()


def _mount_of(path: str) -> tuple[str, str, str]:
    """Return (type, mount point, device) of the mount that a path is on; question marks without a mount table."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "?", "?", "?"
    best = ("?", "", "?")
    for line in lines:
        fields_before, _, right = line.partition(" - ")
        mount = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields_before.split()[4])
        covers = path == mount or path.startswith(mount.rstrip("/") + "/")
        if covers and len(mount) >= len(best[1]):  # of mounts on one point, the last is on top
            filesystem, device = right.split()[:2]
            best = (filesystem, mount, device)
    return best


def _kind_of(filesystem: str, device: str) -> str:
    if filesystem in _MEMORY or Path(device).name.startswith(("zram", "ram")):
        return "memory"
    if filesystem in _NETWORK or filesystem in _NETWORK_FUSE:
        return "network"
    return "disk"


def _is_loop(path: str | os.PathLike[str]) -> bool:
    """Return True if a file is on a loop device, or on a device built on one."""
    number = os.stat(path).st_dev  # noqa: PTH116 - follows a path under /proc to the file
    waiting = [Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")]
    while waiting:
        block = waiting.pop().resolve()
        if re.match(r"loop\d", block.name) or (block / "loop").is_dir() or re.match(r"loop\d", block.parent.name):
            return True
        waiting += (block / "slaves").glob("*")
    return False


def _is_virtual(path: str | os.PathLike[str]) -> bool:
    """Return True if the driver or the model of a file's drive belongs to a virtual machine."""
    number = Path(path).stat().st_dev
    block = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve()
    drives = [block, block.parent]  # of a partition, the second is its drive
    drivers = {driver.resolve().name for drive in drives for driver in (drive / "device/driver",) if driver.exists()}
    return bool(drivers & _VIRTUAL_DRIVERS) or any(word in _model_of(path).lower() for word in _VIRTUAL_MODELS)


def data_share(fd: int) -> float:
    """Return the fraction of a file that is read from the disk, 0 to 1: neither holes nor compressed away.

    Space that was reserved but never written counts as holes if the filesystem reports it.
    """
    state = os.fstat(fd)
    if state.st_size == 0 or not hasattr(os, "SEEK_DATA"):
        return 1.0
    data = at = 0
    with suppress(OSError):  # ENXIO: only a hole follows
        while at < state.st_size:
            begin = os.lseek(fd, at, os.SEEK_DATA)
            at = os.lseek(fd, begin, os.SEEK_HOLE)
            data += at - begin
    return min(data, state.st_blocks * 512, state.st_size) / state.st_size


def _model_of(path: str | os.PathLike[str]) -> str:
    """Return the drive's model name; empty if the system has none."""
    number = Path(path).stat().st_dev
    block = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    for candidate in (block / "device/model", block / "../device/model"):
        with suppress(OSError):
            return candidate.read_text(encoding="utf-8", errors="replace").strip()
    return ""


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
