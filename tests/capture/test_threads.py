"""Threads send, meet models, mark steps, open recordings and read them, all at the same time.

Modules: ``capture/recorder.py``, ``capture/modules/recorded_modules.py``.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dsexplore._internal.capture import recorder_in_use
from dsexplore._internal.capture.collectives.issued_collective import Batches
from dsexplore._internal.capture.modules import autograd_nodes
from dsexplore._internal.capture.record import record
from dsexplore._internal.capture.recorder import Recorder
from dsexplore._internal.worlds.simulate import simulate


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    with simulate(world_size=4):
        yield


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads take turns after a microsecond."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def run(*programs: Callable[[], None], meanwhile: Callable[[], object] = bool) -> None:
    """Run each in a thread of its own; what happens meanwhile is called until they have ended."""
    errors: list[BaseException] = []

    def guarded(program: Callable[[], None]) -> None:
        try:
            program()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(program,)) for program in programs]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        meanwhile()
    for thread in threads:
        thread.join()
    assert not errors


@pytest.mark.usefixtures("restless")
def test_models_are_met_and_steps_marked_while_the_trace_is_read() -> None:
    """2 all-reduces per model: its forward's, and its gradient's, whose hook looks for the parameter's module."""
    with record() as trace:

        def train() -> None:
            for _ in range(100):
                model = nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(6)))
                model.register_forward_hook(lambda *_: dist.all_reduce(torch.ones(1)))
                model[0].weight.register_post_accumulate_grad_hook(lambda weight: dist.all_reduce(weight.grad))
                model(torch.ones(1, 2)).sum().backward()
                trace.step()

        run(train, train, train, meanwhile=lambda: trace.tables)
    assert len(trace) == 3 * 100 * 2
    assert trace.info.notes == ()
    assert set(trace.events["group"]) <= set(trace.groups["group"])


class Passing(torch.autograd.Function):
    """All-reduces what comes back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient


class Sending(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Passing.apply(super().forward(x))


@pytest.mark.usefixtures("restless")
def test_each_backward_finds_its_modules_while_calls_are_forgotten_and_tables_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(autograd_nodes, "_MAX_BOUNDARIES", 40)
    with record() as trace:

        def train() -> None:
            model = nn.Sequential(Sending(2, 2), Sending(2, 2))
            for _ in range(100):
                model(torch.ones(1, 2)).sum().backward()

        run(train, train, meanwhile=lambda: trace.tables)
    triggers = trace.events["trigger"].value_counts(sort=True)
    assert dict(triggers.iter_rows()) == {
        f"{model}.{part}": 100 for model in ("Sequential", "Sequential#2") for part in (0, 1)
    }


def test_a_step_marked_between_two_looks_at_a_recording_is_left_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    with record() as trace:
        (recording,) = recorder_in_use.in_use().recordings
        dist.all_reduce(torch.ones(1))

        class Copied(list[Any]):
            """Once this has been copied, another thread sends, and marks a step."""

            def __iter__(self) -> Iterator[Any]:
                yield from self[:]
                monkeypatch.undo()
                dist.all_reduce(torch.ones(1))
                trace.step()

        monkeypatch.setattr(recording, "issued", Copied(recording.issued))
        assert trace.events["step"].to_list() == [0]


def test_a_recording_that_ends_takes_no_event_from_another() -> None:
    first = record()
    ended = first.__enter__()
    (recording,) = recorder_in_use.in_use().recordings

    class Ending:
        def advance(self, *_: object) -> None:
            recording.work = None
            first.__exit__(None, None, None)

    with record() as trace:
        recording.work = Ending()  # type: ignore[assignment] # what another thread may do at this point
        dist.all_reduce(torch.ones(1))
    assert (len(ended), len(trace)) == (1, 1)


def test_a_collective_belongs_to_the_recordings_that_saw_it_begin() -> None:
    """One that begins after it, in another thread, knows neither its modules nor its group."""
    begun, go_on = threading.Event(), threading.Event()
    library = torch.library.Library("_c10d_functional", "FRAGMENT")
    library.define("slow(Tensor x) -> Tensor")

    def slow(x: torch.Tensor) -> torch.Tensor:
        begun.set()
        go_on.wait(timeout=240)
        return x.clone()

    library.impl("slow", slow, "CPU")
    thread = threading.Thread(target=lambda: torch.ops._c10d_functional.slow(torch.ones(1)))
    try:
        with pytest.warns(RuntimeWarning, match="does not know"), record() as first:
            thread.start()
            assert begun.wait(timeout=240)
            with record() as inner:
                go_on.set()
                thread.join(timeout=240)
    finally:
        go_on.set()
        thread.join(timeout=240)
        library._destroy()
    assert (len(first), len(inner)) == (1, 0)


def test_what_a_new_thread_sends_is_behind_no_evaluation() -> None:
    with record() as trace:
        nn.Linear(1, 1)(torch.ones(1, 1))  # as a training does: else no evaluation is told apart
        run(lambda: dist.all_reduce(torch.ones(1)))
    assert trace.events["phase"].to_list() == ["other"]


def test_batches_of_threads_are_told_apart() -> None:
    batches = Batches(count(1))
    others: list[int] = []
    mine = [batches.number_of(is_first=True)]
    run(lambda: others.extend([batches.number_of(is_first=True), batches.number_of(is_first=False)]))
    mine += [batches.number_of(is_first=False), batches.number_of(is_first=False), batches.number_of(is_first=True)]
    assert (mine, others) == ([1, 1, 1, 3], [2, 2])


@pytest.mark.usefixtures("restless")
def test_recordings_open_and_close_in_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_in_use, "_recorder", Recorder())
    own: list[int] = []

    def trace_often() -> None:
        for _ in range(20):
            with record() as trace:
                dist.all_reduce(torch.ones(1))
            own.append(len(trace))

    with record() as all_of_it:
        run(trace_often, trace_often, trace_often)
    assert len(all_of_it) == 60
    assert len(own) == 60
    assert min(own) >= 1
