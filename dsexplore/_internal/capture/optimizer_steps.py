"""Counts a program's optimizer steps, marks them in its trace, and can end the program after a number of them."""

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

    It derives from BaseException, so that no ``except Exception`` of the program catches it.
    """


class StepCounter:
    """Counts a program's steps; an optimizer takes part in each of them at most once.

    When an optimizer steps for the second time, a new step of the program begins. Until then, other optimizers that
    step make the current step longer. So two optimizers that take turns share their steps. One that steps after every
    third step of another, such as an outer optimizer or a GAN's generator, takes part in each third step.

    If the optimizer was called from a function named ``step``, the step lasts until that function returns. So it
    includes what the optimizers of DeepSpeed and Megatron send after the torch optimizer inside them has stepped. If
    one optimizer's step calls another's, both are one step. The step by which torch creates an optimizer's state, to
    load a checkpoint into it, does not count.

    Args:
        limit: the number of steps after which the program ends; None for no end.
        steps: the marks of the trace's steps, which are set and moved here.
    """

    def __init__(self, limit: int | None, steps: StepMarks) -> None:
        self.count = 0
        self._limit, self._steps = limit, steps
        self._latest: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        """{optimizer: number of the latest step that it took part in}."""
        self._earlier = weakref.WeakSet(_optimizers() if limit is not None else [])
        """Optimizers that existed before the program began."""
        self._awaited: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        """The optimizers that may still step in the program's last step."""
        self._watch: ReturnWatch | None = None
        """Watches the function named ``step`` of the latest step; None while none runs."""

    def begins(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        """End the program if this optimizer would begin a step beyond the limit; torch calls this as a hook."""
        if self.count and self.count == self._limit and self._has_stepped(optimizer):
            self._steps.end_with_step()
            raise self._enough()

    def stepped(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        """Count a step, or lengthen the current one if this optimizer had no part in it; torch calls this as a hook."""
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
        step_functions = [frame for frame in callers if frame.f_code.co_name == "step"]
        if not step_functions or not self._watch_return(step_functions[-1]):
            self._end()

    def _watch_return(self, frame: FrameType) -> bool:
        """Make the step last until a frame returns; return False if that cannot be watched."""
        if self._watch is not None and self._watch.frame is frame:
            return True
        self.close()
        self._watch = ReturnWatch(frame, self._returns)
        return self._watch.begin()

    def _returns(self) -> None:
        """End the step: the function named ``step`` returns."""
        self._watch = None
        self._steps.lengthen_step()
        self._end()

    def _end(self) -> None:
        """End the program if this was its last step and no optimizer may still take part in it."""
        if self.count == self._limit and not self._awaited:
            raise self._enough()

    def close(self) -> None:
        """Stop watching for a return."""
        if self._watch is not None:
            self._watch.end()
            self._watch = None

    def _enough(self) -> EnoughSteps:
        """Return the exception that ends the program; programs may log its text."""
        return EnoughSteps(f"dsexplore ends the script after its optimizer step {self.count}, as asked")

    def _has_stepped(self, optimizer: Optimizer) -> bool:
        """Return True if an optimizer took part in the latest step, or if there was no step yet."""
        return self._latest.get(optimizer, 0) == self.count


def _callers() -> Iterator[FrameType]:
    """Yield the frames of the calls in progress, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_step_of(optimizer: Optimizer, frame: FrameType) -> bool:
    """Return True for the frame of a subclass's ``step`` that has called this optimizer's."""
    return frame.f_code.co_name == "step" and frame.f_locals.get("self") is optimizer


def _optimizers() -> list[Optimizer]:
    """Return all initialized optimizers of the process; wrappers that only forward to one are none.

    torch has no registry of them, so they are found as the referrers of their classes.
    """
    classes = _all_subclasses(Optimizer)
    return [
        optimizer
        for optimizer in gc.get_referrers(*classes)
        if type(optimizer) in classes and "param_groups" in getattr(optimizer, "__dict__", ())
    ]


def _all_subclasses(kind: type) -> set[type]:
    """Return a class and all classes that derive from it."""
    return {kind}.union(*map(_all_subclasses, kind.__subclasses__()))


@contextmanager
def counted_steps(limit: int | None, steps: StepMarks) -> Iterator[StepCounter]:
    """Count the optimizer steps of the block, and end it by `EnoughSteps` after ``limit`` of them.

    The last step is over when all optimizers have taken part in it, or when one of them steps again. In the latter case
    what came after the last step is left out of the trace.
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
    """Calls ``then`` when the function of a frame returns, but not if it raises, by means of Python's tracing.

    Args:
        frame: the frame of a function that runs in this thread.
        then: the function to call; if it raises, the watched function raises that instead of returning.
    """

    def __init__(self, frame: FrameType, then: Callable[[], None]) -> None:
        self.frame = frame
        self._then = then
        self._raises = False

    def begin(self) -> bool:
        """Start to watch.

        Returns:
            False if a debugger or a coverage tool traces the thread: it is left alone, and nothing is watched.
        """
        if sys.gettrace() is not None:
            return False
        self.frame.f_trace, self.frame.f_trace_lines = self._trace, False
        sys.settrace(_no_other)
        return True

    def end(self) -> None:
        """Stop watching; a second call does nothing."""
        if sys.gettrace() is _no_other:
            sys.settrace(None)
        if self.frame.f_trace == self._trace:
            self.frame.f_trace = None

    def _trace(self, frame: FrameType, event: str, _argument: Any) -> Any:
        """Handle a trace event of the frame: after an exception, a line event shows that the function caught it."""
        if event == "return":
            self.end()
            if not self._raises:
                self._then()
            return None
        self._raises = frame.f_trace_lines = event == "exception"
        return self._trace


def _no_other(_frame: FrameType, _event: str, _argument: Any) -> None:
    """Trace no function that is called from now on: `sys.settrace` needs a function for frames to be traced at all."""
