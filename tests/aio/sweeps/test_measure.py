"""Slices measure what moved, and say so when it did not."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dsexplore._internal.aio import pool
from dsexplore._internal.aio.aio_config import AioConfig
from dsexplore._internal.aio.buffers import Buffer, fill_random
from dsexplore._internal.aio.pool import Pool
from dsexplore._internal.aio.sweeps.measure import Bench, Task
from dsexplore._internal.aio.transfer_file import TransferFile
from dsexplore._internal.errors import UsageError

SIZE = 16 << 20
SMALL = AioConfig(block_size=256 << 10, queue_depth=4, thread_count=2)

pytestmark = pytest.mark.usefixtures("open_files")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(fill_random(Buffer(SIZE)).bytes.tobytes())
    return path


class Ticks:
    """A clock that advances by a millisecond at every look, from whichever thread."""

    def __init__(self) -> None:
        self._looks = itertools.count()

    def __call__(self) -> float:
        return next(self._looks) * 1e-3


@pytest.fixture
def bench(file: Path, backend: str, open_files: None) -> Iterator[Bench]:
    source, written = TransferFile(file, write=False), TransferFile(file, write=True)
    bench = Bench(backend, source, SIZE, write_target=written, clock=Ticks())
    fill_random(bench.buffer)
    yield bench
    bench.close()
    source.close()
    written.close()


@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("overlap", [True, False])
def test_a_slice_in_each_direction(bench: Bench, file: Path, single: bool, overlap: bool) -> None:
    config = SMALL.with_(single_submit=single, overlap_events=overlap)
    before = file.read_bytes()
    for operation in ("read", "write"):
        sample = bench.measure(config, operation, 0.03)  # type: ignore[arg-type]
        assert (sample.operation, sample.config) == (operation, config)
        assert sample.bytes >= config.bytes_in_flight
        assert sample.bytes % 4096 == 0
        assert 0 < sample.p50 <= sample.p95 <= sample.p99 <= sample.longest <= sample.seconds
        assert sample.rate == sample.bytes / sample.seconds
        assert sample.durable_rate <= sample.rate
        assert (sample.fsync_seconds > 0) is (operation == "write")
        assert sample.cpu_ms_per_gib > 0
    assert file.read_bytes() == before  # the same bytes, written in place
    assert bench.bytes_written >= config.bytes_in_flight


def test_transfers_cover_the_file_and_begin_elsewhere_each_time(file: Path) -> None:
    source = TransferFile(file, write=False)
    bench = Bench("threads", source, SIZE + 5)
    starts = set()
    for bench._turn in range(6):
        task = Task(SMALL, "read", 1.0, bench.whole_pages((5 << 20) + 1))
        parts = list(itertools.islice(bench._transfers(task), 4))
        assert sorted(part.start for part in parts[:3]) == [0, 5 << 20, 10 << 20]
        assert parts[3] == parts[0]
        assert {len(part) for part in parts} == {5 << 20}
        starts.add(parts[0].start)
    assert len(starts) == 3
    whole_file = Task(SMALL, "read", 1.0, bench.whole_pages(None))
    for bench._turn in range(6):
        assert next(bench._transfers(replace(whole_file, whole=True))) == range(SIZE)
        first, *others = itertools.islice(bench._transfers(whole_file), 3)
        assert others == [range(SIZE)] * 2
        assert first.stop == SIZE
        assert first.start < SIZE // 2
        assert first.start % 4096 == 0
        starts.add(first.start)
    assert len(starts) > 6
    bench.close()
    source.close()


def test_each_transfer_is_finished_before_the_next_begins(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Move tensor after tensor as `aio_handle` does: a job for each, one in flight at a time."""
    jobs: list[pool.TransferJob] = []
    start = Pool.start

    def noted(self: Pool, job: pool.TransferJob, share: int, thread: int) -> None:
        if job not in jobs:
            assert all(other.finished.wait(0) for other in jobs)
            jobs.append(job)
        start(self, job, share, thread)

    monkeypatch.setattr(Pool, "start", noted)
    sample = bench.measure(SMALL, "read", 0.05, transfer=1 << 20)
    assert sample.transfer == 1 << 20
    assert len(jobs) > 4
    assert {job.memory.nbytes for job in jobs} == {1 << 20}
    assert sample.bytes > 2 << 20


