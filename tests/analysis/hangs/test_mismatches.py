"""Which property of a collective differs between ranks, of calls that are written down."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dsexplore._internal.analysis.hangs.hang_report import HangReport, report_of
from dsexplore._internal.analysis.hangs.rank_calls import GroupId, JobCalls, RankCall, RankCalls

LINES = ("", "train.py:7")


def report(op: str, roots: Sequence[int | None], waiting: Sequence[int]) -> HangReport:
    """Return the report of a job whose ranks reduce together, then call a collective with these roots, in which some
    wait; the others wait in a barrier behind it."""
    group = GroupId("0", tuple(range(len(roots))))
    ranks = {}
    for rank, root in enumerate(roots):
        call = RankCall(rank, 0, group, "dp", 1, "all_reduce", "completed", 4, 4, "float32", 16)
        odd = call._replace(position=1, number=2, op=op, received=None, root=root, source="train.py:7")
        last = call._replace(position=2, number=3, op="barrier", state="scheduled")
        ends = [odd._replace(state="scheduled")] if rank in waiting else [odd, last]
        ranks[rank] = RankCalls(rank, [call, *ends])
    return report_of(JobCalls(ranks, len(roots)))


@pytest.mark.parametrize("op", ["broadcast", "reduce", "gather", "scatter"])
def test_the_rank_that_names_another_root_is_the_odd_one_and_no_other(op: str) -> None:
    found = report(op, [0, 0, 2, 0], waiting=[0, 2])
    assert (found.culprits, found.reason, found.sources) == ((2,), "other root", {2: "train.py:7"})
    assert ", by root (rank 0 for ranks 0, 1, 3; rank 2 for rank 2); rank 2 is the odd one" in found.verdict()
    sides = found.mismatches.select("field", "ranks", "root").rows()
    assert sides == [("root", [0, 1, 3], 0), ("root", [2], 2)]
    assert "root: rank 2" in found._repr_mimebundle_()["text/html"]


def test_of_two_roots_of_two_ranks_each_the_evidence_says_nothing() -> None:
    found = report("broadcast", [0, 0, 2, 2], waiting=[1, 2])
    assert (found.culprits, found.suspects, found.reason) == ((), (0, 1, 2, 3), "other root")
    assert "by root (rank 0 for ranks 0, 1; rank 2 for ranks 2, 3); the evidence does not say" in found.verdict()


def test_roots_that_are_not_known_are_not_compared() -> None:
    found = report("broadcast", [None] * 4, waiting=[2])
    assert (found.mismatches.height, found.reason, found.culprits) == (0, "device", (2,))
