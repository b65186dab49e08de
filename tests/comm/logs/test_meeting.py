"""Ranks that meet and exchange values through the world's store."""

from __future__ import annotations

import pytest

from dsexplore import run_ranks


def keys_after_meetings(times: int) -> tuple[list[dict[int, int]], int]:
    """Return what ranks exchange that meet so often, and how many keys the world's store has afterwards."""
    import torch.distributed as td

    from dsexplore._internal.comm.logs import meeting

    found = []
    for number in range(times):
        assert meeting.meet("check()")
        found.append(meeting.exchange(10 * number + td.get_rank(), by_store=True))
    td.barrier()
    return found, meeting.store_of_world().num_keys()


@pytest.mark.processes
def test_meetings_leave_no_keys_in_the_store() -> None:
    once, often = (run_ranks(keys_after_meetings, 3, args=(times,), timeout=240).values for times in (1, 6))
    assert [found for found, _ in often] == [[{rank: 10 * n + rank for rank in range(3)} for n in range(6)]] * 3
    assert {keys for _, keys in often} == {keys for _, keys in once}


def exchanged_alone() -> dict[int, str]:
    from dsexplore._internal.comm.logs import meeting

    assert meeting.meet("check()")
    return meeting.exchange("mine", by_store=True)


@pytest.mark.processes
def test_a_world_of_one_rank_exchanges_with_itself() -> None:
    assert run_ranks(exchanged_alone, 1, timeout=240).values == [{0: "mine"}]
