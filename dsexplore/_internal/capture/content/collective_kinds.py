"""The kinds of collectives in a recording: a program issues few of them, and repeats them in every step.

Tables are made with one row per kind, and these rows are then repeated. For a log of 300,000 calls that takes a third
of the time that one pass over the calls per column takes.
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
    """Its state when the kind was made, since another thread may end the collective while tables are made."""


class CollectiveKinds:
    """The kinds and origins of collectives, and the values that differ from one collective to the next.

    Kinds and origins are separate, as all layers of a model issue the same few kinds, each from its own origins.

    Args:
        issued: the collectives in program order; equal origins must be one object, as `Origins` makes them.
        waits: see `Issued.read_clock`.
    """

    def __init__(self, issued: Sequence[Issued], *, waits: bool = True) -> None:
        self.kinds: list[CollectiveKind] = []
        """The kinds, in the order of their first collectives."""
        self.numbers: list[int] = []
        """The index of each collective's kind."""
        self.origins: list[Issued] = []
        """The first collective of each pair of origin and failure."""
        self.origin_numbers: list[int] = []
        """The index of each collective's origin."""
        names = ("batch", "start", "end", "waited", "same_input")
        self.columns: dict[str, list[int | None]] = {name: [] for name in names}
        """{column of `schema.EVENTS`: the value of each collective}."""
        self._sort(issued, waits)

    def _sort(self, issued: Sequence[Issued], waits: bool) -> None:
        """Read each collective once, since objects far apart in memory are slow to read."""
        kinds: dict[tuple[Any, ...], int] = {}
        origins: dict[Any, int] = {}
        latest_inputs: dict[int, int] = {}  # {identity of a group: input of its latest collective}
        add_number, add_origin_number = self.numbers.append, self.origin_numbers.append
        add_batch, add_start, add_end, add_waited, add_same_input = [column.append for column in self.columns.values()]
        for call in issued:
            if call.span is not None:
                call.read_clock(waits=waits)
            start, end, failure = call.start, call.end, call.failure
            # Listed one by one, as unpacking a tuple into the key would double the time of this loop.
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
            group, input_number = id(call.group), call.input if call.origin.redistribute is not None else 0
            add_same_input(input_number > 0 and latest_inputs.get(group) == input_number)
            latest_inputs[group] = input_number

    def rows(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return two arrays with one value per message: its index among the messages of all kinds, and its collective.

        Worked example: kinds with 1 and 2 messages, and collectives of kinds 1, 0, 1 give 1, 2, 0, 1, 2 and 0, 0, 1, 2,
        2.
        """
        counts = np.array([len(kind.issued.messages) for kind in self.kinds], np.int64)
        numbers = np.array(self.numbers, np.int64)
        firsts = np.cumsum(counts) - counts
        repetitions = counts[numbers]
        collectives = np.repeat(np.arange(len(numbers)), repetitions)
        positions = np.arange(len(collectives)) - np.repeat(np.cumsum(repetitions) - repetitions, repetitions)
        return firsts[numbers][collectives] + positions, collectives
