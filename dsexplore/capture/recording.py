"""`Recording`: what one ``with record()`` block has seen so far."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dsexplore.capture.issued_collective import Issued
from dsexplore.capture.recorded_modules import Modules
from dsexplore.capture.recorded_steps import OuterCalls
from dsexplore.errors import UsageError
from dsexplore.progress import Work

if TYPE_CHECKING:
    from dsexplore.capture.kernel_recording import KernelRecording


@dataclass(eq=False)
class Recording:
    """The content of one recording while its block runs."""

    stack_depth: int
    """Number of the user's lines to keep per collective."""
    simulated: bool
    """True if the process group simulates its ranks."""
    mesh: str
    """The mesh as the user wrote it, ``"dp=2,tp=4"``; empty where none was named."""
    earlier_calls: dict[int, int] = field(default_factory=dict)
    """Calls of each module before this recording was opened, by identity of the `ModuleEntry`."""
    earlier_differentiable: int = 0
    """`Modules.differentiable_calls` before this recording was opened."""
    trains: bool = False
    """True if a module outside any other was called with gradients on, as far as tables were made."""
    further_notes: Callable[[int], Iterable[str]] = lambda _events: ()
    """Called with the number of collectives so far; returns what the trace's notes say besides `notes`."""
    target: str = ""
    """See `TraceInfo.target`."""
    issued: list[Issued] = field(default_factory=list)
    """All collectives, in program order."""
    steps: list[int] = field(default_factory=list)
    """Number of collectives issued at each `Trace.step`."""
    steps_are_marked: bool = False
    """True if the program ends its steps with `Trace.step`; else `steps` are those that its optimizers end."""
    ends_with_step: bool = False
    """True if what came after the end of the last step is left out."""
    calls: OuterCalls = field(default_factory=OuterCalls)
    """Outermost module calls."""
    notes: list[str] = field(default_factory=list)
    """See `TraceInfo.notes`."""
    end: str = ""
    """See `TraceInfo.ends`; empty while the block runs."""
    began: int = 0
    """See `TraceInfo.began`."""
    attempt: str = ""
    """See `TraceInfo.attempt`."""
    kernels: KernelRecording | None = None
    """The recording of kernels between the collectives; None where only collectives are recorded."""
    work: Work | None = None
    """The progress display, where one is seen."""
    modules: Modules | None = None
    """The modules met since the first recording was opened that was open with this one; None before it is opened."""

    def add(self, issued: Issued) -> None:
        """Append a collective that has been issued."""
        self.issued.append(issued)
        if self.work is not None:
            steps = len(self.steps)
            self.work.advance(len(issued.messages), f"in step {steps}" if steps else "")

    def step(self) -> None:
        """Make all later collectives part of the next step, and let optimizers end none, earlier ones included."""
        if not self.steps_are_marked:
            self.steps_are_marked = True
            self.steps.clear()
            if self.kernels is not None:
                self.kernels.join_steps()
        self.steps.append(len(self.issued))

    def begin_call(self, module: int, *, with_gradients: bool) -> None:
        """Note that the module of that entry is called outside any other."""
        self.calls.begin(module, len(self.issued), len(self.steps), with_gradients=with_gradients)

    def lengthen_step(self) -> None:
        """Make the collectives since the end of the last step part of it.

        Raises:
            UsageError: no step has ended.
        """
        if not self.steps:
            raise UsageError("there is no step to lengthen: call trace.step() first")
        self.steps[-1] = len(self.issued)
        if self.kernels is not None:
            self.kernels.lengthen_step()

    def end_with_step(self) -> None:
        """Leave out what comes after the end of the last step."""
        self.ends_with_step = True

    @property
    def of_optimizers(self) -> OptimizerMarks:
        """See `StepMarks.of_optimizers`."""
        return OptimizerMarks(self)


class OptimizerMarks:
    """The steps of a recording that the program's optimizers end, for as long as `Trace.step` was not called.

    Args:
        recording: whose steps they are.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def step(self) -> None:
        """Make all later collectives part of the next step."""
        if not self._recording.steps_are_marked:
            self._recording.steps.append(len(self._recording.issued))

    def lengthen_step(self) -> None:
        """Make the collectives since the end of the last step part of it."""
        if not self._recording.steps_are_marked and self._recording.steps:
            self._recording.lengthen_step()

    def end_with_step(self) -> None:
        """Leave out what comes after the end of the last step."""
        self._recording.end_with_step()

    @property
    def of_optimizers(self) -> OptimizerMarks:
        """These marks."""
        return self
