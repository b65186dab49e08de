"""The content of a recording makes the same tables wherever it is called, and makes them once."""

from __future__ import annotations

import pickle

import pytest
import torch
import torch.distributed as dist
from polars.testing import assert_frame_equal
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

import dsexplore
from dsexplore._internal.trace import schema
from dsexplore._internal.trace.trace import Trace, step_marks


@pytest.fixture(params=["trains", "with costs", "inference", "steps alone", "nothing"])
def trace(request: pytest.FixtureRequest) -> Trace:
    with dsexplore.simulate(mesh="tp=4") as mesh, dsexplore.commtrace(costs=request.param == "with costs") as trace:
        if request.param == "nothing":
            return trace
        model = parallelize_module(nn.Sequential(nn.Linear(8, 8)), mesh["tp"], {"0": ColwiseParallel()})
        with torch.inference_mode(request.param == "inference"):
            out = model(torch.ones(2, 8))
        if request.param != "inference":
            out.sum().backward()
        dist.all_reduce(torch.ones(3))
        trace.step()
        dist.barrier()
        if request.param == "steps alone":
            step_marks(trace).end_with_step()
    return trace


def test_content_that_has_travelled_makes_the_same_tables(trace: Trace) -> None:
    travelled = pickle.loads(pickle.dumps(trace)).tables
    assert travelled.info == trace.info
    for name in schema.TABLES:
        assert_frame_equal(getattr(travelled, name), getattr(trace.tables, name))


def test_tables_of_a_recording_that_has_ended_are_made_once(trace: Trace) -> None:
    assert trace.tables is trace.tables


def test_the_collectives_of_a_group_are_numbered_and_messages_are_not() -> None:
    with dsexplore.simulate(mesh="dp=2,tp=2") as mesh, dsexplore.commtrace() as trace:
        for group in (mesh["dp"].get_group(), mesh["tp"].get_group()) * 2:
            dist.all_reduce(torch.ones(1), group=group)
        dist.send(torch.ones(1), 1)
        dist.all_reduce(torch.ones(1), group=mesh["tp"].get_group())
        dist.barrier()
    found = trace.events.select("op", "axis", "group_seq").rows()
    reduced = [("all_reduce", axis, number) for number in (0, 1) for axis in ("dp", "tp")]
    assert found == [*reduced, ("send", "tp", None), ("all_reduce", "tp", 2), ("barrier", "", 0)]
