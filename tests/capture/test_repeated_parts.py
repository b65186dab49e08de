"""Parts of a program that are watched, compared and recorded again."""

from __future__ import annotations

import polars as pl
import torch
import torch.distributed as dist
from torch import nn

from dsexplore.capture.recorder_in_use import in_use
from dsexplore.capture.repeated_parts import can_repeat, watched
from dsexplore.trace.trace import Trace
from dsexplore.worlds.commtrace import commtrace
from dsexplore.worlds.simulate import simulate


def part(model: nn.Module, messages: int = 2) -> None:
    """Two messages that are launched as one, and one that is not."""
    model(torch.ones(1, 2))
    sent = [dist.P2POp(dist.isend, torch.ones(messages), 1), dist.P2POp(dist.irecv, torch.ones(3), 1)]
    for work in dist.batch_isend_irecv(sent):
        work.wait()
    dist.all_reduce(torch.ones(2))


def rows(trace: Trace, begin: int, end: int) -> pl.DataFrame:
    return trace.events[begin:end].drop("seq", "batch")


def test_what_is_recorded_again_has_batches_and_calls_of_its_own() -> None:
    model = nn.Linear(2, 2)
    with simulate(2), commtrace() as trace:
        _, first = watched(lambda: part(model))
        _, second = watched(lambda: part(model))
        _, other = watched(lambda: part(model, messages=4))
        _, fewer = watched(lambda: dist.all_reduce(torch.ones(2)))
        second.repeat()
    assert first.is_like(second)
    assert not first.is_like(other)
    assert not first.is_like(fewer)
    assert rows(trace, 10, 13).equals(rows(trace, 3, 6))
    assert trace.events["seq"].to_list() == list(range(13))
    batches = trace.events["batch"].to_list()
    assert batches[0] == batches[1] is not None
    assert len({batches[0], batches[3], batches[6], batches[10]}) == 4
    assert batches[11] == batches[10]
    assert trace.tables.modules["calls"].to_list() == [4]


def test_only_one_simulated_recording_of_collectives_can_repeat() -> None:
    with simulate(2):
        assert not can_repeat()
        with commtrace():
            assert can_repeat()
            with commtrace():
                assert not can_repeat()
        with commtrace(costs=True):
            assert not can_repeat()
    assert not in_use().recordings
