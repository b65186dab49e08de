"""`commtrace` opens a world if it is asked for one, and else records in the one that is open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import dsexplore


@pytest.mark.parametrize("arguments", [{"world_size": 4}, {"mesh": "tp=4"}, {"world_size": 4, "fake": True}])
def test_a_world_of_its_own_is_open_for_the_block(arguments: dict[str, Any]) -> None:
    with dsexplore.commtrace(**arguments) as trace:
        dist.all_reduce(torch.ones(2))
    assert not dist.is_initialized()
    assert trace.info.simulated
    assert trace.events["group_size"].to_list() == [4]


@pytest.mark.parametrize(
    "argument",
    [
        {"fake": True},
        {"rank": 1},
        {"hardware": "h100"},
        {"hardware": "cpu"},
        {"ranks_per_node": 4},
        {"values": {"train.py:1": 0.5}},
    ],
    ids=str,
)
def test_an_option_of_a_world_without_its_size_is_refused(argument: dict[str, Any]) -> None:
    """It would otherwise be ignored, and the block would be recorded as a single process."""
    with pytest.raises(dsexplore.UsageError, match="needs a size"), dsexplore.commtrace(**argument):
        pass


def test_without_options_it_records_the_world_that_is_open() -> None:
    with dsexplore.simulate(mesh="dp=2,tp=2", rank=3), dsexplore.commtrace() as trace:
        dist.all_reduce(torch.ones(2))
        assert dist.get_rank() == 3
    assert (trace.info.mesh, trace.info.ranks, trace.info.simulated) == ("dp=2,tp=2", (3,), True)
    assert trace.info.clocks == ()


def test_without_any_group_it_records_a_single_process() -> None:
    with dsexplore.commtrace() as trace:
        torch.ones(2).sum()
    assert (len(trace), trace.info.world_size, trace.info.simulated) == (0, 1, False)


def test_a_trace_is_saved_when_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "step.parquet"
    with dsexplore.commtrace(world_size=4, save=path) as trace:
        dist.all_reduce(torch.ones(2))
    assert dsexplore.load(path).events.equals(trace.events)
