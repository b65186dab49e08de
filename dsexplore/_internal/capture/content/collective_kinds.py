"""The kinds of collectives in a recording: a program issues few, each of them in every step.

Tables are made of the kinds, and their rows repeated: a log of 300,000 calls becomes a trace in a third of the time
that it takes to look at each call once for each column.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dsexplore._internal.capture.collectives.issued_collective import Issued
from dsexplore._internal.trace.schema import State


class CollectiveKind(NamedTuple):
    """Collectives that are equal except for origin, times, step and batch."""

    issued: Issued
    """The first of them."""
    state: State
    """When the kind was found: another thread may end the collective while a table is made."""


class CollectiveKinds:
    """The kinds of some collectives, their origins, and what differs from one to the next.

    A model's layers issue the same few kinds, each from origins of its own.

    Args:
        issued: in program order; equal origins are one object, as `Origins` makes them.
        waits: see `Issued.read_clock`.
    """

    def __init__(self, issued: Sequence[Issued], *, waits: bool = True) -> None:
        self.kinds: list[CollectiveKind] = []
        """In the order in which they came first."""
        self.numbers: list[int] = []
        """The index of each collective's kind."""
        self.origins: list[Issued] = []
        """The first collective of each origin, and of each failure of one origin."""
        self.origin_numbers: list[int] = []
        """The index of each collective's origin."""
        names = ("batch", "start", "end", "waited", "same_input")
        self.columns: dict[str, list[int | None]] = {name: [] for name in names}
        """By column of `schema.EVENTS`, the value of each collective."""
        self._sort(issued, waits)

    def _sort(self, issued: Sequence[Issued], waits: bool) -> None:
        """Read each collective once, as objects far apart in memory are slow to read."""
        kinds: dict[tuple[Any, ...], int] = {}
        origins: dict[Any, int] = {}
        inputs: dict[int, int] = {}  # by identity of a group, that of its last collective
        add_number, add_origin_number = self.numbers.append, self.origin_numbers.append
        add_batch, add_start, add_end, add_waited, add_same_input = [column.append for column in self.columns.values()]
        for call in issued:
            if call.span is not None:
                call.read_clock(waits=waits)
            start, end, failure = call.start, call.end, call.failure
            # One after another: unpacking parts of a tuple into it takes as long as all the rest.
            key = (id(call.messages), id(call.group), id(call.parties), call.raw_op, call.rank,
                   call.is_async, failure, call.span, start is None, end is None)  # fmt: skip
            kind = kinds.get(key)
            if kind is None:
                kind = kinds[key] = len(self.kinds)
                self.kinds.append(CollectiveKind(call, call.state))
            origin_key = (id(call.origin), failure) if failure else id(call.origin)
            origin = origins.get(origin_key)
            if origin is None:
                origin = origins[origin_key] = len(self.origins)
                self.origins.append(call)
            add_number(kind)
            add_origin_number(origin)
            add_batch(call.batch)
            add_start(start)
            add_end(end)
            add_waited(call.waited)
            group, given = id(call.group), call.input if call.origin.redistribute is not None else 0
            add_same_input(given > 0 and inputs.get(group) == given)
            inputs[group] = given

    def rows(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return, for each message, its index among the messages of all kinds, and the index of its collective."""
        counts = np.array([len(kind.issued.messages) for kind in self.kinds], np.int64)
        numbers = np.array(self.numbers, np.int64)
        firsts = np.cumsum(counts) - counts
        repetitions = counts[numbers]
        collectives = np.repeat(np.arange(len(numbers)), repetitions)
        positions = np.arange(len(collectives)) - np.repeat(np.cumsum(repetitions) - repetitions, repetitions)
        return firsts[numbers][collectives] + positions, collectives
