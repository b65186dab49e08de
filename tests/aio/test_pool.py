"""Transfers divided among threads on whole pages of the file, and compared with the file on request."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from dsexplore._internal.aio import pool as pools
from dsexplore._internal.aio.aio_config import AioConfig
from dsexplore._internal.aio.buffers import Buffer
from dsexplore._internal.aio.pool import Pool, TransferJob
from dsexplore._internal.aio.staging import HostMemory
from dsexplore._internal.aio.transfer_file import Alignment, TransferFile

CONFIG = AioConfig(block_size=8192, queue_depth=2, thread_count=2)


@pytest.fixture
def target(tmp_path: Path) -> Iterator[TransferFile]:
    target = TransferFile(tmp_path / "file", write=True)
    target.direct, target.alignment = True, Alignment(512, 512)  # where direct requests are refused, too
    yield target
    target.close()


@pytest.mark.parametrize(
    ("offset", "nbytes", "shares", "parts"),
    [
        (100, 10_000, 2, [(4096, 8192), (8192, 8192)]),  # the example of the docstring
        (0, 12_288, 2, [(0, 8192), (8192, 12_288)]),
        (4096, 12_288, 3, [(4096, 8192), (8192, 12_288), (12_288, 16_384)]),
        (4095, 1, 2, [(4096, 4096), (4096, 4096)]),
        (4095, 4098, 1, [(4096, 8192)]),
        (4097, 4094, 1, [(8191, 8191)]),  # ends before the next page begins: all of it goes plainly
        (1, 20_000, 4, [(4096, 8192), (8192, 12_288), (12_288, 16_384), (16_384, 16_384)]),
        (8192, 0, 2, [(8192, 8192), (8192, 8192)]),
    ],
)
def test_threads_share_the_whole_pages(
    target: TransferFile, offset: int, nbytes: int, shares: int, parts: list[tuple[int, int]]
) -> None:
    job = TransferJob(HostMemory(0, nbytes, None), target, offset, CONFIG, shares)
    assert [(job.part(share).start, job.part(share).stop) for share in range(shares)] == parts


def test_parts_follow_the_alignment_that_the_filesystem_asks_for(target: TransferFile) -> None:
    target.alignment = Alignment(512, 16_384)
    job = TransferJob(HostMemory(0, 80_000, None), target, 100, CONFIG, 3)
    assert [job.part(share) for share in range(3)] == [range(16384, 32768), range(32768, 49152), range(49152, 65536)]
    target.direct = False
    job = TransferJob(HostMemory(0, 101, None), target, 100, CONFIG, 2)
    assert [job.part(share) for share in range(2)] == [range(100, 151), range(151, 201)]


def run(pool: Pool, job: TransferJob) -> TransferJob:
    for share in range(CONFIG.thread_count):
        pool.start(job, share, share)
    assert job.finished.wait(240)
    return job


@pytest.fixture
def pool(backend: str) -> Iterator[Pool]:
    pool = Pool(backend, CONFIG)
    yield pool
    pool.close()


@pytest.mark.parametrize("offset", [0, 100, 4096])
def test_a_transfer_longer_than_one_table_of_requests(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, random_bytes: Callable[[int], bytes], offset: int
) -> None:
    monkeypatch.setattr(pools, "_SPAN", 3)  # tables of 3 requests of 8 KiB
    data = random_bytes(200_001)
    buffer = Buffer(len(data))
    buffer.bytes[:] = np.frombuffer(data, np.uint8)
    memory = HostMemory(buffer.address, len(data), buffer)
    assert run(pool, TransferJob(memory, TransferFile(tmp_path / "file", write=True), offset, CONFIG, 2)).error is None
    assert (tmp_path / "file").read_bytes() == bytes(offset) + data
    buffer.bytes[:] = 0
    assert run(pool, TransferJob(memory, TransferFile(tmp_path / "file", write=False), offset, CONFIG, 2)).error is None
    assert buffer.bytes.tobytes() == data


@pytest.mark.parametrize("changed", [0, 15_999, 16_000, 39_999])
def test_validation_compares_every_byte(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: int
) -> None:
    monkeypatch.setattr(pools, "_COMPARED", 16_000)
    buffer = Buffer(40_000)
    buffer.bytes[:] = np.arange(40_000) % 251
    read_again, path = TransferFile.open_for_reading, tmp_path / "file"
    memory = HostMemory(buffer.address, 40_000, buffer)

    def changed_meanwhile(target: TransferFile) -> int:
        with path.open("r+b") as file:
            file.seek(100 + changed)
            file.write(b"\xff")
        return read_again(target)

    write = lambda: run(pool, TransferJob(memory, TransferFile(path, write=True), 100, CONFIG, 2, validate=True))  # noqa: E731
    assert write().error is None
    monkeypatch.setattr(TransferFile, "open_for_reading", changed_meanwhile)
    error = write().error
    assert isinstance(error, OSError)
    begin = changed // 16_000 * 16_000
    assert f"bytes {begin} to {min(begin + 16_000, 40_000)} differ from the file when read again" in str(error)
    assert (error.errno, error.filename) == (errno.EIO, str(path))


def test_errors_that_are_not_the_system_s_are_raised_as_they_are(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = Buffer(100)
    for error in (MemoryError("no room"), OSError("no number")):
        monkeypatch.setattr(pools, "move_plainly", raising(error))
        job = TransferJob(
            HostMemory(buffer.address, 100, buffer), TransferFile(tmp_path / "file", write=True), 1, CONFIG, 2
        )
        assert run(pool, job).error is error


def raising(error: Exception) -> Callable[..., None]:
    def fail(*_args: object) -> None:
        raise error

    return fail


def test_a_latch_says_whether_it_is_open() -> None:
    latch = pools.Latch()
    assert latch.wait(0.001) is False
    latch.open()
    assert latch.wait(0) is True
    assert latch.wait() is True
