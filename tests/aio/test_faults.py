"""Full disks, read-only mounts, exhausted limits, forks and kills: a clear error or a right result, no stray file.

Modules: ``aio/pool.py``, ``aio/driver.py``, ``aio/sweeps/scratch.py``.
"""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from dsexplore._internal.aio import pool
from dsexplore._internal.aio.backends import linux_aio
from dsexplore._internal.aio.backends import syscalls as sc
from dsexplore._internal.aio.backends.base import split
from dsexplore._internal.aio.backends.linux_aio import LinuxAio
from dsexplore._internal.aio.buffers import fill_random
from dsexplore._internal.aio.sweeps.result_text import what
from dsexplore._internal.aio.sweeps.scratch import PREFIX
from dsexplore._internal.aio.transfer_file import TransferFile
from dsexplore._internal.errors import UsageError
from dsexplore.aio import AioConfig, Buffer, aio_handle, sweep
from tests.programs import python


@pytest.mark.parametrize("threads", [1, 3])
def test_a_disk_that_fills_in_the_middle(loop_disk: Path, backend: str, threads: int) -> None:
    data = fill_random(Buffer(32 << 20))
    with aio_handle(1 << 20, 8, False, True, threads, backend=backend) as handle:
        with pytest.raises(OSError, match=r"write of 33554432 bytes at offset 0") as caught:
            handle.sync_pwrite(data, str(loop_disk / "file"))
        assert caught.value.errno == errno.ENOSPC
        (loop_disk / "file").unlink()
        small = Buffer(1 << 20)
        small.bytes[:] = data.bytes[: 1 << 20]
        assert handle.sync_pwrite(small, str(loop_disk / "small")) == 1
    assert (loop_disk / "small").read_bytes() == small.bytes.tobytes()


