"""Flight recorder dumps that four gloo ranks left on one host, with torch 2.13 and 2.15.

Modules: ``analysis/hangs/``, ``trace/importers/recorder_dump.py``.

Each rank ran five steps of an all_reduce of all ranks (line 17), a broadcast of ranks 0 and 1 in a group of two (line
18), and an all_reduce in a second group of all ranks (line 24). In the sets ``missing``, rank 2 slept in the fourth
step before line 24; in the sets ``other``, rank 3 called a broadcast there. Each rank wrote its dump 12 s after the
start, and was gone; some were gone before they had written, as their peers were: those files are empty. Names of
folders are changed, nothing else.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import dsexplore

DATA = Path(__file__).parent / "data"


@pytest.mark.parametrize(
    ("name", "culprit", "reason", "said"),
    [
        ("2.13_missing", 2, "did not come", "rank 2 did not come: rank 0 waits for it in all_reduce (train.py:24"),
        (
            "2.15_missing",
            2,
            "did not come",
            "rank 2 did not come: ranks 0, 1, 3 wait for it in all_reduce",
        ),
        (
            "2.13_other",
            3,
            "other collective",
            "rank 3 waits in broadcast (train.py:22, group 1, 32 B); ranks 0, 1",
        ),
    ],
)
def test_the_culprit_is_named_though_files_are_empty(name: str, culprit: int, reason: str, said: str) -> None:
    found = dsexplore.explain_hang(DATA / f"gloo_{name}")
    assert (found.culprits, found.suspects, found.reason) == ((culprit,), (), reason)
    assert found.verdict().startswith(said)


def test_of_one_file_with_content_it_is_said_what_is_there() -> None:
    found = dsexplore.explain_hang(DATA / "gloo_2.15_other")
    assert (found.culprits, found.suspects, found.reason) == ((), (0, 1, 2, 3), "unknown")
    assert found.verdict() == (
        "rank 3 waits in broadcast (train.py:22, group 1, 32 B), collective 4 of group 1; ranks 0–2 left nothing but "
        "an empty file, and no file lists the ranks of group 1: the evidence does not say for whom it waits"
    )
    assert found.sources == {3: "/job/train.py:22"}
