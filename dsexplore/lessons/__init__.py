"""Lessons on distributed training: simulated ranks judge the exercises. The notebooks are in `notebooks/lessons`."""

from dsexplore._internal.lessons.lesson import LESSONS, Lesson, open_lesson
from dsexplore._internal.lessons.requirement import Verdict

__all__ = ["LESSONS", "Lesson", "Verdict", "open_lesson"]


def __dir__() -> list[str]:
    return sorted(__all__)
