"""`StepMarks`: the interface through which a `Trace` marks the steps of its recording."""

from __future__ import annotations

from typing import Protocol


class StepMarks(Protocol):
    """The ends of a recording's training steps."""

    def step(self) -> None:
        """Assign all later events to the next step."""

    def lengthen_step(self) -> None:
        """Assign the events since the end of the last step to that step.

        Raises:
            UsageError: no step has ended.
        """

    @property
    def of_optimizers(self) -> StepMarks:
        """Marks set by optimizers, which end steps if the program does not call `step` itself."""

    def end_with_step(self) -> None:
        """Leave out events after the end of the last step, those of a step that the program began but will not end."""
