"""A clock that ticks, and one asynchronous call with its line in the log: what tests of the log are made with."""

from __future__ import annotations

from collections.abc import Callable

from dsexplore._internal.capture.collectives.groups import Group
from dsexplore._internal.capture.collectives.issued_collective import Issued, Origin
from dsexplore._internal.capture.collectives.ops import Message
from dsexplore._internal.comm.logs.log_records import LoggedCall, Record
from dsexplore._internal.comm.spellings import ALL_REDUCE


def ticking() -> Callable[[], int]:
    """Return a clock that is a microsecond later each time."""
    now = 0

    def tick() -> int:
        nonlocal now
        now += 1000
        return now

    return tick


def one_logged(name: str = "all_reduce") -> tuple[LoggedCall, Issued, Record]:
    """Return an asynchronous call that was issued at 0, and its line."""
    group = Group("0", 2, (0, 1), "gloo", "", timing="work")
    message = Message("all_reduce", 8, None, ())
    issued = Issued("c10d::allreduce_", [message], group, 0, Origin("other", None, None, ()))
    issued.start = 0
    call = LoggedCall(ALL_REDUCE, name, is_wanted=True, ends_with_call=False)
    issued.label = call
    call.issued.append(issued)
    return call, issued, Record(issued, call, message)
