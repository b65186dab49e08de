"""The simulated step of one rank, at each end of the range."""

from __future__ import annotations

from collections.abc import Callable

from dsexplore.cost.rank_program import Program
from dsexplore.cost.stream_simulation import Played, play

LOW, EXPECTED, HIGH = range(3)
"""The ends of a range, and what is expected."""


class RankTimes:
    """One rank's step, once for each end of the range; an end is simulated when it is first asked for."""

    def __init__(self, program: Program, slowdown: float, overlap: bool) -> None:
        self.program = program
        self._how = slowdown, overlap
        self._played: dict[int, Played] = {}
        self.bubble: Callable[[int], float] = lambda _end: 0.0
        """Seconds that it waits for other stages of its pipeline, by the end."""

    def played(self, end: int) -> Played:
        """Simulate one end of the range: 0 low, 1 expected, 2 high."""
        if end not in self._played:
            self._played[end] = play(self.program.items, end, *self._how)
        return self._played[end]

    def step(self, end: int) -> float:
        """Return the seconds of the step."""
        played = self.played(end)
        return played.end - played.receiving + self.bubble(end)
