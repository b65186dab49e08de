"""Count a program's optimizer steps: mark them in its trace, and end it after so many."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from dsexplore._internal.torch_internals.frames import makes_optimizer_state
from dsexplore._internal.trace.steps import StepMarks


class EnoughSteps(BaseException):
    """Raised in a program, out of ``optimizer.step()``, once it has taken the steps that were asked for.

    No ``except Exception`` of the program catches it, and every ``finally`` and ``with`` is left properly.
    """


class StepCounter:
    """Counts a program's steps: in each, an optimizer steps at most once.

    An optimizer that has stepped in the program's step and steps again takes the next one; any other makes the step
    longer. So two optimizers that take turns take the same steps, and one that steps after every third step of another,
    as an outer optimizer or a GAN's generator does, steps in each third.

    A step lasts until the function named ``step`` returns that the optimizer was called from, if there is one. So what
    the optimizers of DeepSpeed and Megatron, which are not torch's, send after the one that they hold belongs to it.
    A step of an optimizer that another one's step calls is part of that. A step by which torch makes an optimizer's
    state, to load a checkpoint into it, does not count.

    Args:
        limit: steps after which the program ends; None for no end.
        steps: ends the program's next step when the first optimizer takes it, and lengthens it when another one does.
    """

    def __init__(self, limit: int | None, steps: StepMarks) -> None:
        self.count = 0
        self._limit, self._steps = limit, steps
        self._latest: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        """The program's step that each optimizer last took part in."""
        self._earlier = weakref.WeakSet(_optimizers() if limit is not None else [])
        """Optimizers that are not the program's."""
        self._awaited: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        """The optimizers that may still step in the program's last step."""
        self._watch: ReturnWatch | None = None
        """Tells when the function of the program's latest step returns, while that runs."""

    def begins(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        """End the program if its last wanted step is complete and this optimizer would begin another.

        torch calls this as a hook.
        """
        if self.count and self.count == self._limit and self._has_stepped(optimizer):
            self._steps.end_with_step()
            raise self._enough()

    def stepped(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        """Count a step, or extend the current one if this optimizer had no part in it yet.

        torch calls this as a hook.
        """
        callers = list(_callers())
        if any(makes_optimizer_state(frame.f_code) or _is_step_of(optimizer, frame) for frame in callers):
            return
        if self._has_stepped(optimizer):
            self.count += 1
            self._steps.step()
            if self.count == self._limit:
                self._awaited = weakref.WeakSet(_optimizers()) - self._earlier
        else:
            self._steps.lengthen_step()
        self._latest[optimizer] = self.count
        self._awaited.discard(optimizer)
        around = [frame for frame in callers if frame.f_code.co_name == "step"]
        if not around or not self._watches(around[-1]):
            self._end()

    def _watches(self, frame: FrameType) -> bool:
        """Make the step last until a frame returns; False where that cannot be seen."""
        if self._watch is not None and self._watch.frame is frame:
            return True
        self.close()
        self._watch = ReturnWatch(frame, self._returns)
        return self._watch.begin()

    def _returns(self) -> None:
        """End the step, as the function that runs it returns."""
        self._watch = None
        self._steps.lengthen_step()
        self._end()

    def _end(self) -> None:
        """End the program if no optimizer is to step any more."""
        if self.count == self._limit and not self._awaited:
            raise self._enough()

    def close(self) -> None:
        """Watch no function any longer."""
        if self._watch is not None:
            self._watch.end()
            self._watch = None

    def _enough(self) -> EnoughSteps:
        """Build the exception that ends the program; its text is meant for programs that log it."""
        return EnoughSteps(f"dsexplore ends the script after its optimizer step {self.count}, as asked")

    def _has_stepped(self, optimizer: Optimizer) -> bool:
        """Return True if an optimizer took part in the program's latest step; before the first one always True."""
        return self._latest.get(optimizer, 0) == self.count


def _callers() -> Iterator[FrameType]:
    """Yield the frames of the calls in progress, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_step_of(optimizer: Optimizer, frame: FrameType) -> bool:
    """Return True if a frame belongs to an optimizer's ``step``, which calls its base class's."""
    return frame.f_code.co_name == "step" and frame.f_locals.get("self") is optimizer


def _optimizers() -> list[Optimizer]:
    """Return all optimizers of the process, except those that only forward to another and were never initialized.

    torch has no registry of them, so they are found as the referrers of their classes.
    """
    classes = _all_subclasses(Optimizer)
    return [
        optimizer
        for optimizer in gc.get_referrers(*classes)
        if type(optimizer) in classes and "param_groups" in getattr(optimizer, "__dict__", ())
    ]


def _all_subclasses(kind: type) -> set[type]:
    return {kind}.union(*map(_all_subclasses, kind.__subclasses__()))


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
        counter.close()
        for handle in handles:
            handle.remove()


class ReturnWatch:
    """Calls ``then`` when the function of a frame returns, and not if it raises; Python's tracing tells when.

    Args:
        frame: the frame of a function that runs in this thread.
        then: may raise; its exception leaves the watched function in place of what that returns.
    """

    def __init__(self, frame: FrameType, then: Callable[[], None]) -> None:
        self.frame = frame
        self._then = then
        self._raises = False

    def begin(self) -> bool:
        """Start to watch.

        Returns:
            False where a debugger or a coverage tool traces the thread, which is left alone: nothing is watched.
        """
        if sys.gettrace() is not None:
            return False
        self.frame.f_trace, self.frame.f_trace_lines = self._met, False
        sys.settrace(_no_other)
        return True

    def end(self) -> None:
        """Watch no longer; a second call does nothing."""
        if sys.gettrace() is _no_other:
            sys.settrace(None)
        if self.frame.f_trace == self._met:
            self.frame.f_trace = None

    def _met(self, frame: FrameType, event: str, _argument: Any) -> Any:
        """Handle a trace event of the frame; line events show that it continues after an exception."""
        if event == "return":
            self.end()
            if not self._raises:
                self._then()
            return None
        self._raises = frame.f_trace_lines = event == "exception"
        return self._met


def _no_other(_frame: FrameType, _event: str, _argument: Any) -> None:
    """Ignore functions that are called from now on, as a trace function that traces nothing."""
