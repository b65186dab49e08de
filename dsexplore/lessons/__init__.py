"""Lessons on distributed training, with exercises that simulated ranks check; see `notebooks/lessons`."""

from dsexplore._internal.lessons.lesson import LESSONS, Lesson, open_lesson
from dsexplore._internal.lessons.requirement import ExerciseResult

__all__ = ["LESSONS", "ExerciseResult", "Lesson", "open_lesson"]


def __dir__() -> list[str]:
    return sorted(__all__)
