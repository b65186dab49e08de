"""The disk that a file is on: filesystem, device, whether direct I/O works, and a first estimate of its rate."""

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
from typing import NamedTuple

from dsexplore._internal.aio.aio_constants import PAGE
from dsexplore._internal.aio.backends import syscalls as sc
from dsexplore._internal.aio.buffers import Buffer, fill_random
from dsexplore._internal.aio.transfer_file import O_DIRECT, Alignment, TransferFile, direct_alignment, make_durable

_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "ceph", "glusterfs", "beegfs", "9p", "afs"}
_NETWORK_FUSE = {"fuse.sshfs", "fuse.glusterfs", "fuse.ceph-fuse", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone"}
_VIRTUAL_DRIVERS = {"virtio_blk", "vbd", "xen-blkfront"}
_VIRTUAL_MODELS = ("qemu", "vmware", "vbox", "virtual")
_MEMORY = {"tmpfs", "ramfs", "zram"}
_PROBE_BYTES = 16 << 20
"""Bytes of each write of `probed_rate`."""
_MAX_PROBES = 4
"""Number of writes of `probed_rate` at most; the fastest counts, since other programs can only add time."""
_PROBE_SECONDS = 0.3
"""Seconds after which `probed_rate` tries no further write."""


@dataclass(frozen=True, slots=True)
class Disk:
    """Facts about the filesystem and device under a path."""

    path: str
    """Path that the caller passed."""
    filesystem: str
    """Type of the filesystem, as in the mount table: ``ext4``, ``xfs``, ``tmpfs``, ``nfs4``; ``?`` if unknown."""
    mount: str
    """Mount point; ``?`` if unknown."""
    device: str
    """Device, as in the mount table; ``?`` if unknown."""
    model: str
    """Model of the drive; empty if unknown."""
    kind: str
    """``disk``, ``memory`` (tmpfs, no disk), ``loop`` (a device whose data is in a file) or ``network`` (a remote disk
    and the network)."""
    free_bytes: int
    """Bytes that this user can still write."""
    direct: bool
    """True if a direct read past the page cache succeeded."""
    why_buffered: str | None
    """Why direct I/O is not used; None if it is."""
    memory_alignment: int
    """Alignment of addresses in bytes that direct I/O requires; 1 without direct I/O."""
    offset_alignment: int
    """Alignment of offsets and lengths in bytes that direct I/O requires; 1 without direct I/O."""
    is_virtual: bool = False
    """True for a device of a virtual machine; its host may have a cache."""

    @property
    def label(self) -> str:
        """Text such as ``ext4 on /dev/vda (disk, direct I/O)``."""
        access = "direct I/O" if self.direct else "page cache"
        return f"{self.filesystem} on {self.device} ({self.kind}, {access})"


def disk_of(path: str | os.PathLike[str], *, direct: bool = True) -> Disk:
    """Return facts about the disk that an existing file is on. A direct read is tried; nothing is written.

    Args:
        path: path of the file.
        direct: try a direct read; False to use the page cache.

    Raises:
        OSError: the file cannot be opened.
    """
    mount = _mount_of(os.path.realpath(path))
    why_buffered = None if direct else "buffered I/O was asked for"
    alignment: Alignment | None = None
    if direct:
        alignment, why_buffered = _try_direct(os.fspath(path), mount.filesystem)
    space = os.statvfs(path)
    return Disk(
        path=os.fspath(path),
        filesystem=mount.filesystem,
        mount=mount.point,
        device=mount.device,
        model=_model_of(path),
        kind="loop" if _is_loop(path) else _kind_of(mount.filesystem, mount.device),
        free_bytes=space.f_bavail * space.f_frsize,
        direct=why_buffered is None,
        why_buffered=why_buffered,
        memory_alignment=alignment.memory if alignment else 1,
        offset_alignment=alignment.offset if alignment else 1,
        is_virtual=_is_virtual(path),
    )


def drop_cached(fd: int) -> float | None:
    """Write a file's dirty pages, drop its cached pages, and return the fraction of its pages that are still cached.

    It needs no privileges. None is returned if the system does not report the fraction (Linux before 6.5).
    """
    with suppress(OSError):
        make_durable(fd)
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    return cached_share(fd)


def cached_share(fd: int) -> float | None:
    """Return the fraction of a file that is in the page cache, 0 to 1; None if the system does not report it."""
    size = os.fstat(fd).st_size
    if not sc.SUPPORTED or size == 0:
        return None
    file_range = ctypes.create_string_buffer(struct.pack("=QQ", 0, size))
    counts = ctypes.create_string_buffer(40)
    if sc.cachestat(sc.CACHESTAT, fd, ctypes.addressof(file_range), ctypes.addressof(counts), 0) < 0:
        return None
    (pages,) = struct.unpack_from("=Q", counts, 0)
    return min(float(pages * os.sysconf("SC_PAGE_SIZE") / size), 1.0)


def _try_direct(path: str, filesystem: str) -> tuple[Alignment | None, str | None]:
    """Read one block with direct I/O; return (required alignment, None), or (None, why it failed)."""
    target = TransferFile(path, write=False)
    try:
        if not target.direct:
            return None, target.why_buffered
        alignment = direct_alignment(target.fd)
        if alignment is None:
            return None, "the filesystem says that it takes no direct requests (statx)"
        block = Buffer(max(alignment.offset, PAGE))
        try:
            os.preadv(target.fd, [block.bytes.data], 0)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return None, "a direct read was refused (EINVAL)"
        if not O_DIRECT or filesystem in _MEMORY:
            return None, "the files of this filesystem are the page cache"
        return alignment, None
    finally:
        target.close()


class _Mount(NamedTuple):
    """An entry of the mount table."""

    filesystem: str
    point: str
    device: str


def _mount_of(path: str) -> _Mount:
    """Return the mount that a path is on; question marks without a mount table."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return _Mount("?", "?", "?")
    innermost = _Mount("?", "", "?")
    for line in lines:
        left, _, right = line.partition(" - ")
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), left.split()[4])
        contains_path = path == point or path.startswith(point.rstrip("/") + "/")
        if contains_path and len(point) >= len(innermost.point):  # of mounts on one point, the last one is visible
            filesystem, device, *_ = right.split()
            innermost = _Mount(filesystem, point, device)
    return innermost


def _kind_of(filesystem: str, device: str) -> str:
    """Return `Disk.kind`, apart from loop devices."""
    if filesystem in _MEMORY or Path(device).name.startswith(("zram", "ram")):
        return "memory"
    if filesystem in _NETWORK or filesystem in _NETWORK_FUSE:
        return "network"
    return "disk"


def _is_loop(path: str | os.PathLike[str]) -> bool:
    """Return True if a file is on a loop device, or on a device built on one."""
    devices = [_device_folder(path)]
    while devices:
        device = devices.pop().resolve()
        if re.match(r"loop\d", device.name) or (device / "loop").is_dir() or re.match(r"loop\d", device.parent.name):
            return True
        devices += (device / "slaves").glob("*")
    return False


def _device_folder(path: str | os.PathLike[str]) -> Path:
    """Return the folder under /sys of the block device that a file is on; it need not exist."""
    number = os.stat(path).st_dev  # noqa: PTH116 - follows a path under /proc to the file
    return Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")


def _is_virtual(path: str | os.PathLike[str]) -> bool:
    """Return True if the driver or the model of a file's drive belongs to a virtual machine."""
    device = _device_folder(path).resolve()
    links = [folder / "device/driver" for folder in (device, device.parent)]  # the parent of a partition is its drive
    drivers = {link.resolve().name for link in links if link.exists()}
    return bool(drivers & _VIRTUAL_DRIVERS) or any(word in _model_of(path).lower() for word in _VIRTUAL_MODELS)


def data_share(fd: int) -> float:
    """Return the fraction of a file that is read from the disk, 0 to 1; holes and compressed parts are not.

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
    device = _device_folder(path)
    for file in (device / "device/model", device / "../device/model"):
        with suppress(OSError):
            return file.read_text(encoding="utf-8", errors="replace").strip()
    return ""


def probed_rate(fd: int, nbytes: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return a first estimate of the disk's rate in bytes per second: the fastest of a few writes with fsync.

    Args:
        fd: descriptor of the file, of which the first bytes are overwritten.
        nbytes: number of bytes that may be overwritten.
        clock: returns seconds.
    """
    data = fill_random(Buffer(min(nbytes, _PROBE_BYTES)))
    durations: list[float] = []
    while sum(durations) < _PROBE_SECONDS and len(durations) < _MAX_PROBES:
        begun = clock()
        os.pwrite(fd, data.bytes.data, 0)
        os.fsync(fd)
        durations.append(clock() - begun)
    return data.nbytes / min(durations)
