"""What one recording holds, and how a collective gets into it: when it returns, with its times where it takes any."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from dsexplore.progress import Work
from dsexplore.trace.issued import Issued
from dsexplore.trace.timing import Clock, InFlight, end_at_completion, work_of


@dataclass(eq=False)
class Recording:
    """What one ``with record()`` block has seen so far."""

    stack_depth: int
    simulated: bool
    mesh: str
    earlier_calls: dict[int, int]
    issued: list[Issued] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    """How many were issued at each `Trace.step`."""
    notes: list[str] = field(default_factory=list)
    work: Work | None = None
    """Who watches it, if anyone does."""

    def add(self, issued: Issued) -> None:
        """A collective was issued."""
        self.issued.append(issued)
        if self.work is not None:
            steps = len(self.steps)
            self.work.advance(len(issued.messages), f"in step {steps}" if steps else "")

    def step(self) -> None:
        """Later events belong to the next step."""
        self.steps.append(len(self.issued))


@dataclass(slots=True)
class Untimed:
    """A collective between its beginning and its return: noted in every recording once it has returned."""

    recordings: list[Recording]
    issued: Issued
    needs_work: ClassVar[bool] = False

    def done(self, result: Any) -> None:
        """It returned that; see `substrate.Pending`."""
        for recording in self.recordings:
            recording.add(self.issued)


@dataclass(slots=True)
class Timed:
    """The same, on a backend that takes time."""

    recordings: list[Recording]
    issued: Issued
    clock: Clock
    in_flight: InFlight
    needs_work: ClassVar[bool] = True

    def done(self, result: Any) -> None:
        """It returned that; see `substrate.Pending`."""
        for recording in self.recordings:
            recording.add(self.issued)
        if self.issued.span is not None:
            self.issued.span.watch(result)
        else:
            work = work_of(result)
            end_at_completion(self.issued, work, self.clock)
            self.in_flight.add(self.issued, work)
