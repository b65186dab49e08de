"""Ranks in no recorded call: who holds them up where another rank was killed, or torch's own error names one.

Modules: ``analysis/hangs/rank_places.py``.
"""

from __future__ import annotations

import pytest

from dsexplore._internal.analysis.hangs.hang_report import report_of
from dsexplore._internal.analysis.hangs.rank_calls import RankEnd
from dsexplore._internal.analysis.hangs.rank_places import culprits_by_place
from tests.analysis.hangs.test_rank_places import at, in_call, job

KILLED = RankEnd.of("was killed by SIGSEGV")
ENDED = RankEnd.of("ended its block")
NOT_AT_BARRIER = "raised RuntimeError ([Rank 0]: Rank{} failed to pass monitoredBarrier in 4000 ms) at train.py:16"
MET_BARRIER = RankEnd.of("raised RuntimeError (Rank 2 successfully reached monitoredBarrier, but) at train.py:16")


def test_a_killed_rank_is_what_ranks_that_poll_wait_for() -> None:
    found = report_of(job(at(16), at(16), "", rank2=KILLED))
    assert (found.culprits, found.suspects, found.reason) == ((2,), (), "killed")
    assert found.verdict().endswith("rank 2 was killed by SIGSEGV; the others wait for rank 2")


def test_a_rank_that_ended_its_block_is_nothing_to_wait_for() -> None:
    found = culprits_by_place(job(at(16), "", rank1=ENDED))
    assert found == ((), (0,))


@pytest.mark.parametrize(("named", "culprits"), [(" 1", (1,)), ("s 1, 3", (1, 3)), (" 2", ()), (" 9", ())])
def test_the_ranks_that_an_error_of_monitored_barrier_names_are_waited_for(
    named: str, culprits: tuple[int, ...]
) -> None:
    """Rank 2 has ended: where it is named, nobody that runs is."""
    first = RankEnd.of(NOT_AT_BARRIER.format(named))
    found = culprits_by_place(job("", at(15), "", at(15), rank0=first, rank2=MET_BARRIER))
    assert found is not None
    assert found.culprits == culprits
    assert bool(found.suspects) != bool(culprits)


def test_a_rank_in_a_call_of_torch_distributed_waits_for_all_that_ended() -> None:
    found = culprits_by_place(job(in_call("new_group", 5), "", "", rank1=ENDED, rank2=KILLED))
    assert found == ((1, 2), ())
