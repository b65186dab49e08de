"""Where ranks stand that wait in no recorded call, and for whom."""

from __future__ import annotations

import pytest

from dsexplore._internal.analysis.hangs.hang_report import report_of
from dsexplore._internal.analysis.hangs.rank_calls import JobCalls, RankCalls, RankEnd
from dsexplore._internal.analysis.hangs.rank_places import RankPlace, places_text, ranks_elsewhere

C10D = '  File "…/torch/distributed/{file}.py", line 9, in {name}\n'
LOADER = '  File "/env/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1, in __next__\n'
PROGRAM = '  File "/job/train.py", line {line}, in main\n    call()\n'


def in_call(name: str, line: int) -> str:
    inner = C10D.format(file="distributed_c10d", name=name) + C10D.format(file="c10d_logger", name="wrapper")
    return C10D.format(file="rendezvous", name="_store") + inner + PROGRAM.format(line=line)


def at(line: int) -> str:
    return PROGRAM.format(line=line)


@pytest.mark.parametrize(
    ("stack", "text"),
    [
        (in_call("new_group", 52), "in new_group (train.py:52)"),
        (at(53), "at train.py:53"),
        ('  File "/job/train.py", line 7 in main\n', "at train.py:7"),
        (
            LOADER + at(8),
            "at train.py:8",
        ),
        ('  File "In[3]", line 2, in <module>\n' + at(8), "at In[3]:2"),
        ("", "at an unknown line"),
    ],
)
def test_a_stack_says_the_line_and_what_it_called_of_torch_distributed(stack: str, text: str) -> None:
    assert RankPlace.of(stack).text == text


@pytest.mark.parametrize(
    ("stacks", "odd"),
    [
        ([in_call("new_group", 5), in_call("new_group", 5), at(3)], (2,)),
        ([in_call("new_group", 5), in_call("new_group", 5), in_call("new_group", 6)], (2,)),
        ([in_call("barrier", 5), at(3)], (1,)),
        ([in_call("barrier", 5), at(3), at(3)], ()),
        ([in_call("new_group", 5), in_call("new_group", 6)], ()),
        ([at(3), at(3)], ()),
        ([at(3), at(3), at(4)], (2,)),
    ],
)
def test_ranks_elsewhere_are_those_in_other_code_or_fewer(stacks: list[str], odd: tuple[int, ...]) -> None:
    assert ranks_elsewhere({rank: RankPlace.of(stack) for rank, stack in enumerate(stacks)}) == odd


def test_ranks_at_one_place_are_named_together_those_given_first() -> None:
    places = {rank: RankPlace.of(at(3 if rank else 4)) for rank in range(3)}
    assert places_text(places) == "rank 0 at train.py:4, ranks 1, 2 at train.py:3"
    assert places_text(places, (2,)) == "ranks 1, 2 at train.py:3, rank 0 at train.py:4"


def job(*stacks: str, no_progress_for: str | None = "6 s", **ends: RankEnd) -> JobCalls:
    ranks = {rank: RankCalls(rank, stack=stack, end=ends.get(f"rank{rank}")) for rank, stack in enumerate(stacks)}
    return JobCalls(ranks, len(ranks), no_progress_for=no_progress_for)


def test_a_job_that_stands_outside_all_calls_is_no_job_that_does_not_hang() -> None:
    stacks = in_call("new_group", 52), in_call("new_group", 52), in_call("new_group", 53)
    report = report_of(job(*stacks))
    assert (report.culprits, report.reason, report.sources) == ((2,), "outside a collective", {2: "train.py:53"})
    assert report.verdict() == (
        "no collective is open, and none began or ended for 6 s: rank 2 in new_group (train.py:53), ranks 0, 1 in "
        "new_group (train.py:52); the others wait for rank 2"
    )
    assert report_of(job(*stacks, no_progress_for=None)).reason == "none"
    assert report_of(job(*stacks[:2], "")).reason == "none"  # it has gone on


def test_a_rank_that_ended_is_what_the_others_wait_for() -> None:
    end = RankEnd("raised", "raised ValueError (bad) at train.py:9", "train.py:9")
    report = report_of(job(in_call("new_group", 52), in_call("new_group", 52), "", rank2=end))
    assert (report.culprits, report.reason, report.sources) == ((2,), "raised", {2: "train.py:9"})
    assert "rank 2 raised ValueError (bad) at train.py:9; the others wait for rank 2" in report.verdict()


def test_nobody_is_accused_where_all_stand_at_one_line() -> None:
    report = report_of(job(at(3), at(3)))
    assert (report.culprits, report.suspects, report.sources) == ((), (0, 1), {0: "train.py:3", 1: "train.py:3"})
    assert report.verdict().endswith("for 6 s: ranks 0, 1 at train.py:3; the evidence does not say for whom they wait")
