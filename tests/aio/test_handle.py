"""Return values, errors and life of a handle.

Modules: ``aio/handle.py``, ``aio/deepspeed_operator.py``.
"""

import errno
import gc
import inspect
import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from dsexplore._internal.aio.backends import choose
from dsexplore._internal.errors import UsageError
from dsexplore.aio import AioConfig, aio_handle, aio_read, aio_write

pytestmark = pytest.mark.usefixtures("open_files")


@pytest.fixture
def file(tmp_path: Path, random_bytes: Callable[[int], bytes]) -> str:
    path = tmp_path / "file"
    path.write_bytes(random_bytes(100_000))
    return str(path)


def test_constructor_has_deepspeeds_arguments_and_defaults() -> None:
    parameters = list(inspect.signature(aio_handle).parameters.values())
    assert [(p.name, p.default) for p in parameters[:5]] == [
        ("block_size", 1048576),
        ("queue_depth", 128),
        ("single_submit", False),
        ("overlap_events", False),
        ("intra_op_parallelism", 1),
    ]


def test_getters() -> None:
    with aio_handle(4096, 3, True, True, 2) as handle:
        assert handle.get_block_size() == 4096
        assert handle.get_queue_depth() == 3
        assert handle.get_single_submit() is True
        assert handle.get_overlap_events() is True
        assert handle.get_intra_op_parallelism() == 2
        assert handle.get_alignment() == 1024


def test_synchronous_calls_return_the_operations_completed(file: str, tmp_path: Path) -> None:
    tensor = torch.empty(100_000, dtype=torch.uint8)
    with aio_handle(4096, 4) as handle:
        assert handle.sync_pread(tensor, file) == 1
        assert handle.sync_pwrite(tensor, str(tmp_path / "b")) == 1
        assert handle.async_pread(tensor, file) == 0
        other = torch.empty(100, dtype=torch.uint8)
        assert handle.async_pread(other, file) == 0
        assert handle.sync_pread(torch.empty(7, dtype=torch.uint8), file) == 3  # with the two that were pending
        assert handle.read(tensor, file, False) == 0
        assert handle.write(tensor, str(tmp_path / "c"), True) == 0
    assert (tmp_path / "b").read_bytes() == (tmp_path / "c").read_bytes() == Path(file).read_bytes()


def test_asynchronous_calls_are_counted_by_wait(file: str, tmp_path: Path) -> None:
    with aio_handle(4096, 4, intra_op_parallelism=2) as handle:
        for number in range(5):
            assert handle.async_pwrite(torch.full((5000,), number, dtype=torch.uint8), str(tmp_path / str(number))) == 0
        assert handle.wait() == 5
        with pytest.raises(UsageError, match="nothing to wait for"):
            handle.wait()
    assert [(tmp_path / str(n)).read_bytes() for n in range(5)] == [bytes([n]) * 5000 for n in range(5)]


def test_pread_takes_validate_and_async_as_deepspeed_does(file: str, tmp_path: Path) -> None:
    tensor = torch.empty(50_000, dtype=torch.uint8)
    with aio_handle(4096, 4) as handle:
        assert handle.pread(tensor, file, True, False) == 1
        assert handle.pread(tensor, file, False, True, 50_000) == 0
        assert handle.wait() == 1
        assert tensor.numpy().tobytes() == Path(file).read_bytes()[50_000:]
        assert handle.pread(buffer=tensor, filename=file, validate=True, **{"async": True}, file_offset=10) == 0
        assert handle.wait() == 1
        assert handle.pwrite(tensor, str(tmp_path / "b"), True, False, 4096) == 1
        with pytest.raises(TypeError, match="'async' twice"):
            handle.pread(tensor, file, True, False, asynchronous=True)
        with pytest.raises(TypeError, match="got also"):
            handle.pread(tensor, file, True, False, 0, 1)


@pytest.mark.parametrize("flags", [0, os.O_DIRECT], ids=["buffered", "direct"])
def test_a_descriptor_instead_of_a_path(file: str, tmp_path: Path, flags: int) -> None:
    tensor = torch.empty(100_000, dtype=torch.uint8)
    source = os.open(file, os.O_RDONLY | flags)
    target = os.open(tmp_path / "b", os.O_RDWR | os.O_CREAT | flags)
    try:
        with aio_handle(4096, 4, intra_op_parallelism=2) as handle:
            assert handle.sync_pread(tensor, source) == 1
            assert handle.async_pwrite(tensor, target, 3) == 0
            assert handle.wait() == 1
        os.fstat(target)  # still open: it is the caller's
    finally:
        os.close(source)
        os.close(target)
    assert (tmp_path / "b").read_bytes() == b"\0\0\0" + Path(file).read_bytes()


