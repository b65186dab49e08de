"""`open_lesson`: one of the lessons, and `Lesson.check`, by which simulated ranks judge an answer."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module

from dsexplore._internal.errors import UsageError
from dsexplore._internal.lessons.requirement import Answer, Exercise, ExerciseResult
from dsexplore._internal.near_names import argument_meant
from dsexplore._internal.signatures import names_arguments
from dsexplore._internal.tracebacks import frames_where
from dsexplore._internal.user_code import is_user_file

LESSONS = {
    "collectives": "Collectives and what they cost",
    "ddp": "Data parallelism by hand",
    "sharded": "ZeRO 1 to 3, and FSDP",
    "tensor": "Tensor and sequence parallelism",
    "pipeline": "Pipelines and their bubbles",
    "experts": "Experts",
    "mesh": "A mesh of five axes for a model of 405 billion parameters",
    "numbers": "Does the plan compute the same?",
}
"""The lessons in their order: name → title."""


@dataclass(frozen=True)
class Lesson:
    """A lesson: exercises, and the ranks that judge answers to them."""

    name: str
    title: str
    exercises: Mapping[str, Exercise]
    """Name → task."""

    def __repr__(self) -> str:
        tasks = [f"  {name}: {exercise.task}" for name, exercise in self.exercises.items()]
        return "\n".join([self.title, *tasks])

    @names_arguments
    def check(self, exercise: str, answer: Answer) -> ExerciseResult:
        """Play an answer on simulated ranks and say which requirements it meets.

        Requirements are checked in order, up to the first that is not met; the result says what to change for
        that one. An answer that raises meets none further.

        Args:
            exercise: a name of `exercises`.
            answer: your function, with the arguments that the task names.

        Raises:
            UsageError: no such exercise, or the answer is not a function.

        Examples:
            >>> import dsexplore
            >>> lesson = dsexplore.lessons.open_lesson("sharded")
            >>> lesson.check("memory", lambda parameters, ranks, stage: 16 * parameters).passed
            False
        """
        if exercise not in self.exercises:
            near = argument_meant(exercise, tuple(self.exercises))
            raise UsageError(f"exercise {exercise!r} is not in lesson {self.name}{near}: {', '.join(self.exercises)}")
        if not callable(answer):
            raise UsageError(f"the answer to {exercise} is a {type(answer).__name__}: give the function itself")
        met: dict[str, None] = {}
        try:
            for requirement in self.exercises[exercise].requirements(answer):
                if not requirement.met:
                    met.pop(requirement.says, None)  # another rank has met it
                    return ExerciseResult(exercise, tuple(met), requirement.says, requirement.word)
                met[requirement.says] = None
        except Exception as error:
            return ExerciseResult(exercise, tuple(met), "it runs on every rank", _what_happened(error, answer))
        return ExerciseResult(exercise, tuple(met))


def open_lesson(name: str) -> Lesson:
    """Return a lesson.

    Args:
        name: a key of `LESSONS`.

    Raises:
        UsageError: no such lesson.

    Examples:
        >>> import dsexplore
        >>> dsexplore.lessons.open_lesson("ddp").title
        'Data parallelism by hand'
    """
    if name not in LESSONS:
        raise UsageError(f"lesson {name!r} is unknown{argument_meant(name, tuple(LESSONS))}: {', '.join(LESSONS)}")
    exercises = import_module(f"dsexplore._internal.lessons.{name}_exercises").EXERCISES
    return Lesson(name, LESSONS[name], exercises)


def _what_happened(error: Exception, answer: Answer) -> str:
    """Describe an error of an answer, and the line of the answer that raised it.

    Raises:
        Exception: the error itself, where no line of the answer stands in its traceback, nor its call: it is ours.
    """
    code = getattr(answer, "__code__", None)
    shown = frames_where(error.__traceback__, lambda it: it is code or is_user_file(it.co_filename))
    at = traceback.extract_tb(shown)
    if not at and not isinstance(error, TypeError):
        raise error
    where = f", in line {at[-1].lineno}: {at[-1].line}" if at else ""
    return f"{type(error).__name__}: {error}{where}"
