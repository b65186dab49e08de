"""Progress of a sweep: passed to the caller's function, or drawn if visible."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from dsexplore.progress import State, TerminalLine, Work, seen_screen


class Progress(NamedTuple):
    """Progress of a sweep."""

    done: float
    """0 to 1."""
    text: str


Report = Callable[[Progress], None]


@contextmanager
def reporting(wanted: bool | Report | None) -> Iterator[Report]:
    """Yield the function to report to: the caller's, a progress bar's, or one that draws nothing.

    Args:
        wanted: the caller's function; True for a bar; None for a bar if it is visible; False for none.
    """
    if callable(wanted):
        yield wanted
        return
    screen = None if wanted is False else seen_screen()
    with Work(State("sweeping", 0, 1, ""), TerminalLine if wanted and screen is None else screen) as work:
        yield lambda progress: work.reach(progress.done, progress.text)