def test_offsets_and_counts_of_numpy_are_taken(file: str, tmp_path: Path) -> None:
    with aio_handle(4096, 4) as handle:
        tensor = handle.new_cpu_locked_tensor(np.int64(1000), torch.empty(0, dtype=torch.uint8))  # type: ignore[arg-type]
        assert handle.sync_pread(tensor, file, np.int64(5000)) == 1  # type: ignore[arg-type]
        with pytest.raises(UsageError, match=r"num_elem 1\.5 is not a number"):
            handle.new_cpu_locked_tensor(1.5, tensor)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match=r"file_offset 4096\.0 is not a position"):
            handle.sync_pread(tensor, file, 4096.0)  # type: ignore[arg-type]
    assert tensor.numpy().tobytes() == Path(file).read_bytes()[5000:6000]


def test_a_descriptor_by_deepspeeds_name(tmp_path: Path) -> None:
    with aio_handle(4096, 4) as handle, (tmp_path / "b").open("wb") as target:
        assert handle.async_pwrite(buffer=torch.ones(5000, dtype=torch.uint8), fd=target.fileno(), file_offset=7) == 0
        assert handle.wait() == 1
        for wrong in ({}, {"filename": "x", "fd": 3}):
            with pytest.raises(TypeError, match="either filename or fd"):
                handle.async_pwrite(torch.ones(4), **wrong)  # type: ignore[arg-type]
    assert (tmp_path / "b").read_bytes() == bytes(7) + bytes([1]) * 5000


def test_a_descriptor_that_appends_is_refused(file: str) -> None:
    before = Path(file).read_bytes()
    with (
        aio_handle(4096, 4) as handle,
        Path(file).open("ab") as target,
        pytest.raises(UsageError, match=f"descriptor {target.fileno()} .{file}. is open for appending"),
    ):
        handle.async_pwrite(torch.ones(50_000, dtype=torch.uint8), target.fileno(), 0)
    assert Path(file).read_bytes() == before


def test_functions(tmp_path: Path) -> None:
    path = str(tmp_path / "b")
    tensor = torch.arange(12_345)
    assert aio_write(tensor, path, 4096, 8, False, True, True) == 0
    back = torch.zeros_like(tensor)
    assert aio_read(back, path, 4096, 8, True, False, True) == 0
    assert torch.equal(back, tensor)


@pytest.mark.parametrize("method", ["sync_pread", "async_pread"])
def test_a_missing_file(tmp_path: Path, method: str) -> None:
    with aio_handle(queue_depth=2) as handle, pytest.raises(FileNotFoundError, match="open for read") as caught:
        getattr(handle, method)(torch.empty(4), str(tmp_path / "none"))
    assert caught.value.filename == str(tmp_path / "none")


@pytest.mark.parametrize("method", ["sync_pread", "sync_pwrite", "read"])
def test_a_directory_is_no_file(tmp_path: Path, method: str) -> None:
    with aio_handle(queue_depth=2) as handle, pytest.raises(IsADirectoryError, match=r"open for .*directory") as caught:
        getattr(handle, method)(torch.empty(4), str(tmp_path))
    assert caught.value.filename == str(tmp_path)


def test_a_missing_directory(tmp_path: Path) -> None:
    with aio_handle(queue_depth=2) as handle, pytest.raises(FileNotFoundError, match="open for write"):
        handle.sync_pwrite(torch.empty(4), str(tmp_path / "none" / "x"))


def test_one_failure_among_several_is_raised_when_all_have_finished(tmp_path: Path, mounted) -> None:  # type: ignore[no-untyped-def]
    small = mounted("size=1m")
    good = torch.ones(100_000, dtype=torch.uint8)
    with aio_handle(65536, 4) as handle:
        handle.async_pwrite(torch.ones(4 << 20, dtype=torch.uint8), str(small / "a"))
        handle.async_pwrite(torch.ones(4 << 20, dtype=torch.uint8), str(small / "b"))
        handle.async_pwrite(good, str(tmp_path / "c"))
        with pytest.raises(OSError, match="write of 4194304 bytes") as caught:
            handle.wait()
        assert caught.value.errno == errno.ENOSPC
        assert caught.value.filename == str(small / "a")
        assert any(str(small / "b") in note for note in caught.value.__notes__)
        assert (tmp_path / "c").read_bytes() == bytes([1]) * 100_000
        with pytest.raises(UsageError, match="nothing to wait for"):
            handle.wait()
        assert handle.sync_pwrite(good, str(tmp_path / "d")) == 1  # and the handle still works


