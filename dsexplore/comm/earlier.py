"""Sums over the calls that the log no longer keeps one by one, as it has many newer ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dsexplore.capture.issued import Issued
from dsexplore.comm.compare import GroupKey
from dsexplore.comm.records import is_collective, records_of
from dsexplore.comm.straggler import Key, is_matched, key_of
from dsexplore.comm.summary import Line, LineKey, add_up


class Earlier:
    """Sums over the calls that are no longer in the log."""

    def __init__(self) -> None:
        self.lines: dict[LineKey, Line] = {}
        """What they add to the summary."""
        self.matched: Counter[Key] = Counter()
        """By group and name: how many are matched between ranks."""
        self.compared: Counter[GroupKey] = Counter()
        """By group: how many are compared between ranks."""

    def add(self, issued: Sequence[Issued]) -> None:
        """Add finished collectives, which the log drops, to the sums."""
        for one in issued:
            one.read_clock()
        records = list(records_of(issued))
        add_up(records, self.lines)
        for record in filter(is_matched, records):
            self.matched[key_of(record)] += 1
            if is_collective(record.issued):
                self.compared[record.group.name, record.group.ranks] += 1

    @property
    def count(self) -> int:
        """How many calls."""
        return sum(line.count for line in self.lines.values())
