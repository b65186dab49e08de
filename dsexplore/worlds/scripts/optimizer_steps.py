"""Count a program's optimizer steps: mark them in its trace, and end it after so many."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from dsexplore.trace.step_marks import StepMarks


class EnoughSteps(BaseException):
    """Raised in a program, out of ``optimizer.step()``, once it has taken the steps that were asked for.

    No ``except Exception`` of the program catches it, and every ``finally`` and ``with`` is left properly.
    """


class StepCounter:
    """Counts the steps of each optimizer.

    Args:
        limit: steps after which the program ends; None for no end.
        steps: ends the program's next step when the first optimizer takes it, and lengthens it when another one does.
    """

    def __init__(self, limit: int | None, steps: StepMarks) -> None:
        self.taken = 0
        self._limit, self._steps = limit, steps
        self._counts: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._latest: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        """The program's step that each optimizer last took part in."""

    def stepped(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        """An optimizer has taken a step; torch calls this as its hook."""
        count = self._counts[optimizer] = self._counts.get(optimizer, 0) + 1
        if count > self.taken:
            self.taken = count
            self._steps.step()
        elif count == self.taken and self._latest.get(optimizer, 0) < self.taken:
            self._steps.lengthen_step()
        self._latest[optimizer] = self.taken
        if self._limit is not None and self._is_enough(count, self._limit):
            raise EnoughSteps

    def _is_enough(self, count: int, limit: int) -> bool:
        """Whether the program's last step is over; an optimizer that kept up so far is waited for until the next."""
        waited_for = limit > 1 and any(other == limit - 1 for other in self._counts.values())
        return count > limit or (count == limit and not waited_for)


@contextmanager
def counted_steps(limit: int | None, steps: StepMarks) -> Iterator[StepCounter]:
    """Count the optimizer steps of the block, which ends with `EnoughSteps` after ``limit`` of them.

    The last optimizer to take its n-th step ends the program's n-th step, unless another takes a further one before. Of
    several optimizers, those that took as many steps as the others so far still take their last one.
    """
    counter = StepCounter(limit, steps)
    handle = register_optimizer_step_post_hook(counter.stepped)
    try:
        yield counter
    finally:
        handle.remove()
