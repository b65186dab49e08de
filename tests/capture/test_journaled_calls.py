"""The file of a rank's calls that is always current says what the trace says."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import dsexplore
from dsexplore._internal.capture.collectives import group_methods, substrate
from dsexplore._internal.capture.collectives.observed_op import observed
from dsexplore._internal.capture.journaled_calls import open_journal
from dsexplore._internal.trace.call_journal import CallJournal, journal_file, read_journal

COLUMNS = ("rank", "seq", "op", "raw_op", "group", "message_bytes", "dtype", "source", "root", "group_seq", "start")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Yield a process group of one real rank."""
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
@pytest.mark.parametrize("tensors", [torch.ones(8), [torch.ones(8), torch.ones(8)]], ids=["method", "kernel"])
def test_a_call_is_written_before_it_is_issued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tensors: torch.Tensor | list[torch.Tensor]
) -> None:
    """It is written first, as the process may end inside the call."""
    seen: list[tuple[str, str]] = []

    def look(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        seen.extend(read_journal(tmp_path / journal_file(0)).tables("").events.select("op", "state").rows())
        return function(*args, **kwargs)

    def substrate_kernel(raw_op: str, entry: Any, kernel: Callable[..., Any], *rest: Any, **options: Any) -> Any:
        return observed(raw_op, entry, partial(look, kernel), *rest, **options)

    monkeypatch.setattr(group_methods, "pass_kernels_by", partial(look))
    monkeypatch.setattr(substrate, "observed", substrate_kernel)
    with dsexplore.commtrace(save=tmp_path):
        if isinstance(tensors, list):
            dist.all_reduce_coalesced(tensors)
        else:
            dist.all_reduce(tensors)
    assert seen[-1:] == [("all_reduce", "scheduled")]


@pytest.mark.usefixtures("alone")
def test_a_call_that_torch_refuses_is_taken_back(tmp_path: Path) -> None:
    with dsexplore.commtrace(save=tmp_path) as trace:
        calls(1)
        for _ in range(2):
            with pytest.raises((ValueError, RuntimeError)):
                dist.all_gather_into_tensor(torch.ones(3), torch.ones(2))
        calls(1)
        read = read_journal(tmp_path / journal_file(0))
        assert read.events == len(trace.events) == 6
        assert read.tables("").events.select(COLUMNS).rows() == trace.events.select(COLUMNS).rows()


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