def test_a_disk_that_fills_during_a_sweep_leaves_no_file(loop_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsexplore._internal.aio.sweeps.scratch.check_space", lambda *_: None)
    with pytest.raises(OSError, match="No space left") as caught:
        sweep(loop_disk, "64MiB", 1)
    assert caught.value.errno == errno.ENOSPC
    assert [entry.name for entry in loop_disk.iterdir()] == ["lost+found"]


def test_a_small_disk_is_swept(loop_disk: Path) -> None:
    result = sweep(loop_disk, "16MiB", 1.0, block_size=[1 << 18], thread_count=[1, 2])
    assert result.disk.filesystem == "ext4"
    assert result.disk.mount == str(loop_disk)
    assert result.disk.kind == "loop"
    assert "is a loop device, whose data may come from the page cache" in result.best().verdict()
    assert result.best().config == AioConfig()
    assert [entry.name for entry in loop_disk.iterdir()] == ["lost+found"]


def test_tmpfs_is_swept_and_named(mounted: Callable[..., Path]) -> None:
    point = mounted("size=40m")
    result = sweep(point, "16MiB", 0.8, block_size=[1 << 18])
    assert what(result).startswith("tmpfs on tmpfs (memory, page cache)")
    assert "these files live in memory" in result.best().verdict()
    assert result.best().config == AioConfig()
    assert list(point.iterdir()) == []


def test_a_read_only_mount(mounted: Callable[..., Path]) -> None:
    point = mounted("size=40m")
    (point / "data").write_bytes(os.urandom(9 << 20))
    subprocess.run(["mount", "-o", "remount,ro", str(point)], check=True)
    with pytest.raises(OSError, match=str(point)) as caught:
        sweep(point, "16MiB", 1)
    assert caught.value.errno == errno.EROFS
    with aio_handle(queue_depth=2) as handle, pytest.raises(OSError, match="open for write") as caught:
        handle.sync_pwrite(bytearray(10), str(point / "data"))
    assert (caught.value.errno, caught.value.filename) == (errno.EROFS, str(point / "data"))
    assert sweep(point / "data", "16MiB", 0.5, block_size=[1 << 18]).operations == ["read"]


def test_a_file_that_someone_else_owns(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become someone else")
    tmp_path.chmod(0o755)
    closed = {parent: parent.stat().st_mode for parent in tmp_path.parents if parent.stat().st_mode & 0o005 != 0o005}
    for parent, mode in closed.items():
        request.addfinalizer(partial(parent.chmod, mode))
        parent.chmod(mode | 0o005)
    (tmp_path / "secret").write_bytes(bytes(10 << 20))
    (tmp_path / "secret").chmod(0o600)
    (tmp_path / "abandoned").write_bytes(b"")
    theirs = tmp_path / f"{PREFIX}1-00000000.tmp"
    theirs.write_bytes(b"theirs")
    theirs.chmod(0o600)
    done = python(f"""
        import os, sys
        from dsexplore.aio import aio_handle, sweep  # before the rights to read the code are given up
        import dsexplore._internal.aio.sweeps.fio_and_deepspeed
        from dsexplore._internal.aio.backends import io_uring, linux_aio
        import dsexplore._internal.aio.backends.threads
        os.setgid(65534); os.setuid(65534)
        for call in (
            lambda: aio_handle(queue_depth=2).sync_pread(bytearray(10), {str(tmp_path / "secret")!r}),
            lambda: sweep({str(tmp_path / "secret")!r}, "16MiB", 1),
            lambda: sweep({str(tmp_path)!r}, "16MiB", 1),
        ):
            try:
                call()
            except PermissionError as error:
                print(error.errno, error.filename)
    """)
    assert done.stdout.splitlines()[:2] == [f"{errno.EACCES} {tmp_path / 'secret'}"] * 2, done.stderr
    assert len(done.stdout.splitlines()) == 3, done.stderr
    assert done.stdout.splitlines()[2].startswith(f"{errno.EACCES} {tmp_path}/{PREFIX}")
    assert theirs.exists()


def test_no_descriptors_left() -> None:
    done = python("""
        import os, resource, tempfile
        import numpy as np
        from dsexplore.aio import aio_handle, sweep
        folder = tempfile.mkdtemp()
        path = folder + "/file"
        handle = aio_handle(4096, 4)
        handle.sync_pwrite(np.arange(10_000), path)
        lowest = os.dup(0)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, lowest))
        for call in (
            lambda: handle.sync_pread(np.zeros(10_000, np.int64), path),
            lambda: sweep(folder, "16MiB", 1),
        ):
            try:
                call()
            except OSError as error:
                print(error.errno, error.filename)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, lowest))
        handle.close()
        os.unlink(path)
        os.rmdir(folder)
        print("clean")
    """)
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == [str(errno.EMFILE)] * 2 + ["clean"], done.stderr
    assert lines[0].endswith("/file")


def test_an_engine_that_lacked_a_descriptor_once_runs_later(backend: str) -> None:
    done = python(f"""
        import os, resource
        from dsexplore._internal.aio.backends.choose import choose, why_not
        import dsexplore._internal.aio.backends.{backend.replace("-", "_")}
        lowest = os.dup(0)
        os.close(lowest)
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, before[1]))
        why_not({backend!r})
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        print(choose({backend!r}))
    """)
    assert done.stdout == f"{backend}\n", done.stderr


def test_a_file_that_is_shortened_during_a_read(tmp_path: Path, backend: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(8 << 20))
    drive = pool.drive

    def late(*arguments) -> None:  # type: ignore[no-untyped-def]
        os.truncate(path, (1 << 20) + 100)
        drive(*arguments)

    with pytest.MonkeyPatch.context() as patch, aio_handle(1 << 20, 4, backend=backend) as handle:
        patch.setattr(pool, "drive", late)
        shortened = "the file ends at byte 1048676, before byte 2097152: it was shortened while it was read"
        with pytest.raises(OSError, match=shortened) as caught:
            handle.sync_pread(Buffer(8 << 20), str(path))
    assert (caught.value.errno, caught.value.filename) == (errno.ENODATA, str(path))


@pytest.mark.parametrize("offset", [2**63, 2**63 - 99, 2**64])
def test_positions_that_no_file_has(tmp_path: Path, offset: int) -> None:
    (tmp_path / "file").write_bytes(bytes(100))
    with aio_handle(queue_depth=2) as handle:
        for move in (handle.sync_pread, handle.sync_pwrite, handle.read, handle.write):
            with pytest.raises(UsageError, match=f"file_offset {offset} with 100 bytes goes beyond 2..63 - 1, the"):
                move(bytearray(100), str(tmp_path / "file"), file_offset=offset)


@pytest.mark.parametrize("offset", [2**62, 2**63 - 101])
def test_any_position_that_a_file_may_have_is_asked_for(tmp_path: Path, offset: int) -> None:
    (tmp_path / "file").write_bytes(bytes(100))
    with aio_handle(queue_depth=2) as handle, pytest.raises(OSError, match=f"read of 100 bytes at offset {offset}"):
        handle.read(bytearray(100), str(tmp_path / "file"), file_offset=offset)


def test_few_descriptors_suffice_for_a_transfer(tmp_path: Path) -> None:
    done = python(f"""
        import os, resource
        import numpy as np
        from dsexplore.aio import aio_handle
        path = {str(tmp_path / "file")!r}
        handle = aio_handle(4096, 4, intra_op_parallelism=3)
        free = os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + 2, free + 2))  # one direct, one for the tail
        data = np.arange(12_345)
        for _ in range(5):
            handle.async_pwrite(data, path)
            handle.wait()
        back = np.zeros_like(data)
        handle.sync_pread(back, path)
        print(np.array_equal(back, data))
    """)
    assert done.stdout == "True\n", done.stderr


def test_minimal_memory_lock_limit_does_not_hinder_a_sweep(tmp_path: Path) -> None:
    done = python(f"""
        import resource
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
        from dsexplore.aio import sweep
        result = sweep({str(tmp_path)!r}, "16MiB", 0.6, backend="linux-aio", block_size=[1 << 18])
        print(len(result.measured) > 0)
    """)
    assert done.stdout == "True\n", done.stderr


def test_not_enough_aio_requests(tmp_path: Path) -> None:
    limit = int(Path("/proc/sys/fs/aio-max-nr").read_text())
    with pytest.raises(OSError, match=f"aio-max-nr is {limit}") as caught:
        aio_handle(queue_depth=limit // 2 + 1, intra_op_parallelism=4, backend="linux-aio")
    assert caught.value.errno == errno.EAGAIN
    with aio_handle(queue_depth=8) as handle:  # those that were granted have been given back
        handle.sync_pwrite(bytearray(b"x"), str(tmp_path / "file"))


def test_an_aio_context_refused_for_another_reason() -> None:
    with pytest.raises(OSError, match="io_setup for queue_depth 0: Invalid argument") as caught:
        LinuxAio(0)
    assert caught.value.errno == errno.EINVAL


@pytest.mark.parametrize("backend_name", ["threads", "io_uring"])
def test_depths_that_other_engines_refuse(backend_name: str) -> None:
    with pytest.raises(OSError, match="queue_depth 70000") as caught:
        aio_handle(queue_depth=70_000, backend=backend_name)
    assert caught.value.errno in (errno.EAGAIN, errno.EINVAL)


def test_a_filesystem_without_direct_io(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    real = os.open

    def refusing(path: str, flags: int, *rest: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument", path)
        return real(path, flags, *rest)

    monkeypatch.setattr(os, "open", refusing)
    target = TransferFile(tmp_path / "file", write=True)
    assert (target.direct, target.why_buffered) == (False, "the filesystem refuses O_DIRECT (EINVAL)")
    target.close()
    data = fill_random(Buffer(300_001))
    with aio_handle(65536, 4, intra_op_parallelism=2, backend=backend) as handle:
        handle.sync_pwrite(data, str(tmp_path / "file"), 7)
        back = np.zeros(300_001, np.uint8)
        handle.sync_pread(back, str(tmp_path / "file"), 7)
    assert np.array_equal(back, data.bytes)
    result = sweep(tmp_path, "16MiB", 0.6, backend=backend, block_size=[1 << 18])
    assert what(result).split("; ")[0].endswith("page cache)")
    assert "the filesystem refuses" in str(result.disk.why_buffered)
    in_memory = "these files live in memory, so no disk was measured"
    otherwise = "the page cache was measured, not the disk, since the filesystem refuses"
    assert (in_memory if result.disk.kind == "memory" else otherwise) in result.best().verdict()
    assert result.best().config == AioConfig()


def test_direct_requests_that_are_refused_are_completed_plainly(tmp_path: Path, backend: str) -> None:
    """A block size below the sector of the disk: each request comes back with EINVAL."""
    path = tmp_path / "file"
    data = fill_random(Buffer(64 << 10))
    path.write_bytes(data.bytes.tobytes())
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    back = np.zeros((64 << 10) + 1, np.uint8)[1:]
    try:
        with aio_handle(4096, 4, backend=backend) as handle:
            target = TransferFile(fd, write=False)
            from dsexplore._internal.aio.backends.choose import open_engine
            from dsexplore._internal.aio.driver import Policy, drive

            engine = open_engine(backend, 4)
            requests = split(
                fd, write=False, address=back.ctypes.data, nbytes=back.nbytes, offset=0, block_size=1000
            )  # misaligned in every way
            drive(engine, requests, Policy(False, True), target.plain_fd, None)
            engine.close()
            target.close()
            assert handle.backend == backend
    finally:
        os.close(fd)
    assert np.array_equal(back, data.bytes)


@pytest.mark.parametrize("name", ["io_getevents", "io_submit"])
def test_a_system_call_that_fails_for_good_names_itself_and_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    engine = linux_aio.LinuxAio(2)
    page = Buffer(4096)
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    engine.load(split(fd, write=True, address=page.address, nbytes=4096, offset=0, block_size=4096))
    monkeypatch.setattr(engine, "_number", sc.word(0x1000))  # no such context
    monkeypatch.setattr(engine, "_context", 0x1000)
    with pytest.raises(OSError, match=f"^.Errno 22. {name}: Invalid argument$"):
        engine.submit(0, 1) if name == "io_submit" else engine.wait(1)
    monkeypatch.undo()
    engine.close()
    os.close(fd)
