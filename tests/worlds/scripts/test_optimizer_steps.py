"""Optimizer steps are counted, whichever optimizers a program has."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dsexplore.worlds.scripts.optimizer_steps import EnoughSteps, counted_steps


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
    assert counter.taken == 3
    one.step()
    assert counter.taken == 3


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
    assert counter.taken == limit
    assert ("end_with_step" in marks) is (begun == "cababa")
    assert isinstance(earlier, torch.optim.Optimizer)  # still there: the program did not wait for it
