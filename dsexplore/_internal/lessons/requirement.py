"""What an exercise requires of an answer, and the result of checking one.

An exercise is a generator: it plays the answer, and yields one `Requirement` after another, each with a word that helps
whoever does not meet it. Checking ends at the first that is not met, so later ones may rely on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

Answer = Callable[..., object]
"""What a learner writes: a function with the arguments and the result that the task names."""


@dataclass(frozen=True)
class Requirement:
    """One thing that an answer must do."""

    says: str
    """What is required: "one all_reduce for each parameter"."""
    met: bool
    word: str = ""
    """What to change where it is not met."""


Requirements = Iterator[Requirement]


@dataclass(frozen=True)
class Exercise:
    """A task, and the generator of its requirements."""

    task: str
    requirements: Callable[[Answer], Requirements]


@dataclass(frozen=True, repr=False)
class ExerciseResult:
    """What simulated ranks say of an answer; it prints as its lines."""

    exercise: str
    met: tuple[str, ...]
    """The requirements that are met, in the order of the exercise."""
    unmet: str = ""
    """The first requirement that is not; empty where all are."""
    word: str = ""
    """What to change for it."""

    @property
    def passed(self) -> bool:
        """True if every requirement is met."""
        return not self.unmet

    def verdict(self) -> str:
        """Return whether the answer meets every requirement."""
        return f"{self.exercise}: {'solved' if self.passed else 'not yet'}"

    def lines(self) -> list[str]:
        """Return the verdict, each requirement that is met, the first that is not, and what to change for it."""
        lines = [self.verdict(), *(f"  ✓ {met}" for met in self.met)]
        return lines if self.passed else [*lines, f"  ✗ {self.unmet}", f"    {self.word}"]

    def __repr__(self) -> str:
        return "\n".join(self.lines())


def same_bytes(got: object, wanted: float) -> bool:
    """Return True if an answer is a number and equal to the wanted one, up to rounding."""
    return (
        isinstance(got, (int, float)) and not isinstance(got, bool) and abs(got - wanted) <= 1e-6 * abs(wanted) + 1e-9
    )
