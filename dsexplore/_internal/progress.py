"""`track`: shows the progress of long work.

Work that may take long reports its progress::

    with track("reading ranks", total=len(files), unit="files") as work:
        for file in files:
            read(file)
            work.advance()

Progress is drawn on standard error in a terminal, as an ipywidgets bar in a notebook, and nowhere else. A bar appears
when the work has lasted `DELAY` seconds and disappears when the work ends, so short work and saved outputs stay clean.
Only rank 0 of a torchrun program draws; a simulated rank always draws. ``DSEXPLORE_PROGRESS=0`` in the environment
turns all drawing off.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from dsexplore._internal.launch_constants import SIMULATED_RUN

DELAY = 1.0
"""Seconds before work is drawn: about when a person notices that they wait."""
INTERVAL = 0.2
"""Seconds between two drawings."""
WIDTH = 24
"""Width of a bar in a terminal, characters."""
_LINE = 110
"""Maximal length of a line in a terminal, characters."""


class State(NamedTuple):
    """Progress of one piece of work."""

    what: str
    """Name of the work, ``"reading ranks"``."""
    done: float
    """Number of units that are done."""
    total: float | None
    """Total number of units; None if unknown."""
    unit: str
    """Name of the units, ``"files"``; empty if done and total are fractions of 1."""
    text: str = ""
    """Name of the current part, such as a file's; empty for none."""

    @property
    def share(self) -> float | None:
        """Fraction that is done, 0 to 1; None if the total is unknown."""
        return None if not self.total else max(0.0, min(self.done / self.total, 1.0))

    def describe(self) -> str:
        """Return ``"12 of 128 files"``, ``"1,234 collectives"`` or ``"40 %"``, followed by `text`."""
        if not self.unit:
            count = f"{100 * (self.share or 0):.0f} %"
        elif self.total is None:
            count = f"{int(self.done):,} {self.unit}"
        else:
            count = f"{int(self.done):,} of {int(self.total):,} {self.unit}"
        return f"{count} {self.text}".rstrip()


class Screen(Protocol):
    """Draws progress."""

    def show(self, state: State) -> None:
        """Draw the state in place of the last one."""

    def clear(self) -> None:
        """Remove what was drawn."""


class Work:
    """Context manager that counts and draws one piece of long work. Counting costs almost nothing if nothing is drawn.

    Args:
        state: name, total and unit of the work.
        screen: creates the screen for the first drawing; None to draw nothing.
        clock: returns the time, seconds.
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
        """True if the work is drawn."""
        return self._make is not None

    def advance(self, count: float = 1, text: str = "") -> None:
        """Add `count` units to those that are done; `text` names the current part."""
        self.reach(self.done + count, text)

    def reach(self, done: float, text: str = "") -> None:
        """Set the number of units that are done; `text` names the current part."""
        self.done = done
        if self._make is not None and self._clock() >= self._due and threading.get_ident() == self._thread:
            self._draw(self._make, text)

    def _draw(self, make: Callable[[], Screen], text: str) -> None:
        """Draw the work on its screen, which is made for the first drawing."""
        try:
            if self._screen is None:
                self._screen = make()
            self._screen.show(self._state._replace(done=self.done, text=text))
        except Exception:
            self._make = None  # a closed terminal must not end the work
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
    """Return a context manager that shows the progress of long work.

    Args:
        what: name of the work, ``"reading ranks"``.
        total: number of units; None if unknown.
        unit: name of the units, ``"files"``; empty if done and total are fractions of 1.
    """
    return Work(State(what=what, done=0, total=total, unit=unit), seen_screen())


def seen_screen() -> Callable[[], Screen] | None:
    """Return the class of the screen to draw on: `NotebookBar` or `TerminalLine`; None if progress is not drawn."""
    if os.environ.get("DSEXPLORE_PROGRESS") == "0":
        return None
    if os.environ.get("RANK", "0") != "0" and os.environ.get("TORCHELASTIC_RUN_ID") != SIMULATED_RUN:
        return None
    stream: Any = sys.stderr
    if type(stream).__module__.startswith("ipykernel"):
        return NotebookBar
    return TerminalLine if stream is not None and stream.isatty() else None


class TerminalLine:
    """One line on standard error; the cursor stays at its start, so later output of the program overwrites it."""

    def __init__(self) -> None:
        self._width = 0

    def show(self, state: State) -> None:
        """Draw the state in place of the last one."""
        share = state.share
        bar = "" if share is None else "█" * round(share * WIDTH) + "·" * (WIDTH - round(share * WIDTH)) + " "
        line = f"{bar}{state.what}: {state.describe()}"[:_LINE]
        sys.stderr.write(f"\r{line:<{self._width}}\r")
        sys.stderr.flush()
        self._width = len(line)

    def clear(self) -> None:
        """Remove what was drawn."""
        sys.stderr.write(f"\r{'':<{self._width}}\r")
        sys.stderr.flush()


class NotebookBar:
    """An ipywidgets bar in the output of the cell; it is removed when the work ends."""

    def __init__(self) -> None:
        import ipywidgets
        from IPython.display import display

        self._bar = ipywidgets.FloatProgress(min=0, max=1, layout={"width": "16em"})
        self._label = ipywidgets.Label()
        self._box = ipywidgets.HBox([self._bar, self._label])
        self._shown = display(self._box, display_id=True)

    def show(self, state: State) -> None:
        """Draw the state in place of the last one."""
        share = state.share
        self._bar.value = 1 if share is None else share
        self._bar.bar_style = "info" if share is None else ""
        self._label.value = f"{state.what}: {state.describe()}"

    def clear(self) -> None:
        """Remove what was drawn."""
        if self._shown is not None:
            self._shown.update({"text/html": ""}, raw=True)
        for widget in (self._box, self._bar, self._label):
            widget.close()
