"""Groups that one rank makes otherwise, whatever each rank had done when the job was looked at.

Modules: ``analysis/hangs/unlike_groups.py``.
"""

from __future__ import annotations

from typing import Any

import pytest

from dsexplore._internal.analysis.hangs.hang_report import HangReport, report_of
from dsexplore._internal.analysis.hangs.rank_calls import GroupId, JobCalls, RankCall, RankCalls

MAKES = (
    '  File "…/torch/distributed/distributed_c10d.py", line 9, in new_group\n'
    '  File "…/torch/distributed/c10d_logger.py", line 9, in wrapper\n'
    '  File "/job/train.py", line {line}, in main\n'
)
SLEEPS = '  File "/job/train.py", line {line}, in main\n'
ALL, PAIR = GroupId("1", (0, 1, 2)), GroupId("1@1", (0, 1))


def waits(rank: int, group: GroupId, number: int = 1) -> RankCall:
    return RankCall(rank, 1, group, "1", number, "all_reduce", "scheduled", source="train.py:7", message_bytes=32)


def report(*ranks: GroupId | str, number: int = 1, before: tuple[GroupId, ...] = ()) -> HangReport:
    """Return the report of ranks that wait in a group each, or stand elsewhere, and have called in the groups
    `before`."""
    everyone = GroupId("0", tuple(range(len(ranks))))
    jobs = {}
    for rank, what in enumerate(ranks):
        called = [
            RankCall(rank, place - 9, group, group.name, 1, "all_reduce", "completed")
            for place, group in enumerate((everyone, *before))
            if rank in group.ranks
        ]
        stack = what if isinstance(what, str) else ""
        calls = called if isinstance(what, str) else [*called, waits(rank, what, number)]
        jobs[rank] = RankCalls(rank, calls, stack=stack)
    return report_of(JobCalls(jobs, len(jobs)))


def test_a_rank_that_still_makes_the_group_which_another_made_otherwise_is_not_accused() -> None:
    found = report(ALL, PAIR, MAKES.format(line=5))
    assert (found.culprits, found.suspects, found.reason) == ((1,), (), "other group order")
    assert found.verdict() == (
        "rank 1 waits in all_reduce (train.py:7, group 1, 32 B); rank 0 waits in all_reduce (train.py:7, group 1, 32 "
        "B); rank 2 in new_group (train.py:5); group 1 is not the same on all of them: rank 0 made it of ranks 0–2, "
        "rank 1 made it of ranks 0, 1; rank 1 is the odd one"
    )


def test_a_rank_that_went_on_alone_while_the_others_make_the_group_is_named() -> None:
    makes = MAKES.format(line=5)
    found = report(makes, PAIR, makes)
    assert (found.culprits, found.reason, found.sources) == ((1,), "other group order", {1: "train.py:7"})
    assert found.verdict() == (
        "rank 1 waits in all_reduce (train.py:7, group 1, 32 B); ranks 0, 2 in new_group (train.py:5); rank 1 is the "
        "odd one"
    )


def test_nobody_is_accused_where_as_many_make_the_group_of_some_ranks_as_of_others() -> None:
    by_two = report(GroupId("1", (0, 1, 2)), GroupId("1@1", (0, 1, 3)), MAKES.format(line=5), MAKES.format(line=5))
    assert (by_two.culprits, by_two.suspects) == ((), (0, 1, 2, 3))
    makes = MAKES.format(line=5)
    tied = report(makes, PAIR)
    assert (tied.culprits, tied.suspects) == ((), (0, 1))
    assert tied.verdict().endswith("the evidence does not say which of them is wrong")


@pytest.mark.parametrize(
    ("elsewhere", "options"),
    [
        (SLEEPS.format(line=9), {}),
        (MAKES.format(line=5), {"number": 2}),
        (MAKES.format(line=5), {"before": (ALL,)}),
    ],
    ids=["asleep", "a later collective", "has called there"],
)
def test_who_is_elsewhere_or_had_made_the_group_is_missing(elsewhere: str, options: dict[str, Any]) -> None:
    found = report(ALL, ALL, elsewhere, **options)
    assert (found.culprits, found.reason) == ((2,), "outside a collective")
