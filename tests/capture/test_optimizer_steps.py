"""Optimizer steps are counted, whichever optimizers a program has."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

from dsexplore._internal.capture.optimizer_steps import EnoughSteps, counted_steps


def optimizer() -> torch.optim.Optimizer:
    weight = nn.Parameter(torch.ones(1))
    weight.grad = torch.ones(1)
    return torch.optim.SGD([weight])


class Marks(list[str]):
    """The calls of `StepMarks`, in order."""

    def step(self) -> None:
        self.append("step")

    def lengthen_step(self) -> None:
        self.append("lengthen_step")

    def end_with_step(self) -> None:
        self.append("end_with_step")


def test_each_step_is_marked_once() -> None:
    marks = Marks()
    one, other = optimizer(), optimizer()
    with counted_steps(None, marks) as counter:
        for _ in range(3):
            one.step()
            other.step()
    assert marks == ["step", "lengthen_step"] * 3
    assert counter.count == 3
    one.step()
    assert counter.count == 3


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("aab aab", ["step", "step", "lengthen_step"] * 2),  # b is an outer optimizer, or that of a GAN's generator
        ("aab ab aab", ["step", "step", "lengthen_step", "step", "lengthen_step", "step", "step", "lengthen_step"]),
        ("aaa bbb", ["step"] * 3 + ["lengthen_step"] + ["step"] * 2),  # another model is trained after the first
        ("ab ba", ["step", "lengthen_step"] * 2),
    ],
)
def test_an_optimizer_steps_once_in_each_step_at_most(order: str, expected: list[str]) -> None:
    marks = Marks()
    optimizers = {"a": optimizer(), "b": optimizer()}
    with counted_steps(None, marks):
        for name in order.replace(" ", ""):
            optimizers[name].step()
    assert marks == expected


@pytest.mark.parametrize(
    ("limit", "order", "expected"),
    [
        (1, "aa", "a"),
        (1, "abab", "ab"),
        (2, "ababab", "abab"),
        (3, "abababab", "ababab"),
        (2, "cabababab", "cababa"),  # c stopped stepping: what comes until a steps again is left out
        (3, "aaabaaab", "aaab"),
    ],
)
def test_ends_when_all_optimizers_stepped_or_one_steps_again(limit: int, order: str, expected: str) -> None:
    begun, marks = "", Marks()
    earlier = optimizer()
    words = f"ends the script after its optimizer step {limit}, as asked"
    with pytest.raises(EnoughSteps, match=words), counted_steps(limit, marks) as counter:
        optimizers = {name: optimizer() for name in set(order)}
        for name in order:
            begun += name
            optimizers[name].step()
    assert begun == expected
    assert counter.count == limit
    assert ("end_with_step" in marks) is (begun == "cababa")
    assert isinstance(earlier, torch.optim.Optimizer)  # still there: the program did not wait for it


class Holder:
    """An optimizer that torch does not know, as DeepSpeed and Megatron have: it sends after the one inside."""

    def __init__(self, *held: torch.optim.Optimizer) -> None:
        self.held, self.ends, self.fails = held, 0, False

    def step(self) -> None:
        for each in self.held:
            each.step()
        try:
            raise KeyError
        except KeyError:
            self.ends += 1
        if self.fails:
            raise OSError("the disk is full")


def test_a_step_lasts_until_the_optimizer_around_it_is_done() -> None:
    marks, holder = Marks(), Holder(optimizer(), optimizer())
    with counted_steps(None, marks):
        holder.step()
        assert marks == ["step", "lengthen_step", "lengthen_step"]
        holder.step()
        assert sys.gettrace() is None
        holder.fails = True
        with pytest.raises(OSError, match="full"):
            holder.step()
    assert marks == ["step", "lengthen_step", "lengthen_step"] * 2 + ["step", "lengthen_step"]
    assert sys.gettrace() is None


def test_the_optimizer_around_the_last_step_comes_to_its_end() -> None:
    with pytest.raises(EnoughSteps), counted_steps(2, Marks()):
        holder = Holder(optimizer())
        for _ in range(5):
            holder.step()
    assert holder.ends == 2
    assert sys.gettrace() is None


def test_a_debugger_keeps_the_thread_that_it_traces() -> None:
    def debugger(*_: object) -> None: ...

    marks, holder = Marks(), Holder(optimizer())
    sys.settrace(debugger)
    try:
        with pytest.raises(EnoughSteps), counted_steps(1, marks):
            holder.step()
        assert sys.gettrace() is debugger
    finally:
        sys.settrace(None)
    assert marks == ["step"]


def test_a_step_that_makes_an_optimizers_state_is_none_of_the_programs() -> None:
    marks, model = Marks(), nn.Linear(2, 2)
    made = torch.optim.AdamW(model.parameters())
    with counted_steps(1, marks) as counter:
        assert get_optimizer_state_dict(model, made)["state"]
    assert not marks
    assert not counter.count


class Decayed(torch.optim.SGD):
    """An optimizer whose ``step`` calls that of its base class."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


def test_a_step_that_calls_the_base_classs_is_one() -> None:
    optimizer().step()  # torch's hooks are on the base class from here on
    marks, made = Marks(), Decayed([nn.Parameter(torch.ones(1))])
    with counted_steps(None, marks) as counter:
        made.step()
        made.step()
    assert marks == ["step", "step"]
    assert counter.count == 2
