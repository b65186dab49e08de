"""The file of a rank's calls that is always current says what the trace says."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import dsexplore
from dsexplore.capture.journaled_calls import open_journal
from dsexplore.trace.call_journal import CallJournal, journal_file, read_journal

COLUMNS = ("rank", "seq", "op", "raw_op", "group", "message_bytes", "dtype", "source", "root", "group_seq", "start")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process group of one real rank."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # torch leaves its own
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


def calls(count: int) -> None:
    for _ in range(count):
        dist.all_reduce(torch.ones(8))
        dist.broadcast(torch.ones(4, dtype=torch.float64), 0)
        dist.all_gather([torch.ones(2)], torch.ones(2))


@pytest.mark.usefixtures("alone")
def test_it_has_the_calls_of_the_trace_while_the_block_runs_and_is_gone_with_it(tmp_path: Path) -> None:
    file = tmp_path / journal_file(0)
    with dsexplore.commtrace(save=tmp_path) as trace:
        calls(3)
        read = read_journal(file)
        assert read.events == len(trace.events) == 9
        assert read.tables("").events.select(COLUMNS).rows() == trace.events.select(COLUMNS).rows()
        assert read.tables("").info.attempt == trace.info.attempt
        assert file.read_bytes().count(b'"rows"') == 3  # a kind is written once
    assert not file.exists()


@pytest.mark.usefixtures("alone")
def test_a_block_that_raises_leaves_its_trace_and_no_journal(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="bad"), dsexplore.commtrace(save=tmp_path):
        calls(1)
        raise ValueError("bad")
    assert [file.name for file in tmp_path.iterdir()] == ["rank-00000.parquet"]


@pytest.mark.usefixtures("alone")
def test_a_call_that_cannot_be_written_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("no room")

    monkeypatch.setattr(CallJournal, "add", fail)
    with dsexplore.commtrace(save=tmp_path) as trace:
        calls(2)
    assert len(trace.events) == 6


def test_a_single_file_has_none(tmp_path: Path) -> None:
    assert open_journal(tmp_path / "step.parquet", "", 0, 1) is None
