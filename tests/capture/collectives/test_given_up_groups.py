"""What ends because NCCL gave its group up has failed."""

from __future__ import annotations

from typing import Any

import pytest
from torch._C._distributed_c10d import ErrorType

from dsexplore._internal.capture.collectives.given_up_groups import mark_given_up
from dsexplore._internal.capture.collectives.groups import Group, error_of
from dsexplore._internal.capture.collectives.issued_collective import Issued, Origin
from dsexplore._internal.capture.collectives.ops import Message

SECOND = 10**9
NOWHERE = Origin("other", None, None, ())


def group(error: str) -> Group:
    return Group("3", 2, (0, 1), "nccl", "", axis="dp", timing="cuda", error=error)


def issued(of: Group, *times: tuple[int, int | None]) -> list[Issued]:
    """Return one all_reduce for each start and end, in seconds."""
    found = []
    for start, end in times:
        message = Message("all_reduce", 4, None, (1,))
        one = Issued("c10d::allreduce_", [message], of, 0, NOWHERE, start=start * SECOND)
        one.end = None if end is None else end * SECOND
        found.append(one)
    return found


def test_the_longest_and_those_after_it_failed() -> None:
    """The first collective takes long too, as it creates the communicator, and the last one has not begun."""
    gave_up, fine = group("TIMEOUT"), group("")
    own = issued(gave_up, (0, 99), (100, 101), (101, 161), (161, 161), (162, None))
    others = issued(fine, (0, 900))
    notes = mark_given_up([*own[:3], *others, *own[3:]], [gave_up, fine])
    assert notes == ["NCCL gave group dp up (TIMEOUT): collective 3 of it and those after it failed"]
    assert [one.state for one in own] == ["completed", "completed", "failed", "failed", "scheduled"]
    assert own[2].cause_text == "failed: NCCL gave the group up, TIMEOUT"
    assert others[0].state == "completed"
    assert mark_given_up([*own, *others], [gave_up, fine]) == []
    assert [one.state for one in own] == ["completed", "completed", "failed", "failed", "scheduled"]


@pytest.mark.parametrize(("times", "states"), [([(0, 60)], ["failed"]), ([(0, None)], ["scheduled"]), ([], [])])
def test_few_collectives(times: list[tuple[int, int | None]], states: list[str]) -> None:
    gave_up = group("REMOTE_ERROR")
    own = issued(gave_up, *times)
    assert len(mark_given_up(own, [gave_up])) == states.count("failed")
    assert [one.state for one in own] == states


class Standing:
    """A span whose device has not reached its end."""

    has_end, is_over = True, False


def test_as_long_as_one_stands_what_ended_did_so_by_itself() -> None:
    gave_up = group("TIMEOUT")
    own = issued(gave_up, (0, 1), (1, 50), (50, None))
    standing: Any = Standing()
    own[2].start, own[2].span = None, standing
    assert mark_given_up(own, [gave_up]) == []
    assert [one.state for one in own] == ["completed", "completed", "scheduled"]


class Backend:
    def __init__(self, error: Any) -> None:
        self.error = error

    def get_error(self) -> Any:
        return self.error


class OfBackend:
    def __init__(self, backend: object) -> None:
        self.backend = backend

    def _get_backend(self, _device: object) -> object:
        if self.backend is None:
            raise RuntimeError("no backend for device cuda")
        return self.backend


@pytest.mark.parametrize(
    ("backend", "error"),
    [(Backend(ErrorType.TIMEOUT), "TIMEOUT"), (Backend(ErrorType.SUCCESS), ""), (object(), ""), (None, "")],
)
def test_why_a_group_was_given_up(backend: object, error: str) -> None:
    assert error_of(OfBackend(backend)) == error
