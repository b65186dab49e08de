"""Calls that NCCL starts together have one state, in dumps as torch writes them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.trace.importers.test_recorder_dump import dump, entries, entry


def messages_together(
    record: int, number: int, state: str, *, of_torch_2_8: bool, count: int = 2
) -> list[dict[str, Any]]:
    """Return a coalesced call of messages, as torch records it: its end has its state, and is not a message."""
    counted = {"collective_seq_id": number if of_torch_2_8 else 0, "p2p_seq_id": 0 if of_torch_2_8 else number}
    names = ("nccl:send 0->1", "nccl:recv 0<-1")[:count]
    members = [
        entry(name, record + i, state="scheduled", time_discovered_completed_ns=None, is_p2p=True, **counted)
        for i, name in enumerate(names)
    ]
    ended = 9_000 if state == "completed" else None
    end = entry("nccl:coalesced", record + count, state=state, time_discovered_completed_ns=ended, **counted)
    return [*members, {**end, "input_sizes": [], "output_sizes": []}]


@pytest.mark.parametrize("of_torch_2_8", [True, False])
def test_members_of_a_coalesced_call_have_its_state(of_torch_2_8: bool) -> None:
    calls = messages_together(0, 1, "completed", of_torch_2_8=of_torch_2_8)
    calls += messages_together(3, 2, "started", of_torch_2_8=of_torch_2_8)
    found = entries(dump(*calls))
    assert [(one.op, one.state, one.batch, one.sequence) for one in found] == [
        ("send", "completed", 2, 1),
        ("recv", "completed", 2, 1),
        ("send", "started", 5, 2),
        ("recv", "started", 5, 2),
    ]


@pytest.mark.parametrize("of_torch_2_8", [True, False])
@pytest.mark.parametrize("count", [1, 2])
def test_members_of_an_ended_call_stay_in_a_dump_of_what_is_active(of_torch_2_8: bool, count: int) -> None:
    ended = messages_together(4, 1, "completed", of_torch_2_8=of_torch_2_8)
    alike = messages_together(7, 2, "completed", of_torch_2_8=of_torch_2_8, count=count)
    waiting = messages_together(8 + count, 3, "scheduled", of_torch_2_8=of_torch_2_8)
    found = entries(dump(*(one for one in [*ended, *alike, *waiting] if one["time_discovered_completed_ns"] is None)))
    assert [one.state for one in found] == ["completed"] * (2 + count) + ["scheduled"] * 2


def test_members_whose_call_has_no_end_yet_have_not_ended() -> None:
    """A dump that begins with the first record has all calls, even if it ends between members and their end."""
    *members, _ = messages_together(0, 1, "scheduled", of_torch_2_8=False)
    assert [one.state for one in entries(dump(*members, pg_status={}))] == ["scheduled"] * 2


def test_the_group_says_how_many_of_its_messages_ended() -> None:
    calls = [
        entry("nccl:send 0->1", i, state="scheduled", time_discovered_completed_ns=None, is_p2p=True) for i in (5, 6)
    ]
    for number, one in enumerate(calls, 3):
        one.update(collective_seq_id=0, p2p_seq_id=number)
    counted = {"last_enqueued_collective": 4, "last_started_collective": -1, "last_completed_collective": 3}
    found = entries(dump(*calls, pg_status={"0": counted}))
    assert [one.state for one in found] == ["completed", "scheduled"]
    calls[0]["collective_seq_id"] = calls[1]["collective_seq_id"] = 2  # then it counted collectives, too
    assert [one.state for one in entries(dump(*calls, pg_status={"0": counted}))] == ["scheduled", "scheduled"]


def test_the_end_of_messages_that_are_lost_is_no_collective() -> None:
    """A ring buffer may have only the end of a call."""
    end = messages_together(7, 1, "completed", of_torch_2_8=False)[-1]
    found = entries(dump(end, *messages_together(8, 2, "completed", of_torch_2_8=False)))
    assert [one.is_p2p for one in found] == [True, True, True]


def test_the_lost_end_of_a_coalesced_call_follows_from_what_ended_after_it() -> None:
    lost = entry("nccl:_broadcast_oop", 0, state="scheduled", time_discovered_completed_ns=None)
    assert [one.state for one in entries(dump(lost, entry(record=1)))] == ["completed", "completed"]
    assert [one.state for one in entries(dump(lost))] == ["scheduled"]


@pytest.mark.parametrize(("of_torch_2_8", "number"), [(True, 3), (False, 1)])
def test_messages_do_not_count_among_collectives(of_torch_2_8: bool, number: int) -> None:
    """Stages of a pipeline make unlike numbers of calls before the collective of all."""
    calls = [
        *messages_together(0, 1, "completed", of_torch_2_8=of_torch_2_8),
        *messages_together(3, 2, "completed", of_torch_2_8=of_torch_2_8, count=1),
        entry("nccl:all_reduce", 5, collective_seq_id=number),
    ]
    assert [one.sequence for one in entries(dump(*calls)) if not one.is_p2p] == [1]
