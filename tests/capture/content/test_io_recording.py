"""Reads, writes and waits of `dsexplore.aio`, and waits for a ``DataLoader``: module, phase, step, and times in order.

Modules: ``capture/content/io_recording.py``, ``io_accesses.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import polars as pl
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

import dsexplore
from dsexplore import Trace
from dsexplore._internal import io_accesses
from dsexplore.aio import aio_handle, load_file, save_file

SIZE = 4 << 10


class Samples(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8,), float(index))


class Swapped(nn.Module):
    """Reads each layer's state before the layer runs, as ZeRO-Infinity does."""

    def __init__(self, handle: aio_handle, folder: Path) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        for number, layer in enumerate(self.layers):
            path = str(folder / f"{number}.swp")
            handle.sync_pwrite(torch.full((SIZE,), float(number)), path)
            layer.register_forward_pre_hook(partial(self.fetch, handle, torch.zeros(SIZE), path))

    @staticmethod
    def fetch(handle: aio_handle, state: torch.Tensor, path: str, _module: nn.Module, _args: object) -> None:
        handle.async_pread(state, path)
        handle.wait()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.fixture
def handle() -> Iterator[aio_handle]:
    with aio_handle(4096, 2) as made:
        yield made


def trained(handle: aio_handle, folder: Path, *, marks: bool = False) -> Trace:
    model = Swapped(handle, folder)
    optimizer, state = torch.optim.SGD(model.parameters(), lr=0.1), torch.ones(SIZE)

    def swap_out(*_: object) -> None:
        handle.sync_pwrite(state, str(folder / "optimizer.swp"))

    optimizer.register_step_pre_hook(swap_out)
    with dsexplore.commtrace() as trace:
        for batch in DataLoader(Samples(), batch_size=2):
            model(batch).sum().backward()
            optimizer.step()
            if marks:
                trace.step()
    return trace


@pytest.mark.parametrize("marks", [False, True])
def test_each_access_has_its_place_in_the_program(marks: bool, handle: aio_handle, tmp_path: Path) -> None:
    trace = trained(handle, tmp_path, marks=marks)
    of_step = [
        ("input", "Samples", None, "", "other"),
        *(
            (op, f"{number}.swp", size, f"Swapped.layers.{number}", "forward")
            for number in range(2)
            for op, size in (("read", 4 * SIZE), ("wait", None))
        ),
        ("write", "optimizer.swp", 4 * SIZE, "", "optimizer"),
        ("wait", "optimizer.swp", None, "", "optimizer"),
    ]
    rows = trace.io.with_columns(pl.col("path").str.split("/").list.last())
    last = ("input", "Samples", None, "", "other")  # by which the loader says that it has no more
    assert rows.select("op", "path", "bytes", "module", "phase").rows() == [*of_step, *of_step, last]
    assert rows["step"].to_list() == [0] * 7 + [1] * 7 + [2]
    assert rows["seq"].to_list() == list(range(15))
    assert rows.filter(pl.col("end") < pl.col("start")).is_empty()
    assert rows["start"].is_sorted()
    assert all("test_io_recording.py:" in source for source in rows["source"])


def test_it_is_kept_in_files(handle: aio_handle, tmp_path: Path) -> None:
    trace = trained(handle, tmp_path)
    for path in (tmp_path / "trace.parquet", tmp_path / "folder"):
        assert dsexplore.load(trace.save(path)).io.equals(trace.io)


def test_it_has_a_lane_and_a_sentence(handle: aio_handle, tmp_path: Path) -> None:
    trace = trained(handle, tmp_path)
    timeline = trace.timeline()
    assert timeline.order == "measured"
    assert timeline.lanes == ("disk", "blocked")
    assert set(timeline.marks) == set(timeline.lanes)
    waits = trace.io_waits()
    assert waits["count"].sum() == trace.io.filter(pl.col("op").is_in(["wait", "input"])).height
    (sentence,) = trace.headline().sentences
    assert sentence.text.startswith("The program waits for the disk for ")
    assert "waits for input for " in sentence.text
    assert timeline.verdict() == sentence.text
    assert sentence.text in trace._repr_mimebundle_()["text/plain"]
    assert "disk: 6 transfers, 96 KiB" in timeline._repr_mimebundle_()["text/plain"]


def test_loading_and_saving_files_is_seen(tmp_path: Path) -> None:
    with dsexplore.commtrace() as trace:
        save_file({"weight": torch.ones(SIZE)}, tmp_path / "model.safetensors")
        load_file(tmp_path / "model.safetensors")
    sizes = dict(trace.io.drop_nulls("bytes").group_by("op").agg(pl.col("bytes").sum()).rows())
    assert sizes["read"] >= 4 * SIZE
    assert sizes["write"] >= 4 * SIZE


def test_a_failed_read_ends_too(handle: aio_handle, tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(bytes(100))
    with dsexplore.commtrace() as trace, pytest.raises(OSError, match="holds 100 bytes"):
        handle.sync_pread(torch.ones(SIZE), str(tmp_path / "short"))
    assert trace.io.is_empty()


def test_simulated_ranks_have_none(handle: aio_handle, tmp_path: Path) -> None:
    with dsexplore.commtrace(world_size=4) as trace:
        handle.sync_pwrite(torch.ones(SIZE), str(tmp_path / "file"))
    assert trace.io.is_empty()


def test_nothing_listens_after_a_recording(handle: aio_handle, tmp_path: Path) -> None:
    before = _BaseDataLoaderIter.__next__
    with dsexplore.commtrace():
        assert _BaseDataLoaderIter.__next__ is not before
        assert io_accesses.begins("wait") is not None
    assert _BaseDataLoaderIter.__next__ is before
    assert io_accesses.begins("wait") is None
