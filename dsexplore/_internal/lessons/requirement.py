"""The requirements of an exercise, and the result of checking an answer.

An exercise has a generator that runs the answer and yields one `Requirement` after another, each with a hint for an
answer that does not meet it. Checking ends at the first that is not met, so later ones may rely on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

Answer = Callable[..., object]
"""Function that a learner writes, with the arguments and the result that the task names."""


@dataclass(frozen=True)
class Requirement:
    """A requirement of an exercise, checked on one answer."""

    says: str
    """The requirement: "one all_reduce for each parameter"."""
    met: bool
    """True if the answer meets it."""
    hint: str = ""
    """What to change if the answer does not meet it."""


Requirements = Iterator[Requirement]


@dataclass(frozen=True)
class Exercise:
    """A task, and the generator of its requirements."""

    task: str
    requirements: Callable[[Answer], Requirements]


@dataclass(frozen=True, repr=False)
class ExerciseResult:
    """The result of checking an answer, which prints as its lines."""

    exercise: str
    """Name of the exercise."""
    met: tuple[str, ...]
    """Requirements that the answer meets, in the order of the exercise."""
    unmet: str = ""
    """The first requirement that it does not meet; empty if it meets all."""
    hint: str = ""
    """What to change to meet it."""

    @property
    def passed(self) -> bool:
        """True if every requirement is met."""
        return not self.unmet

    def verdict(self) -> str:
        """Return whether the answer meets every requirement."""
        return f"{self.exercise}: {'solved' if self.passed else 'not yet'}"

    def lines(self) -> list[str]:
        """Return the verdict, the requirements that are met, the first that is not, and the hint."""
        lines = [self.verdict(), *(f"  ✓ {met}" for met in self.met)]
        return lines if self.passed else [*lines, f"  ✗ {self.unmet}", f"    {self.hint}"]

    def __repr__(self) -> str:
        return "\n".join(self.lines())


def same_bytes(got: object, wanted: float) -> bool:
    """Return True if an answer is a number and equal to the wanted one, up to rounding."""
    if not isinstance(got, (int, float)) or isinstance(got, bool):
        return False
    return abs(got - wanted) <= 1e-6 * abs(wanted) + 1e-9
