"""When a collective that was measured on a device gets its times."""

from __future__ import annotations

from typing import Any

import pytest

from dsexplore._internal.capture.collectives.issued_collective import Issued, Origin
from dsexplore._internal.capture.collectives.ops import Message


class ReadByAnotherThread:
    """A span whose collective another thread reads while this one asks whether it has ended."""

    def __init__(self, issued: Issued) -> None:
        self._issued = issued

    @property
    def has_end(self) -> bool:
        self._issued.span = None
        return True

    is_over = has_end

    def read(self) -> tuple[int, int]:
        return 3, 5


@pytest.mark.parametrize("waits", [False, True])
def test_two_threads_may_read_the_clock_at_once(waits: bool) -> None:
    issued = Issued(
        "c10d::allreduce_", [Message("all_reduce", 4, None, (1,))], None, 0, Origin("other", None, None, ())
    )
    span: Any = ReadByAnotherThread(issued)
    issued.span = span
    issued.read_clock(waits=waits)
    assert (issued.start, issued.end, issued.span) == (3, 5, None)
