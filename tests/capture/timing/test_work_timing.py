"""Start and end come from the work itself, and nothing waits for them."""

from __future__ import annotations

from contextlib import suppress
from itertools import count

import pytest
import torch
import torch.distributed as dist

from dsexplore._internal.capture import recorder_in_use
from dsexplore._internal.capture.record import record
from dsexplore._internal.capture.recorder import Recorder
from dsexplore._internal.capture.timing.stopwatch import Stopwatch
from dsexplore._internal.capture.timing.work_timing import InFlight, end_at_completion, is_failure, timing_of
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.worlds.simulate import simulate
from tests.capture.works import FutureWork, SilentWork, Spanned, Timed


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a clock that counts its readings."""
    readings = count(100)
    monkeypatch.setattr(recorder_in_use, "_recorder", Recorder(clock=lambda: next(readings)))


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


def test_a_call_that_is_over_ends_what_it_issued_unless_that_has_an_end_or_failed() -> None:
    stopwatch = Stopwatch(lambda: 7)
    running, over, failed = Spanned(), Spanned(), Spanned()
    for event in (running, over, failed):
        event.start = 1
    over.end, failed.failure = 2, "failed: Error"
    for event in (running, over, failed):
        stopwatch.end_on_host(event)
    assert [event.end for event in (running, over, failed)] == [7, 2, None]


@pytest.mark.usefixtures("ticking")
def test_a_work_that_is_done_has_an_end_though_its_thread_could_not_tell_yet() -> None:
    work, event, seen = FutureWork(), Timed(start=1), list[tuple[int | None, int | None]]()

    def go_on(trace: Trace) -> None:
        """Do what a thread that waited for the future does before its callbacks are called."""
        before = event.end
        trace.tables  # noqa: B018  reading it settles
        seen.append((before, event.end))

    with record() as trace:
        work.future.add_done_callback(lambda _future: go_on(trace))
        stopwatch = recorder_in_use._recorder._stopwatch
        end_at_completion(event, work, stopwatch.now)
        stopwatch._in_flight.add(event, work)
        trace.tables  # noqa: B018
        assert event.end is None  # running
        work.future.set_result(None)
    assert seen == [(None, 100)]
    assert event.end == 100


def test_a_work_is_held_until_the_next_one_after_its_end() -> None:
    in_flight = InFlight()
    done, running, failed = Timed(start=100, end=101), Timed(start=102), Timed(start=103, failure="failed: Error")
    for event in (done, failed, running):
        in_flight.add(event, None)
    assert len(in_flight) == 1
    running.end = 104
    in_flight.add(Timed(start=105), None)
    assert len(in_flight) == 1
    in_flight.release()
    assert len(in_flight) == 0


class TestWaiting:
    """``Work.wait`` shows how long the program is blocked."""

    def test_the_wait_of_a_call_is_measured_and_torch_has_its_own_back(self, gloo: None) -> None:
        before = dist.Work.wait
        with record() as trace:
            dist.all_reduce(torch.ones(2))
            work = dist.all_reduce(torch.ones(2), async_op=True)
            assert work is not None
            work.wait()
            dist.all_reduce(torch.ones(2), async_op=True)
        waited = trace.events["waited"].to_list()
        assert [each is not None and each >= 0 for each in waited] == [True, True, False]
        assert dist.Work.wait is before

    def test_what_says_nothing_of_its_end_is_known_as_long_as_the_program_may_wait_for_it(self) -> None:
        works, silent, work = InFlight(), Timed(start=1, end=2, ends_at_return=True), FutureWork()
        works.add(silent, work)
        works.add(Timed(start=3, end=4), FutureWork())
        works.add(Timed(start=5, end=6), None)
        assert works.events == {id(work): silent}
        del work
        assert works.events == {}

    @pytest.mark.parametrize("fails", [False, True])
    def test_what_says_nothing_of_its_end_ends_with_its_first_wait(
        self, fails: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        readings, seen = count(100), list[int | None]()
        stopwatch, event, work = Stopwatch(lambda: next(readings)), Spanned(), SilentWork()

        def wait(_: object) -> None:
            seen.append(event.end)
            if fails:
                raise RuntimeError("the other side is gone")

        monkeypatch.setattr(dist.Work, "wait", wait)
        stopwatch.begin(event, "work", [])
        stopwatch.follow(event, work)
        assert (event.start, event.end) == (100, 101)
        stopwatch.install()
        for _ in range(2):
            with suppress(RuntimeError):
                work.wait()
        stopwatch.release()
        assert seen == ([None, None] if fails else [None, 102])
        assert (event.end, event.failure) == ((None, "failed: RuntimeError") if fails else (102, ""))

    def test_what_ends_while_the_program_goes_on_was_not_waited_for(self) -> None:
        works, early, late = InFlight(), Timed(start=1, end=2), Timed(start=1, end=2, is_async=False)
        for event in (early, late, Timed(start=3)):
            works.add(event, FutureWork())
        assert (early.waited, late.waited) == (0, None)


@pytest.mark.parametrize(
    ("text", "fails"),
    [
        ("[/src/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1", True),
        ("[..\\third_party/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 4000ms for send", True),
        ("ProcessGroupGloo::scatter: Incorrect input list size 2", False),
        ("[enforce fail at /src/gloo/transport/tcp/pair.cc:500] op.nbytes == size", False),
        ("a file [/src/gloo/transport/tcp/pair.cc:553] of ours", False),
    ],
)
def test_gloos_errors_of_a_connection_are_no_refusals(text: str, fails: bool) -> None:
    assert is_failure(RuntimeError(text)) == fails
    assert is_failure(dist.DistError(text))
