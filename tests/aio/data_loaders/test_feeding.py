"""`feeding`: what is counted, with a made-up clock and made-up use.

Modules: ``aio/data_loaders/feeding.py``, ``aio/data_loaders/process_use.py``.
"""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import polars as pl
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, get_worker_info

from dsexplore import aio
from dsexplore._internal.aio.data_loaders.feeding import bytes_of, measure, samples_of
from dsexplore._internal.aio.data_loaders.process_use import ProcessUse, children_of, use_of, used_between
from dsexplore._internal.errors import UsageError

LOADER = DataLoader(TensorDataset(torch.arange(64.0)), batch_size=4)


def test_batches_after_the_first_ones_are_counted() -> None:
    """Count ticks of the clock: one at the begin, one per batch, one at the end."""
    ticks = count()
    readings = iter(
        [({1: ProcessUse(1.0, 10, 0)}, {}), *[({1: ProcessUse(3.0, 30, 20)}, {2: ProcessUse(4.0, 5, 6)})] * 9]
    )
    found = measure(
        LOADER, 5.0, step_seconds=0.5, warmup=2, clock=lambda: float(next(ticks)), read_use=lambda: next(readings)
    )
    assert (found.batches, found.samples, found.nbytes, found.seconds, found.workers) == (5, 20, 80, 6.0, 1)
    assert (found.of_main, found.of_workers) == (ProcessUse(2.0, 20, 20), ProcessUse(4.0, 5, 6))
    assert found.stall == pytest.approx(6 / 5 - 0.5)


def test_a_loader_that_ends_is_measured_to_its_end() -> None:
    found = measure(LOADER, 1e9, step_seconds=None, warmup=0, clock=lambda: 0.0, read_use=lambda: ({}, {}))
    assert (found.batches, found.samples) == (16, 64)


@pytest.mark.parametrize(
    ("batch", "samples", "nbytes"),
    [
        (torch.ones(3, 5), 3, 60),
        ({"input_ids": torch.ones(2, 7, dtype=torch.int64), "label": torch.ones(2)}, 2, 120),
        ([torch.ones(6), [torch.ones(6), "text"]], 6, 48),
        (["a", "b"], 2, 0),
        (torch.tensor(1.0), 1, 4),
        ("text", 1, 0),
    ],
)
def test_samples_and_bytes_of_a_batch(batch: object, samples: int, nbytes: int) -> None:
    assert (samples_of(batch), bytes_of(batch)) == (samples, nbytes)


def test_the_system_says_what_a_process_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(1 << 20))
    before = use_of([os.getpid()])
    (tmp_path / "file").read_bytes()
    used = used_between(before, use_of([os.getpid()]))
    assert used.read >= 1 << 20
    assert used_between({}, {7: ProcessUse(1.0, 2, 3)}) == ProcessUse(1.0, 2, 3)
    assert use_of([2**22 + 1]) == {}
    assert isinstance(children_of(os.getpid()), list)


@pytest.mark.parametrize(
    ("loader", "options", "said"),
    [
        (3, {}, "int yields no batches"),
        ([], {}, "ended after 0 batches"),
        ([1, 2], {}, "no more than 2 batches"),
        ([1], {"seconds": 0}, "seconds 0"),
        ([1], {"step_seconds": -1}, "step_seconds -1"),
    ],
)
def test_what_is_no_loader_is_refused(loader: object, options: dict[str, float], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        aio.feeding(loader, **options)  # type: ignore[arg-type]


class Shards(IterableDataset[torch.Tensor]):
    """Samples of tar files, as WebDataset has them, or of Parquet files: each worker reads its share of the files."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for file in self.files[first::step]:
            if file.suffix == ".tar":
                with tarfile.open(file) as shard:
                    for member in shard:
                        content = shard.extractfile(member)
                        assert content is not None
                        yield torch.frombuffer(bytearray(content.read()), dtype=torch.float32)
            else:
                yield from pl.read_parquet(file).to_torch()


def tar_shard(path: Path) -> None:
    with tarfile.open(path, "w") as shard:
        for number in range(32):
            member = tarfile.TarInfo(f"{number:04}.bin")
            member.size = 4096
            shard.addfile(member, io.BytesIO(bytes(4096)))


def parquet_shard(path: Path) -> None:
    pl.DataFrame({f"x{number}": [float(number)] * 32 for number in range(16)}).write_parquet(path)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "write", "nbytes", "workers", "start"),
    [
        ("tar", tar_shard, 4096, 0, None),
        ("tar", tar_shard, 4096, 2, "fork"),
        ("tar", tar_shard, 4096, 2, "spawn"),
        ("parquet", parquet_shard, 16 * 8, 0, None),
    ],
)  # polars must not be used in forked workers
def test_files_read_by_real_workers(
    name: str,
    write: Callable[[Path], None],
    nbytes: int,
    workers: int,
    start: str | None,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    files = [tmp_path / f"{number}.{name}" for number in range(4)]
    for file in files:
        write(file)
    other = subprocess.Popen(["sleep", "600"])  # a child of this process that is no worker
    request.addfinalizer(other.wait)
    request.addfinalizer(other.kill)
    loader = DataLoader(Shards(files), batch_size=8, num_workers=workers, multiprocessing_context=start)
    found = aio.feeding(loader, seconds=60, step_seconds=1e-6, warmup=0)
    assert (found.batches, found.samples, found.nbytes) == (16, 128, 128 * nbytes)
    assert found.workers == workers
    assert found.limit in ("workers", "this process", "processors", "other programs", "disk", "neither")
    assert found.verdict().startswith("The loader gives ")