@pytest.mark.parametrize("wrong", [0, 3])
def test_every_thread_s_first_request_is_compared(bench: Bench, monkeypatch: pytest.MonkeyPatch, wrong: int) -> None:
    """Notice a read that moved nothing: memory is overwritten before it."""
    config = AioConfig(64 << 10, 2, 4)
    bench.measure(config, "read", 0.02)

    def forgetful(engine, requests, policy, plain_fd, slots, watch):  # type: ignore[no-untyped-def]
        if threading.current_thread().name == f"dsexplore-aio-{wrong}":
            watch.ranges.append((int(requests.offsets[0]), int(requests.lengths.sum())))
            watch.latencies.append(1.0)
        else:
            honest(engine, requests, policy, plain_fd, slots, watch)

    honest = pool.drive
    monkeypatch.setattr(pool, "drive", forgetful)
    with pytest.raises(OSError, match="verification failed"):
        bench.measure(config, "read", 0.02)


def test_a_whole_tensor_is_moved_to_its_end_and_cut_off_after_a_second(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measure with a clock that advances by a millisecond at every look."""
    many = AioConfig(16 << 10, 2, 1)
    assert bench.measure(many, "read", 0.005, transfer=8 << 20).bytes < 8 << 20
    monkeypatch.setattr("dsexplore._internal.aio.sweeps.measure._LONGEST_TENSOR", 1e9)
    whole = bench.measure(many, "read", 0.005, transfer=8 << 20, whole=True)
    assert (whole.bytes, whole.seconds > 0.1) == (8 << 20, True)
    monkeypatch.setattr("dsexplore._internal.aio.sweeps.measure._LONGEST_TENSOR", 0.01)
    assert bench.measure(many, "read", 0.005, transfer=8 << 20, whole=True).bytes < 8 << 20


@pytest.mark.parametrize("most", [100_000, 1 << 20, 5 << 20])
def test_no_more_is_moved_than_is_allowed(bench: Bench, most: int) -> None:
    sample = bench.measure(SMALL, "write", 0.2, most=most)
    assert bench.bytes_written <= most
    assert sample.bytes >= most // 2 - 4096


def test_a_ring_uses_depth_times_block_of_memory(file: Path, backend: str) -> None:
    source = TransferFile(file, write=False)
    bench = Bench(backend, source, SIZE, mode="ring")
    sample = bench.measure(SMALL, "read", 0.03)
    assert sample.bytes >= SMALL.bytes_in_flight
    assert 0 < sample.p50 <= sample.longest <= sample.seconds
    assert bench.buffer.nbytes == SMALL.bytes_in_flight
    bench.close()
    source.close()


@pytest.mark.parametrize("mode", ["tensor", "ring"])
def test_bytes_that_were_not_read_are_noticed(bench: Bench, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    bench.mode = mode  # type: ignore[assignment]
    honest = pool.drive

    def forgetful(*arguments):  # type: ignore[no-untyped-def]
        honest(*arguments)
        bench.buffer.bytes[:] = 0

    monkeypatch.setattr(pool, "drive", forgetful)
    with pytest.raises(OSError, match=r"verification failed: \d+ KiB at offset \d+ differ after a read by"):
        bench.measure(SMALL, "read", 0.02)


def test_bytes_that_were_not_written_are_noticed(bench: Bench, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = pool.drive

    def lossy(*arguments):  # type: ignore[no-untyped-def]
        honest(*arguments)
        with file.open("r+b") as opened:
            opened.write(bytes(SIZE))

    monkeypatch.setattr(pool, "drive", lossy)
    with pytest.raises(OSError, match="differ after a write by"):
        bench.measure(SMALL.with_(thread_count=1), "write", 0.02)


def test_a_failing_request_ends_all_threads(bench: Bench, file: Path) -> None:
    os.truncate(file, SIZE // 2)
    with pytest.raises(OSError, match="shortened while it was read"):
        bench.measure(SMALL, "read", 5.0)
    os.truncate(file, SIZE)
    assert bench.measure(SMALL, "read", 0.02).bytes > 0  # and the bench still works


def test_a_file_that_is_only_read_is_never_written(file: Path) -> None:
    source = TransferFile(file, write=False)
    bench = Bench("threads", source, SIZE)
    with pytest.raises(UsageError, match="only read, never written"):
        bench.measure(SMALL, "write", 0.02)
    bench.close()
    source.close()


def test_what_fits() -> None:
    bench = Bench.__new__(Bench)
    bench.size = 64 << 20
    assert bench.fits(AioConfig())
    assert bench.fits(AioConfig(queue_depth=16))
    assert not bench.fits(AioConfig(queue_depth=16, thread_count=2))
    bench.size = 8 << 20
    assert bench.fits(AioConfig())


def test_random_fill_does_not_compress() -> None:
    import zlib

    data = fill_random(Buffer(17_000_003), seed=5).bytes.tobytes()
    assert len(zlib.compress(data, 1)) > 0.99 * len(data)
    assert data == fill_random(Buffer(17_000_003), seed=5).bytes.tobytes()
    assert data != fill_random(Buffer(17_000_003), seed=6).bytes.tobytes()


def test_a_warm_up_precedes_the_slice(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    run, slices = bench._run, []

    def noted(*arguments):  # type: ignore[no-untyped-def]
        slices.append((arguments[1].seconds, run(*arguments)))
        return slices[-1][1]

    monkeypatch.setattr(bench, "_run", noted)
    sample = bench.measure(SMALL, "read", 0.04)
    (warm_up_wanted, warm_up), (wanted, measured) = slices
    assert 0 < warm_up_wanted < wanted == 0.04
    assert warm_up.bytes > 0
    assert (sample.bytes, sample.seconds) == (measured.bytes, measured.ended - measured.begun)
    assert sample.seconds >= 0.04 - 1e-9  # the clock of the fixture adds up ticks that are rounded


def test_queues_are_kept_open_up_to_a_number_of_requests(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsexplore._internal.aio.sweeps.measure._KEPT_REQUESTS", 10)
    source = TransferFile(file, write=False)
    bench = Bench("threads", source, SIZE, clock=Ticks())
    for depth, threads in ((4, 2), (2, 1), (4, 2), (4, 1)):
        bench.measure(AioConfig(256 << 10, depth, threads), "read", 0.01)
    assert list(bench._pools) == [(1, 4)]  # the other two together with it are one too many, one by one
    bench.measure(AioConfig(256 << 10, 6, 1), "read", 0.01)
    assert list(bench._pools) == [(1, 4), (1, 6)]
    bench.close()
    source.close()


def test_fresh_files_are_written_once(tmp_path: Path) -> None:
    path = tmp_path / "fresh"
    path.write_bytes(bytes(4096))
    renewed: list[int] = []

    def renew() -> None:
        os.truncate(path, 0)
        renewed.append(1)

    source, written = TransferFile(path, write=False), TransferFile(path, write=True)
    bench = Bench("threads", source, SIZE, write_target=written, renew=renew)
    fill_random(bench.buffer)
    sample = bench.measure(SMALL, "write", 30.0)
    assert sample.bytes == SIZE
    assert len(renewed) == 1
    assert np.array_equal(np.fromfile(path, np.uint8), bench.buffer.bytes)
    bench.close()
    source.close()
    written.close()
