"""Start and end come from the work itself, and nothing waits for them."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dsexplore.capture import recorder
from dsexplore.capture.recorder import Recorder, record
from dsexplore.capture.timing import InFlight, end_at_completion, timing_of
from dsexplore.trace.trace import Trace
from dsexplore.worlds.simulate import simulate


@dataclass
class Timed:
    start: int | None = None
    end: int | None = None


class FutureWork(dist.Work):
    """A work whose end a test decides."""

    def __init__(self) -> None:
        super().__init__()
        self.future: torch.futures.Future[None] = torch.futures.Future()

    def get_future(self) -> Any:
        return self.future


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that counts its readings."""
    readings = count(100)
    monkeypatch.setattr(recorder, "_recorder", Recorder(clock=lambda: next(readings)))


@pytest.fixture
def gloo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # torch replaces it for good
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("backend", "timing"),
    [("fake", "none"), ("cpu:fake", "none"), ("gloo", "work"), ("nccl", "cuda"), ("cpu:gloo,cuda:nccl", "cuda")],
)
def test_backends_are_measured_on_their_own_terms(backend: str, timing: str) -> None:
    assert timing_of(backend) == timing


@pytest.mark.usefixtures("gloo", "ticking")
def test_works_are_timed_from_issue_to_completion() -> None:
    with record() as trace:
        for _ in range(2):
            dist.all_reduce(torch.ones(4))
    assert trace.events["start"].to_list() == [100, 102]
    assert trace.events["end"].to_list() == [101, 103]
    assert trace.groups["timing"].to_list() == ["work"]


@pytest.mark.usefixtures("gloo", "ticking")
def test_functional_collectives_are_timed_by_the_work_inside() -> None:
    with record() as trace:
        out = torch.distributed._functional_collectives.all_reduce(torch.ones(4), "sum", dist.group.WORLD)
        torch.distributed._functional_collectives.wait_tensor(out)
    assert trace.events["start"].to_list() == [100]
    assert trace.events["end"].to_list() == [101]


@pytest.mark.usefixtures("ticking")
def test_a_simulation_measures_nothing() -> None:
    with simulate(world_size=4), record() as trace:
        dist.all_reduce(torch.ones(4))
    assert trace.events["start"].to_list() == [None]
    assert trace.groups["timing"].to_list() == ["none"]


def test_an_op_without_a_work_ends_when_it_returns() -> None:
    event = Timed(start=1)
    end_at_completion(event, None, lambda: 7)
    assert event.end == 7


@pytest.mark.usefixtures("ticking")
def test_a_work_that_is_done_has_an_end_though_its_thread_could_not_tell_yet() -> None:
    work, event, seen = FutureWork(), Timed(start=1), list[tuple[int | None, int | None]]()

    def go_on(trace: Trace) -> None:
        """What a thread that waited for the future does before its callbacks are called."""
        before = event.end
        trace.tables  # noqa: B018  reading it settles
        seen.append((before, event.end))

    with record() as trace:
        work.future.add_done_callback(lambda _future: go_on(trace))
        stopwatch = recorder._recorder._stopwatch
        end_at_completion(event, work, stopwatch._clock)
        stopwatch._in_flight.add(event, work)
        trace.tables  # noqa: B018
        assert event.end is None  # running
        work.future.set_result(None)
    assert seen == [(None, 100)]
    assert event.end == 100


def test_a_work_is_held_until_a_while_after_its_end() -> None:
    in_flight = InFlight(held=10)
    first = Timed(start=100, end=101)
    in_flight.add(first, None)
    in_flight.add(Timed(start=100), None)
    in_flight.add(Timed(start=111), None)
    assert len(in_flight) == 3
    in_flight.add(Timed(start=112), None)
    assert len(in_flight) == 3  # the first has been done for more than 10; the second is not done
    in_flight.release()
    assert len(in_flight) == 0
