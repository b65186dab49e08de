"""Memory that requests cannot use directly is staged, block by block."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from dsexplore._internal.aio.backends.base import split
from dsexplore._internal.aio.backends.choose import why_not
from dsexplore._internal.aio.buffers import fill_random
from dsexplore._internal.aio.driver import Policy, drive
from dsexplore._internal.aio.pool import Pool, TransferJob
from dsexplore._internal.aio.staging import DeviceMemory, HostMemory, Stage
from dsexplore._internal.aio.sweeps.sweep_setup import Progress, reporting
from dsexplore._internal.aio.transfer_file import TransferFile
from dsexplore.aio import AioConfig, Buffer

CONFIG = AioConfig(block_size=8192, queue_depth=3, thread_count=2)


@pytest.fixture
def pool() -> Iterator[Pool]:
    pool = Pool("threads", CONFIG)
    yield pool
    pool.close()


def move(pool: Pool, tensor: torch.Tensor, path: Path, offset: int, *, write: bool, validate: bool = False) -> None:
    """Move a tensor as if the CPU could not reach it: the way of tensors on other devices."""
    job = TransferJob(DeviceMemory(tensor), TransferFile(path, write=write), offset, CONFIG, 2, validate=validate)
    for share in range(2):
        pool.start(job, share, share)
    assert job.finished.wait(240)
    if job.error is not None:
        raise job.error


@pytest.mark.parametrize("size", [0, 1, 4096, 8192 * 7, 8192 * 40 + 123])
@pytest.mark.parametrize("offset", [0, 5, 4096])
def test_device_memory(
    pool: Pool, tmp_path: Path, random_bytes: Callable[[int], bytes], size: int, offset: int
) -> None:
    path = tmp_path / "file"
    tensor = torch.frombuffer(bytearray(random_bytes(size) + b"x"), dtype=torch.uint8)[:size]
    move(pool, tensor, path, offset, write=True, validate=size > 0)
    assert path.read_bytes()[offset:] == random_bytes(size)
    back = torch.zeros(size, dtype=torch.uint8)
    move(pool, back, path, offset, write=False, validate=True)
    assert torch.equal(back, tensor)


def test_device_tensors_of_any_dtype(pool: Pool, tmp_path: Path) -> None:
    tensor = torch.randn(3, 1000, 7, dtype=torch.complex64)
    move(pool, tensor, tmp_path / "file", 0, write=True)
    back = torch.zeros_like(tensor)
    move(pool, back, tmp_path / "file", 0, write=False)
    assert torch.equal(back, tensor)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cuda_tensors(tmp_path: Path) -> None:
    from dsexplore.aio import aio_handle

    tensor = torch.randn(1_000_003, device="cuda")
    with aio_handle(65536, 8, False, True, 2) as handle:
        handle.sync_pwrite(tensor, str(tmp_path / "file"))
        assert (tmp_path / "file").read_bytes() == tensor.cpu().numpy().tobytes()
        back = torch.zeros_like(tensor)
        handle.sync_pread(back, str(tmp_path / "file"))
    assert torch.equal(back, tensor)


def test_a_stage_lends_each_slot_once_and_keeps_its_memory() -> None:
    stage = Stage(4)
    memory = DeviceMemory(torch.arange(200_000, dtype=torch.uint8))
    requests = split(-1, write=True, address=0, nbytes=50_000, offset=0, block_size=5000)
    stage.prepare(memory, 0, requests)
    lent = [stage.take(index) for index in range(8)]  # a queue in flight and one that is emptied meanwhile
    assert len(set(lent)) == 8
    assert all(address is not None and address % 4096 == 0 for address in lent)
    assert stage.take(8) is None
    stage.give(2, completed=True)
    assert stage.take(8) == lent[2]
    stage.prepare(memory, 0, requests)
    assert {stage.take(index) for index in range(8)} == set(lent)


@pytest.mark.parametrize("pinned", [True, False])
def test_a_stage_grows_with_what_it_serves(pinned: bool) -> None:
    stage, content = Stage(4), np.arange(200_000, dtype=np.uint8)
    memory = DeviceMemory(torch.from_numpy(content)) if pinned else HostMemory(content.ctypes.data, 200_000, content)
    for nbytes, block in ((5000, 5000), (10_000, 5000), (50_000, 5000), (160_000, 20_000), (50_000, 5000)):
        stage.prepare(memory, 0, split(-1, write=True, address=0, nbytes=nbytes, offset=0, block_size=block))
        slots = [stage.take(index) for index in range(min(8, nbytes // block))]
        begin = min(slot for slot in slots if slot is not None)
        room = -(-block // 4096) * 4096
        assert sorted(slots) == [begin + room * number for number in range(len(slots))]
        assert stage._address <= begin
        assert begin + room * len(slots) <= stage._address + stage._nbytes
        for index, slot in enumerate(slots):
            assert slot is not None
            assert ctypes.string_at(slot, block) == content[index * block :][:block].tobytes()


def test_registered_buffers(tmp_path: Path) -> None:
    if (reason := why_not("io_uring")) is not None:
        pytest.skip(reason)
    from dsexplore._internal.aio.backends.io_uring import IoUring

    data = fill_random(Buffer(1 << 20))
    path = tmp_path / "file"
    path.write_bytes(bytes(1 << 20))
    fd = os.open(path, os.O_RDWR | os.O_DIRECT)
    engine = IoUring(8)
    try:
        engine.register(data.address, data.nbytes)
        drive(
            engine,
            split(fd, write=True, address=data.address, nbytes=data.nbytes, offset=0, block_size=65536),
            Policy(False, True),
            lambda: fd,
            None,
        )
        back = Buffer(1 << 20)  # not registered: an ordinary request
        drive(
            engine,
            split(fd, write=False, address=back.address, nbytes=back.nbytes, offset=0, block_size=65536),
            Policy(False, True),
            lambda: fd,
            None,
        )
        assert set(engine._table["opcode"].tolist()) == {22}
    finally:
        engine.close()
        os.close(fd)
    assert np.array_equal(back.bytes, data.bytes)


def test_progress_is_shown_where_someone_sees_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsexplore._internal.progress.DELAY", 0.0)
    for unseen in (None, False):
        with reporting(unseen) as report:
            report(Progress(0.5, "half"))
    assert capsys.readouterr().err == ""
    with reporting(True) as report:
        report(Progress(0.5, "half"))
    assert capsys.readouterr().err.startswith("\r" + "█" * 12 + "·" * 12 + " sweeping: 50 % half")
    told: list[Progress] = []
    with reporting(told.append) as report:
        report(Progress(0.1, "x"))
    assert told == [(0.1, "x")]
