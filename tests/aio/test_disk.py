"""Facts about the disk under a path, on this machine's own filesystems and on mounted ones."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from dsexplore._internal.aio.buffers import Buffer, fill_random
from dsexplore._internal.aio.disk import cached_share, data_share, disk_of, drop_cached, probed_rate

pytestmark = pytest.mark.usefixtures("open_files")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(fill_random(Buffer(1 << 20)).bytes.tobytes())
    return path


def test_cached_pages_are_dropped_without_privileges(file: Path) -> None:
    disk = disk_of(file)
    if disk.kind != "disk":
        pytest.skip(f"{disk.label}: its files live in memory")
    file.read_bytes()
    fd = os.open(file, os.O_RDONLY)
    try:
        if cached_share(fd) is None:
            pytest.skip("this kernel does not tell what is cached")
        assert cached_share(fd) == 1.0
        assert drop_cached(fd) == 0.0
    finally:
        os.close(fd)


def test_the_part_of_a_file_that_is_data(tmp_path: Path) -> None:
    path = tmp_path / "file"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        assert data_share(fd) == 1.0  # nothing is missing
        os.pwrite(fd, os.urandom(1 << 20), 1 << 20)
        os.fsync(fd)
        assert data_share(fd) == 0.5
        os.pwrite(fd, os.urandom(1 << 20), 3 << 20)
        os.ftruncate(fd, 8 << 20)
        os.fsync(fd)
        assert data_share(fd) == 0.25
        os.pwrite(fd, os.urandom(8 << 20), 0)
        os.fsync(fd)
        assert data_share(fd) == 1.0
        os.ftruncate(fd, 0)
        os.posix_fallocate(fd, 0, 1 << 20)
        assert data_share(fd) == 0.0  # never written: reads give zeros, and ask no disk
    finally:
        os.close(fd)


def test_facts_about_a_disk(file: Path) -> None:
    disk = disk_of(file)
    assert disk.path == str(file)
    assert str(file).startswith(disk.mount)
    assert disk.free_bytes > 0
    assert disk.direct is (disk.why_buffered is None)
    if disk.direct:
        assert 4096 % disk.offset_alignment == 0
        assert disk.label.endswith("direct I/O)")
    assert disk_of(file, direct=False).why_buffered == "buffered I/O was asked for"
    assert disk_of(file, direct=False).label.endswith("page cache)")


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO])
def test_a_disk_that_refuses_a_direct_read_is_read_through_the_page_cache(
    file: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    if not disk_of(file).direct:
        pytest.skip("direct I/O is not possible here")

    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("dsexplore._internal.aio.disk.os.preadv", refuse)
    if number == errno.EINVAL:
        assert disk_of(file).why_buffered == "a direct read was refused (EINVAL)"
    else:
        with pytest.raises(OSError, match="Input/output error"):
            disk_of(file)


def test_tmpfs_is_recognized(mounted) -> None:  # type: ignore[no-untyped-def]
    path = mounted("size=2m") / "file"
    path.write_bytes(bytes(8192))
    disk = disk_of(path)
    assert (disk.filesystem, disk.kind, disk.direct) == ("tmpfs", "memory", False)
    assert disk.why_buffered is not None
    assert "page cache" in disk.label


def test_a_mount_below_one_that_came_later(mounted: Callable[..., Path]) -> None:
    """Take the deepest mount on the way to a file, wherever the mount table lists it."""
    base = mounted("size=1m")
    early, late = base / "early", base / "late"
    early.mkdir()
    late.mkdir()
    below = late / "below"
    calls = [
        ["mount", "--make-private", str(base)],  # the kernel moves no mount out of a shared one
        ["mount", "-t", "tmpfs", "-o", "size=2m", "early-device", str(early)],
        ["mount", "-t", "tmpfs", "-o", "size=2m", "late-device", str(late)],
    ]
    for call in calls:
        subprocess.run(call, check=True)
    try:
        below.mkdir()
        subprocess.run(["mount", "--move", str(early), str(below)], check=True)
        (below / "file").write_bytes(bytes(8192))
        disk = disk_of(below / "file")
        assert (disk.mount, disk.device) == (str(below), "early-device")
        assert disk_of(late).device == "late-device"
    finally:
        subprocess.run(["umount", "--recursive", str(late)], check=True)


@pytest.mark.parametrize(
    ("filesystem", "device", "kind"),
    [
        ("nfs4", "server:/home", "network"),
        ("fuse.sshfs", "host:", "network"),
        ("9p", "share", "network"),
        ("ext4", "/dev/nvme0n1p1", "disk"),
        ("ext4", "/dev/zram0", "memory"),
        ("ramfs", "none", "memory"),
    ],
)
def test_kinds_of_filesystem(filesystem: str, device: str, kind: str) -> None:
    from dsexplore._internal.aio.disk import _kind_of

    assert _kind_of(filesystem, device) == kind


def test_the_fastest_of_a_few_tries_counts(tmp_path: Path) -> None:
    looks = iter([0.0, 0.2, 1.0, 1.05, 2.0, 2.1])
    with (tmp_path / "file").open("wb") as file:
        assert probed_rate(file.fileno(), 8 << 20, lambda: next(looks)) == pytest.approx((8 << 20) / 0.05)
    assert (tmp_path / "file").stat().st_size == 8 << 20
    assert list(looks) == []  # a third of a second was used up


def test_a_slow_disk_is_tried_once(tmp_path: Path) -> None:
    looks = iter([0.0, 2.0])
    with (tmp_path / "file").open("wb") as file:
        assert probed_rate(file.fileno(), 1 << 30, lambda: next(looks)) == 8 << 20
    assert (tmp_path / "file").stat().st_size == 16 << 20
