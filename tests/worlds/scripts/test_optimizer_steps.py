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


def test_an_optimizer_that_begins_when_others_have_ended_makes_no_step_longer() -> None:
    marks = Marks()
    one, other = optimizer(), optimizer()
    with counted_steps(None, marks):
        for each in (one, one, other, other):
            each.step()
    assert marks == ["step", "step"]


@pytest.mark.parametrize(
    ("limit", "one_more_before", "expected"),
    [
        (1, False, ["first"]),
        (2, False, ["first", "second", "first", "second"]),
        (3, False, ["first", "second"] * 3),
        (2, True, ["first", "second", "first", "second", "first"]),  # one that stopped stepping is not waited for long
    ],
)
def test_ends_after_the_last_of_the_optimizers_that_kept_up(
    limit: int, one_more_before: bool, expected: list[str]
) -> None:
    steps: list[str] = []
    optimizers = {"first": optimizer(), "second": optimizer()}
    stopped = optimizer()
    with pytest.raises(EnoughSteps), counted_steps(limit, Marks()):
        if one_more_before:
            stopped.step()
        for _ in range(9):
            for name, each in optimizers.items():
                steps.append(name)
                each.step()
    assert steps == expected
