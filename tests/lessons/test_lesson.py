"""Reference answers solve each exercise, and ten wrong answers to each lesson get a hint that helps.

Modules: ``lessons/``.
"""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch.distributed.tensor import Replicate, distribute_tensor

import dsexplore
from dsexplore._internal.lessons.exercise_tensors import is_close
from dsexplore.lessons import LESSONS, open_lesson
from tests.lessons import data_parallel_answers, model_parallel_answers
from tests.lessons.answers import SOLVED, WRONG, Wrong

REGISTERED_BY = (data_parallel_answers, model_parallel_answers)


@pytest.mark.parametrize(("lesson", "exercise"), SOLVED, ids=" ".join)
def test_the_reference_answer_solves_an_exercise(lesson: str, exercise: str) -> None:
    verdict = open_lesson(lesson).check(exercise, SOLVED[lesson, exercise])
    assert verdict.passed, verdict
    assert verdict.met


@pytest.mark.parametrize("answer", WRONG, ids=[f"{answer.exercise} {answer.hint}" for answer in WRONG])
def test_a_wrong_answer_gets_a_hint_that_helps(answer: Wrong) -> None:
    verdict = open_lesson(answer.lesson).check(answer.exercise, answer.answer)
    assert not verdict.passed
    assert answer.hint in f"{verdict.unmet}: {verdict.hint}"
    assert verdict.hint.endswith((".", ")", "]")) or "Error" in verdict.hint


def test_every_exercise_is_solved_and_every_lesson_failed_by_ten() -> None:
    assert {*SOLVED} == {(name, exercise) for name in LESSONS for exercise in open_lesson(name).exercises}
    failed = Counter(answer.lesson for answer in WRONG)
    assert {name: failed[name] >= 10 for name in LESSONS} == dict.fromkeys(LESSONS, True)


def test_a_verdict_lists_what_is_met_and_the_first_that_is_not() -> None:
    verdict = open_lesson("pipeline").check("bubble", lambda stages, microbatches, chunks: (stages - 1) / microbatches)
    assert repr(verdict).splitlines() == [
        "bubble: not yet",
        "  ✗ idle time over working time",
        f"    {verdict.hint}",
    ]


def test_an_answer_that_raises_is_shown_its_line() -> None:
    verdict = open_lesson("ddp").check("naive", lambda model: None)
    assert verdict.unmet == "it runs on every rank"
    assert verdict.hint.startswith("TypeError: ")


def test_unknown_names_are_refused() -> None:
    with pytest.raises(dsexplore.UsageError, match="lesson 'dpp' is unknown"):
        open_lesson("dpp")
    with pytest.raises(dsexplore.UsageError, match="naive, flat, bucketed, overlapped"):
        open_lesson("ddp").check("bucket", print)
    with pytest.raises(dsexplore.UsageError, match="give the function itself"):
        open_lesson("ddp").check("naive", None)  # type: ignore[arg-type]


def test_an_answer_that_is_a_dtensor_is_not_close() -> None:
    wanted = torch.ones(4)
    with dsexplore.simulate(2) as mesh:
        assert not is_close(distribute_tensor(wanted, mesh, [Replicate()]), wanted)
    assert is_close(wanted.clone(), wanted)
