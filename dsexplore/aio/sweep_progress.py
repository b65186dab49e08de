"""How far a sweep is: passed to the caller's function, or drawn where someone sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from dsexplore.progress import State, TerminalLine, Work, seen_screen


class Progress(NamedTuple):
    """How far a sweep is."""

    done: float
    """0 to 1."""
    text: str


Report = Callable[[Progress], None]


@contextmanager
def reporting(wanted: bool | Report | None) -> Iterator[Report]:
    """Yield the function to report to: the caller's; or a bar, if wanted or if None and someone sees it; or none."""
    if callable(wanted):
        yield wanted
        return
    screen = None if wanted is False else seen_screen()
    with Work(State("sweeping", 0, 1, ""), TerminalLine if wanted and screen is None else screen) as work:
        yield lambda progress: work.reach(progress.done, progress.text)
