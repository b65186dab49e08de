"""`Recording` holds the content of one ``with record()`` block so far."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from dsexplore._internal.capture.collectives.issued_collective import Issued
from dsexplore._internal.capture.content.recorded_steps import OuterCalls
from dsexplore._internal.capture.modules.recorded_modules import Modules
from dsexplore._internal.errors import UsageError
from dsexplore._internal.progress import Work

if TYPE_CHECKING:
    from dsexplore._internal.capture.content.io_recording import IoAccess
    from dsexplore._internal.capture.kernels.kernel_recording import KernelRecording
    from dsexplore._internal.capture.values.numeric_recording import NumericRecording


class Journal(Protocol):
    """The file that each call of a recording is written to, see `journaled_calls`."""

    def add(self, issued: Issued) -> None:
        """Write a collective."""

    def take_back(self, issued: Issued) -> None:
        """Remove a collective that was refused."""


@dataclass(eq=False)
class Recording:
    """The content of one recording while its block runs."""

    stack_depth: int
    """Number of the user's lines to keep per collective."""
    simulated: bool
    """True if the process group simulates its ranks."""
    mesh: str
    """The mesh as the user wrote it, ``"dp=2,tp=4"``; empty if none was given."""
    earlier_calls: dict[int, int] = field(default_factory=dict)
    """Calls of each module before this recording was opened, by identity of the `ModuleEntry`."""
    earlier_differentiable: int = 0
    """`Modules.differentiable_calls` before this recording was opened."""
    trains: bool = False
    """True if an outermost module had been called with gradients enabled when tables were last made."""
    further_notes: Callable[[int], Iterable[str]] = lambda _events: ()
    """Called with the number of collectives so far; returns further notes of the trace."""
    target: str = ""
    """See `TraceInfo.target`."""
    issued: list[Issued] = field(default_factory=list)
    """All collectives, in program order."""
    steps: list[int] = field(default_factory=list)
    """Number of collectives issued by the end of each step."""
    steps_are_marked: bool = False
    """True if the program ends its steps with `Trace.step`; otherwise its optimizers end them."""
    ends_with_step: bool = False
    """True if everything after the last step is dropped."""
    is_complete: bool = False
    """True once its block has ended without an exception."""
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
    """Recording of the kernels between collectives; None if only collectives are recorded."""
    numerics: NumericRecording | None = None
    """Recording of summaries of tensors; None if there is none."""
    io: list[tuple[int, IoAccess]] = field(default_factory=list)
    """(number of its step, access) of each read, write or wait for input."""
    journal: Journal | None = None
    """The file that each call is written to; None if nothing is saved, or to a single file."""
    work: Work | None = None
    """Progress display; None if none is shown."""
    modules: Modules | None = None
    """Modules called since the first of the overlapping open recordings began; None before this one is opened."""

    def begin(self, issued: Issued) -> None:
        """Write a collective of real ranks to the journal before it is issued, as the process may end in it."""
        if self.journal is not None:
            self.journal.add(issued)

    def drop(self, issued: Issued) -> None:
        """Remove a collective from the journal that was refused."""
        if self.journal is not None:
            self.journal.take_back(issued)

    def add(self, issued: Issued) -> None:
        """Append a collective that has been issued."""
        self.issued.append(issued)
        if self.journal is not None and not issued.needs_work:  # else it was written when it began
            self.journal.add(issued)
        if self.work is not None:
            steps = len(self.steps)
            self.work.advance(len(issued.messages), f"in step {steps}" if steps else "")

    def note_training(self, differentiable_calls: int) -> None:
        """Set `trains` if a differentiable call was made since this recording was opened.

        Args:
            differentiable_calls: `Modules.differentiable_calls` now.
        """
        self.trains = self.trains or differentiable_calls > self.earlier_differentiable

    def step(self) -> None:
        """End a step. The first call joins the steps that optimizers have ended; they end none from then on."""
        if not self.steps_are_marked:
            self.steps_are_marked = True
            self.steps.clear()
            self.io = [(0, access) for _, access in self.io]
            if self.kernels is not None:
                self.kernels.join_steps()
            if self.numerics is not None:
                self.numerics.join_steps()
        self.steps.append(len(self.issued))

    def begin_call(self, module: int, *, with_gradients: bool) -> None:
        """Record a call of a module that is inside no other.

        Args:
            module: identity of the module's entry.
            with_gradients: whether gradients are enabled.
        """
        self.calls.begin(module, len(self.issued), len(self.steps), with_gradients=with_gradients)

    def lengthen_step(self) -> None:
        """Make the collectives since the end of the last step part of it.

        Raises:
            UsageError: no step has ended.
        """
        if not self.steps:
            raise UsageError("there is no step to lengthen: call trace.step() first")
        self.steps[-1] = len(self.issued)
        latest = len(self.steps)
        self.io = [(min(step, latest - 1), access) for step, access in self.io]
        if self.kernels is not None:
            self.kernels.lengthen_step()

    def end_with_step(self) -> None:
        """Leave out what comes after the last step."""
        self.ends_with_step = True

    @property
    def of_optimizers(self) -> OptimizerMarks:
        """Marks for the program's optimizers, see `StepMarks.of_optimizers`."""
        return OptimizerMarks(self)


class OptimizerMarks:
    """Ends the steps of a recording at the steps of the program's optimizers, until `Trace.step` is called.

    Args:
        recording: the recording.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def step(self) -> None:
        """End a step."""
        if not self._recording.steps_are_marked:
            self._recording.steps.append(len(self._recording.issued))

    def lengthen_step(self) -> None:
        """Make the collectives since the end of the last step part of it."""
        if not self._recording.steps_are_marked and self._recording.steps:
            self._recording.lengthen_step()

    def end_with_step(self) -> None:
        """Leave out what comes after the last step."""
        self._recording.end_with_step()

    @property
    def of_optimizers(self) -> OptimizerMarks:
        """Recording itself, as the owner of marks of optimizers."""
        return self
