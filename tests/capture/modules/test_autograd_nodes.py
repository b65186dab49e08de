"""Which call made an autograd node, and whose forward made the node that runs in a thread."""

from __future__ import annotations

import threading
import weakref
from array import array
from typing import Any

import pytest
import torch
from torch import nn

from dsexplore._internal.capture.modules import autograd_nodes
from dsexplore._internal.capture.modules.autograd_nodes import (
    NO_CALL,
    Inputs,
    ModuleCall,
    ThreadCalls,
    calls_of_forward,
)
from dsexplore._internal.capture.modules.module_entry import ModuleEntry

MODEL = nn.Identity()


def call(name: str, called: int = 0) -> ModuleCall:
    return ModuleCall(ModuleEntry(weakref.ref(MODEL), "Identity", label=name), called)


def name_of(found: ModuleCall) -> str:
    return found.module.name if found.module is not None else ""


def with_boundaries(thread: int, *boundaries: int) -> ThreadCalls:
    calls = ThreadCalls()
    calls.thread = thread
    calls.boundaries.extend(boundaries)
    return calls


class TestWhoseForwardItWas:
    """It holds for the thread of a device, and for threads that call backward."""

    forward, other, device = with_boundaries(1, 0, 5), with_boundaries(2, 0, 3), with_boundaries(3)

    def test_a_device_runs_for_the_thread_that_waits(self) -> None:
        everyone = [self.forward, self.other, self.device]
        assert calls_of_forward(everyone, self.device, {1}) is self.forward
        assert calls_of_forward(everyone, self.device, {2}) is self.other

    def test_a_device_that_ran_forwards_again_still_runs_for_the_thread_that_waits(self) -> None:
        device = with_boundaries(3, 0, 9)
        assert calls_of_forward([self.forward, device], device, {1}) is self.forward

    def test_a_thread_that_called_backward_itself_made_the_forward(self) -> None:
        assert calls_of_forward([self.forward, self.other], self.other, ()) is self.other

    def test_a_thread_without_forwards_takes_the_only_one_there_was(self) -> None:
        assert calls_of_forward([self.forward, self.device], self.device, ()) is self.forward

    def test_a_number_of_an_ended_thread_is_that_of_the_thread_that_has_it_now(self) -> None:
        ended, again = with_boundaries(1, 0, 2), self.forward
        assert calls_of_forward([ended, again, self.device], self.device, {1}) is again

    def test_nothing_is_guessed_among_several(self) -> None:
        everyone = [self.forward, self.other, self.device]
        assert calls_of_forward(everyone, self.device, ()) is self.device
        assert calls_of_forward(everyone, self.device, {1, 2}) is self.device


def test_a_node_belongs_to_the_innermost_call_at_or_before_its_number() -> None:
    calls = ThreadCalls()
    outer, inner, last = call("outer"), call("inner"), call("last")
    for number, innermost in ((3, outer), (5, NO_CALL), (5, inner), (8, last)):
        calls.add_boundary(number, innermost)
    assert [calls.call_of(number) for number in (2, 3, 4, 5, 7, 8, 100)] == [
        NO_CALL,
        outer,
        outer,
        inner,
        inner,
        last,
        last,
    ]


def test_the_older_half_of_very_many_boundaries_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autograd_nodes, "_MAX_BOUNDARIES", 4)
    calls = ThreadCalls()
    for number, name in ((0, "first"), (10, "second"), (20, "third"), (30, "fourth")):
        calls.add_boundary(number, call(name))
    calls.end_outermost()
    assert calls.boundaries.tolist() == [0, 10, 20, 30]
    calls.add_boundary(40, call("fifth"))
    calls.end_outermost()
    assert calls.boundaries.tolist() == [20, 30, 40]
    assert calls.call_of(19) == NO_CALL
    assert [name_of(calls.call_of(number)) for number in (20, 30, 40)] == ["third", "fourth", "fifth"]
    assert len(calls.modules) == len(calls.lines) == 3


def test_no_call_is_looked_up_while_boundaries_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autograd_nodes, "_MAX_BOUNDARIES", 1)
    calls = ThreadCalls()
    for number in (0, 10):
        calls.add_boundary(number, NO_CALL)
    answers: list[bool] = []

    class Forgetting(array):
        def __delitem__(self, place: Any) -> None:
            other = threading.Thread(target=lambda: calls.call_of(5), daemon=True)
            other.start()
            other.join(timeout=0.2)
            answers.append(other.is_alive())  # it waits for the lists to be cut both
            super().__delitem__(place)

    calls.boundaries = Forgetting("q", calls.boundaries)
    calls.end_outermost()
    assert answers == [True]


def test_a_node_is_assigned_to_a_call_that_was_not_observed() -> None:
    calls = ThreadCalls()
    weight = torch.ones(2, requires_grad=True)
    surrounding = call("surrounding")
    calls.open = [surrounding]
    out = weight * 2
    unseen = call("unseen")
    calls.assign_last_node(unseen)
    later = out * 2
    assert calls.call_of(out.grad_fn._sequence_nr()) == unseen
    assert calls.call_of(later.grad_fn._sequence_nr()) == surrounding


def test_a_node_made_before_the_last_boundary_is_not_assigned_again() -> None:
    calls = ThreadCalls()
    out = torch.ones(2, requires_grad=True) * 2
    made = out.grad_fn._sequence_nr()
    calls.add_boundary(made + 1, NO_CALL)
    calls.assign_last_node(call("unseen"))
    assert calls.boundaries.tolist() == [made + 1]


def test_calls_with_one_tensor_have_one_number_until_it_changes() -> None:
    inputs, tensor, other = Inputs(), torch.ones(2), torch.ones(2)
    first = inputs.number_of((tensor,), {})
    assert first > 0
    assert inputs.number_of((), {"hidden_states": tensor}) == first
    assert inputs.number_of((other, tensor), {}) not in (0, first)
    assert inputs.number_of((tensor,), {}) == first
    tensor.add_(1)
    changed = inputs.number_of((tensor,), {})
    assert changed not in (0, first)
    inputs.forget()
    assert inputs.number_of((tensor,), {}) != changed
    assert inputs.number_of(("text",), {}) == 0
    with torch.inference_mode():
        made = torch.ones(2)
        assert inputs.number_of((made,), {}) == inputs.number_of((made,), {}) > 0
