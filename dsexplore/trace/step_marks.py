"""`StepMarks`: the means by which a `Trace` marks the steps of the recording that it shows, whatever records it."""

from __future__ import annotations

from typing import Protocol


class StepMarks(Protocol):
    """The ends of a recording's training steps."""

    def step(self) -> None:
        """Make all later events part of the next step."""

    def lengthen_step(self) -> None:
        """Make the events since the end of the last step part of it.

        Raises:
            UsageError: no step has ended.
        """

    @property
    def of_optimizers(self) -> StepMarks:
        """Marks for what ends steps where the program does not call `step` itself: those of optimizers."""

    def end_with_step(self) -> None:
        """Leave out events after the end of the last step: those of one that a program has begun and is not to end."""
