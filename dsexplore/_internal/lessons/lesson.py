"""`open_lesson`, which returns a lesson, and `Lesson.check`, which checks an answer on simulated ranks."""

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
"""{name of a lesson: its title}, in the order of the lessons."""


@dataclass(frozen=True)
class Lesson:
    """A lesson with its exercises; simulated ranks check answers to them."""

    name: str
    title: str
    exercises: Mapping[str, Exercise]
    """{name: exercise}, in their order."""

    def __repr__(self) -> str:
        tasks = [f"  {name}: {exercise.task}" for name, exercise in self.exercises.items()]
        return "\n".join([self.title, *tasks])

    @names_arguments
    def check(self, exercise: str, answer: Answer) -> ExerciseResult:
        """Run an answer on simulated ranks and return which requirements it meets.

        Requirements are checked in order, up to the first that is not met; the result has a hint for that one. An
        answer that raises meets no further ones.

        Args:
            exercise: name of the exercise, a key of `exercises`.
            answer: your function, with the arguments that the task names.

        Raises:
            UsageError: there is no such exercise, or the answer is not a function.

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
                    met.pop(requirement.says, None)  # another rank may have met it
                    return ExerciseResult(exercise, tuple(met), unmet=requirement.says, hint=requirement.hint)
                met[requirement.says] = None
        except Exception as error:
            hint = _describe_error(error, answer)
            return ExerciseResult(exercise, tuple(met), unmet="it runs on every rank", hint=hint)
        return ExerciseResult(exercise, tuple(met))


def open_lesson(name: str) -> Lesson:
    """Return a lesson.

    Args:
        name: name of the lesson, a key of `LESSONS`.

    Raises:
        UsageError: there is no such lesson.

    Examples:
        >>> import dsexplore
        >>> dsexplore.lessons.open_lesson("ddp").title
        'Data parallelism by hand'
    """
    if name not in LESSONS:
        raise UsageError(f"lesson {name!r} is unknown{argument_meant(name, tuple(LESSONS))}: {', '.join(LESSONS)}")
    exercises = import_module(f"dsexplore._internal.lessons.{name}_exercises").EXERCISES
    return Lesson(name, LESSONS[name], exercises)


def _describe_error(error: Exception, answer: Answer) -> str:
    """Describe an error of an answer, with the line of the answer that raised it.

    Raises:
        Exception: the error itself, if no line of the answer is in its traceback, so that it is an error of dsexplore.
    """
    code = getattr(answer, "__code__", None)
    shown = frames_where(error.__traceback__, lambda it: it is code or is_user_file(it.co_filename))
    at = traceback.extract_tb(shown)
    if not at and not isinstance(error, TypeError):
        raise error
    where = f", in line {at[-1].lineno}: {at[-1].line}" if at else ""
    return f"{type(error).__name__}: {error}{where}"