def test_a_buffer_freed_while_in_flight(file: str, tmp_path: Path) -> None:
    with aio_handle(4096, 2) as handle:
        tensor = handle.new_cpu_locked_tensor(100_000, torch.empty(0, dtype=torch.uint8))
        handle.sync_pread(tensor, file)
        handle.async_pwrite(tensor, str(tmp_path / "b"))
        handle.free_cpu_locked_tensor(tensor)
        del tensor
        gc.collect()
        assert handle.wait() == 1
    assert (tmp_path / "b").read_bytes() == Path(file).read_bytes()


def test_two_handles_at_once(file: str) -> None:
    one, two = torch.empty(100_000, dtype=torch.uint8), torch.empty(100_000, dtype=torch.uint8)
    with aio_handle(4096, 4) as first, aio_handle(512, 64, True, True, 3) as second:
        first.async_pread(one, file)
        second.async_pread(two, file)
        assert (second.wait(), first.wait()) == (1, 1)
    assert torch.equal(one, two)


def test_one_handle_from_many_threads(file: str) -> None:
    tensors = [torch.empty(100_000, dtype=torch.uint8) for _ in range(8)]
    with aio_handle(4096, 4, intra_op_parallelism=2) as handle:
        threads = [threading.Thread(target=handle.read, args=(tensor, file)) for tensor in tensors]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert all(tensor.numpy().tobytes() == Path(file).read_bytes() for tensor in tensors)


def test_a_closed_handle(file: str) -> None:
    handle = aio_handle(queue_depth=2)
    handle.close()
    handle.close()
    with pytest.raises(UsageError, match="closed"):
        handle.sync_pread(torch.empty(4), file)


def test_close_finishes_what_is_pending(tmp_path: Path) -> None:
    with aio_handle(4096, 4) as handle:
        handle.async_pwrite(torch.ones(1 << 20, dtype=torch.uint8), str(tmp_path / "b"))
    assert (tmp_path / "b").stat().st_size == 1 << 20


def test_a_forgotten_handle_ends_its_threads_and_queues() -> None:
    def held() -> tuple[int, int]:
        """Threads and queues of this process: an aio context is a mapping."""
        running = [thread for thread in threading.enumerate() if thread.name.startswith("dsexplore-aio")]
        return len(running), Path("/proc/self/maps").read_text().count("[aio]")

    gc.collect()
    threads, queues = held()
    handle = aio_handle(queue_depth=64, intra_op_parallelism=3, backend="linux-aio")
    assert held() == (threads + 3, queues + 3)
    del handle
    gc.collect()
    assert held() == (threads, queues)


def test_wrong_tensors(file: str) -> None:
    with aio_handle(queue_depth=2) as handle:
        with pytest.raises(UsageError, match="not contiguous"):
            handle.sync_pread(torch.empty(10, 10).t(), file)
        with pytest.raises(UsageError, match="lazy conjugate"):
            handle.sync_pwrite(torch.zeros(4, dtype=torch.complex64).conj(), file)
        with pytest.raises(UsageError, match="meta"):
            handle.sync_pread(torch.empty(4, device="meta"), file)
        with pytest.raises(UsageError, match="read-only"):
            handle.sync_pread(b"1234", file)
        with pytest.raises(TypeError, match="list has no memory"):
            handle.sync_pread([1, 2], file)
        with pytest.raises(UsageError, match="file_offset -1"):
            handle.sync_pread(torch.empty(4), file, -1)
        with pytest.raises(UsageError, match="nothing to wait for"):
            handle.wait()


def test_a_wrong_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="'spdk' is unknown: it is one of linux-aio, io_uring, threads"):
        aio_handle(backend="spdk")
    monkeypatch.setattr(choose, "why_not", lambda name: None if name == "threads" else "not on this system")
    with pytest.raises(UsageError, match="'io_uring' cannot run here: not on this system"):
        aio_handle(backend="io_uring")
    with aio_handle(queue_depth=2) as handle:
        assert handle.backend == "threads"


def test_validate_notices_a_file_that_changed(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from dsexplore._internal.aio import pool

    drive = pool.drive

    def spoil(engine, requests, *rest):  # type: ignore[no-untyped-def]
        drive(engine, requests, *rest)
        with Path(file).open("r+b") as opened:
            opened.write(b"spoilt")

    monkeypatch.setattr(pool, "drive", spoil)
    with aio_handle(4096, 2) as handle, pytest.raises(OSError, match="differ from the file when read again") as caught:
        handle.read(torch.empty(100_000, dtype=torch.uint8), file, True)
    assert caught.value.errno == errno.EIO


def test_gpu_direct_storage_is_said_not_to_be_used() -> None:
    with (
        pytest.warns(RuntimeWarning, match="use_gds stays in the block for DeepSpeed and is not used here"),
        aio_handle.from_config(AioConfig(use_gds=True)) as handle,
    ):
        assert handle.get_queue_depth() == AioConfig().queue_depth
