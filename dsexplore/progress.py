"""How far long work is: what every room reports, and where it is drawn.

Work that may last reports itself::

    with track("reading ranks", total=len(files), unit="files") as work:
        for file in files:
            read(file)
            work.advance()

It is drawn on standard error in a terminal, as an ipywidgets bar in a notebook, and nowhere else; not before it has
lasted `DELAY`, and it is gone when the work ends, so that short work and saved outputs stay clean. Of the ranks of a
torchrun program only the first draws; a simulated rank does, whichever it is. ``DSEXPLORE_PROGRESS=0`` in the
environment keeps it off.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from dsexplore.constants import SIMULATED_RUN

DELAY = 1.0
"""Seconds that work must have lasted before it is drawn: what a person notices as waiting."""
INTERVAL = 0.2
"""Seconds between two drawings."""
WIDTH = 24
_LINE = 110


class State(NamedTuple):
    """How far some work is."""

    what: str
    """``"reading ranks"``"""
    done: float
    total: float | None
    """None where no end is known."""
    unit: str
    """What is counted; empty where done and total are shares of 1."""
    text: str = ""
    """What it is at now."""

    @property
    def share(self) -> float | None:
        """0 to 1; None where no end is known."""
        return None if not self.total else max(0.0, min(self.done / self.total, 1.0))

    def words(self) -> str:
        """``"12 of 128 files"``, ``"1,234 collectives"`` or ``"40%"``, and what it is at."""
        if not self.unit:
            count = f"{self.share or 0:.0%}"
        elif self.total is None:
            count = f"{int(self.done):,} {self.unit}"
        else:
            count = f"{int(self.done):,} of {int(self.total):,} {self.unit}"
        return f"{count} {self.text}".rstrip()


class Screen(Protocol):
    """Where progress is drawn."""

    def show(self, state: State) -> None:
        """Draw it, over what was drawn before."""

    def clear(self) -> None:
        """Leave nothing behind."""


class Work:
    """One piece of long work; use it as a context manager. Counting costs little, and nearly nothing where nobody sees.

    Args:
        state: what it is, its total and unit.
        screen: makes the place to draw on when it is first needed; None draws nothing.
        clock: seconds, for the delay.
    """

    def __init__(
        self, state: State, screen: Callable[[], Screen] | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.done = state.done
        self._state, self._make, self._clock = state, screen, clock
        self._screen: Screen | None = None
        self._due = clock() + DELAY
        self._thread = threading.get_ident()

    @property
    def is_seen(self) -> bool:
        """Whether there is anywhere to draw it."""
        return self._make is not None

    def advance(self, count: float = 1, text: str = "") -> None:
        """So much more is done; ``text`` is what it is at now."""
        self.reach(self.done + count, text)

    def reach(self, done: float, text: str = "") -> None:
        """So much is done in all."""
        self.done = done
        if self._make is not None and self._clock() >= self._due and threading.get_ident() == self._thread:
            self._draw(self._make, text)

    def _draw(self, make: Callable[[], Screen], text: str) -> None:
        try:
            if self._screen is None:
                self._screen = make()
            self._screen.show(self._state._replace(done=self.done, text=text))
        except Exception:
            self._make = None  # a terminal that is gone must not end the work
        self._due = self._clock() + INTERVAL

    def __enter__(self) -> Work:
        return self

    def __exit__(self, *_: object) -> None:
        self._make = None
        screen, self._screen = self._screen, None
        if screen is not None:
            with suppress(Exception):
                screen.clear()


def track(what: str, total: float | None = None, unit: str = "") -> Work:
    """Report long work, drawn where someone sees it."""
    return Work(State(what, 0, total, unit), seen_screen())


def seen_screen() -> Callable[[], Screen] | None:
    """What makes the screen that someone sees now: the output of a notebook's cell, or a terminal; None without one."""
    if os.environ.get("DSEXPLORE_PROGRESS") == "0":
        return None
    if os.environ.get("RANK", "0") != "0" and os.environ.get("TORCHELASTIC_RUN_ID") != SIMULATED_RUN:
        return None
    stream: Any = sys.stderr
    if type(stream).__module__.startswith("ipykernel"):
        return NotebookBar
    return TerminalLine if stream is not None and stream.isatty() else None


class TerminalLine:
    """One line on standard error. The cursor waits at its start, so that what the program prints comes over it."""

    def __init__(self) -> None:
        self._width = 0

    def show(self, state: State) -> None:
        """Draw it, over what was drawn before."""
        share = state.share
        bar = "" if share is None else "█" * round(share * WIDTH) + "·" * (WIDTH - round(share * WIDTH)) + " "
        line = f"{bar}{state.what}: {state.words()}"[:_LINE]
        sys.stderr.write(f"\r{line:<{self._width}}\r")
        sys.stderr.flush()
        self._width = len(line)

    def clear(self) -> None:
        """Leave nothing behind."""
        sys.stderr.write(f"\r{'':<{self._width}}\r")
        sys.stderr.flush()


class NotebookBar:
    """An ipywidgets bar in the output of the cell; when the work ends, nothing of it stays in the notebook."""

    def __init__(self) -> None:
        import ipywidgets
        from IPython.display import display

        self._bar = ipywidgets.FloatProgress(min=0, max=1, layout={"width": "16em"})
        self._label = ipywidgets.Label()
        self._box = ipywidgets.HBox([self._bar, self._label])
        self._shown = display(self._box, display_id=True)

    def show(self, state: State) -> None:
        """Draw it, over what was drawn before."""
        share = state.share
        self._bar.value = 1 if share is None else share
        self._bar.bar_style = "info" if share is None else ""
        self._label.value = f"{state.what}: {state.words()}"

    def clear(self) -> None:
        """Leave nothing behind."""
        if self._shown is not None:
            self._shown.update({"text/html": ""}, raw=True)
        for widget in (self._box, self._bar, self._label):
            widget.close()
