"""Registry of answers to the exercises of the lessons: reference answers, and wrong ones with a part of their hint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Wrong:
    """A wrong answer to an exercise, and what the hint on it must contain."""

    lesson: str
    exercise: str
    answer: Callable[..., Any]
    hint: str


SOLVED: dict[tuple[str, str], Callable[..., Any]] = {}
WRONG: list[Wrong] = []


def solves(lesson: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a reference answer, by its name."""

    def register(answer: Callable[..., Any]) -> Callable[..., Any]:
        SOLVED[lesson, answer.__name__] = answer
        return answer

    return register


def wrong(lesson: str, exercise: str, hint: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a wrong answer."""

    def register(answer: Callable[..., Any]) -> Callable[..., Any]:
        WRONG.append(Wrong(lesson, exercise, answer, hint))
        return answer

    return register


def is_wrong(lesson: str, exercise: str, hint: str, answer: Callable[..., Any]) -> None:
    """Register a wrong answer that is one expression."""
    WRONG.append(Wrong(lesson, exercise, answer, hint))
