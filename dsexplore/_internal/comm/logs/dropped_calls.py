"""Sums over the calls that the log has dropped because it has many newer ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from dsexplore._internal.capture.collectives.issued_collective import Issued
from dsexplore._internal.comm.logs.log_records import records_of
from dsexplore._internal.comm.logs.log_summary import Line, LineKey, add_up
from dsexplore._internal.comm.logs.sent_calls import Series, series_of
from dsexplore._internal.trace.matching import is_numbered


class DroppedCalls:
    """Sums over the calls that are no longer in the log."""

    def __init__(self) -> None:
        self.lines: dict[LineKey, Line] = {}
        """Lines of the summary, with the sums of these calls alone."""
        self.numbered: Counter[Series] = Counter()
        """{series: number of dropped calls that involve all ranks of a group}."""
        self.counted_early: set[Issued] = set()
        """Collectives that the log still has because they have not completed, although newer ones were dropped.
        `numbered` counts them as dropped, so that later calls have the same numbers as on other ranks."""

    def add(self, dropped: Sequence[Issued], unfinished: Sequence[Issued] = ()) -> None:
        """Add collectives that the log drops to the sums.

        Args:
            dropped: completed collectives.
            unfinished: older collectives that the log keeps because they have not completed.
        """
        for call in dropped:
            call.read_clock()
        add_up(records_of(dropped), self.lines)
        self._count(call for call in (*dropped, *unfinished) if call not in self.counted_early)
        self.counted_early.difference_update(dropped)
        self.counted_early.update(unfinished)

    def _count(self, issued: Iterable[Issued]) -> None:
        self.numbered.update(series_of(record) for record in records_of(issued) if is_numbered(record.op))

    @property
    def count(self) -> int:
        """Number of dropped calls, of all lines together."""
        return sum(line.count for line in self.lines.values())
