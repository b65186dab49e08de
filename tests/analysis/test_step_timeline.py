"""Spans in lanes: what is in them, and which events a range of them holds."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest
import torch
import torch.distributed as dist

import dsexplore
from dsexplore import Trace
from dsexplore._internal.errors import UsageError
from tests.analysis.few_events import two_messages


@pytest.fixture(scope="module")
def trace() -> Trace:
    """Three collectives of one simulated rank, on two axes."""
    with dsexplore.simulate(mesh="dp=2,tp=4") as mesh, dsexplore.commtrace() as trace:
        dist.all_reduce(torch.ones(256), group=mesh["tp"].get_group())
        dist.all_reduce(torch.ones(64), group=mesh["dp"].get_group())
        dist.broadcast(torch.ones(4), 0)
    return trace


def test_one_simulated_rank_is_in_program_order(trace: Trace) -> None:
    timeline = trace.timeline(lanes="axis", sizes="message")
    assert (timeline.order, timeline.lanes) == ("program order", ("tp", "dp", "no mesh"))
    assert timeline.spans.select("lane", "begin", "end", "bytes").rows() == [
        ("tp", 0.0, 1.0, 1024),
        ("dp", 1.0, 2.0, 256),
        ("no mesh", 2.0, 3.0, 16),
    ]


def test_phases_are_color_by_axis_unless_asked(trace: Trace) -> None:
    assert trace.timeline().marks == ("tp", "dp", "no mesh")
    assert trace.timeline(color_by="op").marks == ("all_reduce", "broadcast")


def test_phases_are_in_the_order_of_a_step(trace: Trace) -> None:
    phases = pl.Series("phase", ["optimizer", "backward", "forward"])
    shown = Trace(replace(trace.tables, events=trace.events.with_columns(phases)))
    assert shown.timeline(lanes="phase").lanes == ("forward", "backward", "optimizer")
    assert shown.timeline(lanes="axis", color_by="phase").marks == ("forward", "backward", "optimizer")


def test_a_range_is_a_trace(trace: Trace) -> None:
    timeline = trace.timeline(lanes="axis")
    assert timeline.between(0.5, 1.5).events["axis"].to_list() == ["tp", "dp"]
    assert timeline.between(0, 3, lanes=("dp",)).events["axis"].to_list() == ["dp"]
    assert len(timeline.between(5, 6)) == 0


def test_blocks_of_a_model_are_lanes() -> None:
    with dsexplore.simulate(4), dsexplore.commtrace() as trace:
        net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
        for layer in net:
            layer.register_forward_hook(lambda *_: dist.all_reduce(torch.ones(1)))
        net(torch.ones(1, 2))
        dist.barrier()
    assert trace.timeline(lanes="module").lanes == ("Sequential.0", "Sequential.1", "outside any module")


def test_measured_ranks_have_seconds() -> None:
    events = dsexplore.Trace().events.clear()
    with dsexplore.simulate(4), dsexplore.commtrace() as trace:
        dist.all_reduce(torch.ones(1))
    timed = trace.events.with_columns(start=2_000_000_000 + events["start"].len(), end=2_500_000_000)
    spans = Trace(trace.tables.__class__(events=timed)).timeline().spans
    assert spans.select("begin", "end").row(0) == (0.0, 0.5)


def test_several_simulated_ranks_wait_for_one_another() -> None:
    def of(rank: int) -> Trace:
        with dsexplore.simulate(2, rank=rank), dsexplore.commtrace() as trace:
            if rank == 0:
                dist.all_reduce(torch.ones(2))
                dist.send(torch.ones(1), 1)
            else:
                dist.all_reduce(torch.ones(2))
                dist.recv(torch.ones(1), 0)
        return trace

    timeline = Trace.merge([of(0), of(1)]).timeline()
    assert (timeline.order, timeline.lanes) == ("rounds", ("rank 0", "rank 1"))
    assert timeline.spans.sort("lane", "begin").select("lane", "begin").rows() == [
        ("rank 0", 0.0), ("rank 0", 1.0), ("rank 1", 0.0), ("rank 1", 2.0),
    ]  # fmt: skip


@pytest.mark.parametrize("given", [{"lanes": "layer"}, {"color_by": "size"}])
def test_other_lanes_and_colors_are_refused(trace: Trace, given: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="they are phase, axis"):
        trace.timeline(**given)


def test_a_send_is_tied_to_its_receive() -> None:
    ties = Trace.merge([two_messages(0), two_messages(1)]).timeline().ties
    assert ties.rows() == [("rank 0", 1.0, "rank 1", 1.0, 0, 2), ("rank 0", 2.0, "rank 1", 2.0, 1, 3)]
    assert two_messages(0).timeline().ties.is_empty()


def test_sizes_are_wire_bytes_unless_asked(trace: Trace) -> None:
    assert trace.timeline().spans["bytes"].to_list() == trace.events["wire_bytes"].to_list()
    assert trace.timeline(sizes="message").spans["bytes"].to_list() == trace.events["message_bytes"].to_list()
    with pytest.raises(UsageError, match="they are wire, message"):
        trace.timeline(sizes="all")
