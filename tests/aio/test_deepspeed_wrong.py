"""Calls for which DeepSpeed 0.19.8's handle reports success and is wrong, or aborts: ours is right, or raises.

Modules: ``aio/handle.py``.
"""

import errno
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from dsexplore._internal.errors import UsageError
from dsexplore.aio import aio_handle

ODD = (1 << 20) + 100


def tensor_of(data: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(data, np.uint8).copy())


def test_the_tail_is_read(tmp_path: Path, random_bytes: Callable[[int], bytes]) -> None:
    (tmp_path / "file").write_bytes(random_bytes(ODD))
    with aio_handle() as handle:
        tensor = handle.new_cpu_locked_tensor(ODD, torch.empty(0, dtype=torch.uint8))
        assert handle.sync_pread(tensor, str(tmp_path / "file")) == 1
    assert tensor.numpy().tobytes() == random_bytes(ODD)


def test_the_tail_is_written(tmp_path: Path, random_bytes: Callable[[int], bytes]) -> None:
    with aio_handle() as handle:
        assert handle.sync_pwrite(tensor_of(random_bytes(ODD)), str(tmp_path / "file")) == 1
    assert (tmp_path / "file").read_bytes() == random_bytes(ODD)


def test_an_unaligned_offset_is_read(tmp_path: Path, random_bytes: Callable[[int], bytes]) -> None:
    (tmp_path / "file").write_bytes(random_bytes(ODD))
    with aio_handle() as handle:
        tensor = handle.new_cpu_locked_tensor(1 << 20, torch.empty(0, dtype=torch.uint8))
        assert handle.sync_pread(tensor, str(tmp_path / "file"), 100) == 1
    assert tensor.numpy().tobytes() == random_bytes(ODD)[100:]


def test_a_disk_that_fills_is_an_error(loop_disk: Path, random_bytes: Callable[[int], bytes]) -> None:
    with aio_handle(1 << 20, 8, False, True) as handle:
        tensor = handle.new_cpu_locked_tensor(32 << 20, torch.empty(0, dtype=torch.uint8))
        with pytest.raises(OSError, match="write of 33554432 bytes at offset 0: No space left") as caught:
            handle.sync_pwrite(tensor, str(loop_disk / "file"))
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(loop_disk / "file"))


def test_a_size_that_threads_do_not_divide(tmp_path: Path, random_bytes: Callable[[int], bytes]) -> None:
    data = random_bytes(12_285)
    with aio_handle(intra_op_parallelism=5) as handle:
        handle.sync_pwrite(tensor_of(data), str(tmp_path / "file"))
        assert (tmp_path / "file").read_bytes() == data
        back = torch.zeros(12_285, dtype=torch.uint8)
        handle.sync_pread(back, str(tmp_path / "file"))
    assert back.numpy().tobytes() == data


@pytest.mark.parametrize("method", ["read", "sync_pread", "async_pread"])
def test_a_short_file_is_an_error(tmp_path: Path, method: str) -> None:
    (tmp_path / "file").write_bytes(bytes(5000))
    with aio_handle() as handle, pytest.raises(OSError, match="8192 bytes at offset 0: the file holds 5000") as caught:
        getattr(handle, method)(torch.empty(8192, dtype=torch.uint8), str(tmp_path / "file"))
    assert (caught.value.errno, caught.value.filename) == (errno.ENODATA, str(tmp_path / "file"))


def test_wait_with_nothing_pending_is_an_error() -> None:
    with aio_handle() as handle, pytest.raises(UsageError, match="nothing to wait for"):
        handle.wait()


def test_a_queue_depth_that_the_kernel_refuses_is_an_error() -> None:
    limit = int(Path("/proc/sys/fs/aio-max-nr").read_text())
    with pytest.raises(
        OSError, match=f"queue_depth {limit + 5000}.*aio-max-nr is {limit}.*Lower queue_depth"
    ) as caught:
        aio_handle(queue_depth=limit + 5000, backend="linux-aio")
    assert caught.value.errno == errno.EAGAIN
