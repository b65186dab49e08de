"""Whose forward made the node that runs in a thread."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from dsexplore.capture import autograd_nodes as module
from dsexplore.capture.autograd_nodes import Boundaries, of_forward


def boundaries(thread: int, *numbers: int) -> Boundaries:
    made = Boundaries()
    made.thread, made.numbers = thread, list(numbers)
    return made


class TestWhoseForwardItWas:
    """Of the thread of a device, and of threads that call backward."""

    forward, other, device = boundaries(1, 0, 5), boundaries(2, 0, 3), boundaries(3)

    def test_a_device_runs_for_the_thread_that_waits(self) -> None:
        everyone = [self.forward, self.other, self.device]
        assert of_forward(everyone, self.device, {1}) is self.forward
        assert of_forward(everyone, self.device, {2}) is self.other

    def test_a_device_that_ran_forwards_again_still_runs_for_the_thread_that_waits(self) -> None:
        device = boundaries(3, 0, 9)
        assert of_forward([self.forward, device], device, {1}) is self.forward

    def test_a_thread_that_called_backward_itself_looks_at_its_own_forward(self) -> None:
        assert of_forward([self.forward, self.other], self.other, ()) is self.other

    def test_a_thread_without_forwards_takes_the_only_one_there_was(self) -> None:
        assert of_forward([self.forward, self.device], self.device, ()) is self.forward

    def test_a_number_of_an_ended_thread_is_that_of_the_thread_that_has_it_now(self) -> None:
        ended, again = boundaries(1, 0, 2), self.forward
        assert of_forward([ended, again, self.device], self.device, {1}) is again

    def test_nothing_is_guessed_among_several(self) -> None:
        everyone = [self.forward, self.other, self.device]
        assert of_forward(everyone, self.device, ()) is self.device
        assert of_forward(everyone, self.device, {1, 2}) is self.device


def test_who_asked_is_told_before_the_call_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_KEPT_BOUNDARIES", 3)
    told: list[Any] = []
    made: Any = boundaries(1, 0, 10, 20, 30)
    made.calls = ["first", "second", "third", "fourth"]
    made.asking = [SimpleNamespace(node=node, answer=told.append) for node in (12, 9, 31)]
    made.trim()
    assert made.numbers == [10, 20, 30]
    assert told == ["second", "first", "fourth"]
    made.answer()
    assert len(told) == 3


def test_one_thread_answers_at_a_time() -> None:
    made: Any = boundaries(1, 0)
    made.calls = ["first"]
    free: list[bool] = []

    def told(_call: Any) -> None:
        other = threading.Thread(target=lambda: free.append(made._lock.acquire(blocking=False)))
        other.start()
        other.join(timeout=60)

    made.asking = [SimpleNamespace(node=0, answer=told)]
    made.answer()
    assert free == [False]
