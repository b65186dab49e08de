"""What one recording holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from dsexplore.capture.issued import Issued
from dsexplore.capture.modules import Modules
from dsexplore.progress import Work


@dataclass(eq=False)
class Recording:
    """What one ``with record()`` block has seen so far."""

    stack_depth: int
    simulated: bool
    mesh: str
    earlier_calls: dict[int, int]
    further_notes: Callable[[int], Iterable[str]] = lambda _events: ()
    """What the notes say besides, of that many events."""
    issued: list[Issued] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    """How many were issued at each `Trace.step`."""
    notes: list[str] = field(default_factory=list)
    work: Work | None = None
    """Who watches it, if anyone does."""
    modules: Modules | None = None
    """The modules that were followed when it was last opened."""

    def add(self, issued: Issued) -> None:
        """A collective was issued."""
        self.issued.append(issued)
        if self.work is not None:
            steps = len(self.steps)
            self.work.advance(len(issued.messages), f"in step {steps}" if steps else "")

    def step(self) -> None:
        """Later events belong to the next step."""
        self.steps.append(len(self.issued))
