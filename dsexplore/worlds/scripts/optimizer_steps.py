"""Count a program's optimizer steps: mark them in its trace, and end it after so many."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from dsexplore.trace.step_marks import StepMarks


class EnoughSteps(BaseException):
    """Raised in a program, out of ``optimizer.step()``, once it has taken the steps that were asked for.

    No ``except Exception`` of the program catches it, and every ``finally`` and ``with`` is left properly.
    """


class StepCounter:
    """Counts a program's steps, in each of which an optimizer steps once at most.

    An optimizer that has stepped in the program's step and steps again takes the next one; any other makes the step
    longer. So two optimizers that take turns take the same steps, and one that steps after every third step of another,
    as an outer optimizer or a GAN's generator does, steps in each third.

    Args:
        limit: steps after which the program ends; None for no end.
        steps: ends the program's next step when the first optimizer takes it, and lengthens it when another one does.
    """

    def __init__(self, limit: int | None, steps: StepMarks) -> None:
        self.taken = 0
        self._limit, self._steps = limit, steps
        self._latest: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        """The program's step that each optimizer last took part in."""
        self._earlier = weakref.WeakSet(_optimizers() if limit is not None else [])
        """Optimizers that are not the program's."""
        self._awaited: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        """The optimizers that may still step in the program's last step."""

    def begins(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        """An optimizer is about to step; torch calls this as its hook."""
        if self.taken and self.taken == self._limit and self._has_stepped(optimizer):
            self._steps.end_with_step()
            raise self._enough()

    def stepped(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        """An optimizer has taken a step; torch calls this as its hook."""
        if self._has_stepped(optimizer):
            self.taken += 1
            self._steps.step()
            if self.taken == self._limit:
                self._awaited = weakref.WeakSet(_optimizers()) - self._earlier
        else:
            self._steps.lengthen_step()
        self._latest[optimizer] = self.taken
        self._awaited.discard(optimizer)
        if self.taken == self._limit and not self._awaited:
            raise self._enough()

    def _enough(self) -> EnoughSteps:
        """The end of the program, in words: a program that logs whatever ends it shows them."""
        return EnoughSteps(f"dsexplore ends the script after its optimizer step {self.taken}, as asked")

    def _has_stepped(self, optimizer: Optimizer) -> bool:
        """Whether an optimizer took part in the program's latest step; true of all before the first."""
        return self._latest.get(optimizer, 0) == self.taken


def _optimizers() -> list[Optimizer]:
    """All optimizers of the process; one that only forwards to another, and was never set up itself, is none.

    torch registers them nowhere, so they are found as what refers to their classes.
    """
    classes = _with_subclasses(Optimizer)
    return [
        each
        for each in gc.get_referrers(*classes)
        if type(each) in classes and "param_groups" in getattr(each, "__dict__", ())
    ]


def _with_subclasses(kind: type) -> set[type]:
    return {kind}.union(*map(_with_subclasses, kind.__subclasses__()))


@contextmanager
def counted_steps(limit: int | None, steps: StepMarks) -> Iterator[StepCounter]:
    """Count the optimizer steps of the block, which ends with `EnoughSteps` after ``limit`` of them.

    The last step is over when all optimizers have stepped in it, or when one that has steps again: what came between is
    left out of the trace.
    """
    counter = StepCounter(limit, steps)
    handles = [
        register_optimizer_step_pre_hook(counter.begins),
        register_optimizer_step_post_hook(counter.stepped),
    ]
    try:
        yield counter
    finally:
        for handle in handles:
            handle.remove()
