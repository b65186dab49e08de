"""One line that tells how far a sweep is, on standard error, where someone can see it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple


class Progress(NamedTuple):
    """How far a sweep is."""

    done: float
    """0 to 1."""
    text: str


Report = Callable[[Progress], None]


def reporter(wanted: bool | Report | None) -> Report:
    """The caller's own function; a bar if wanted, or if None and someone sees standard error; else silence."""
    if callable(wanted):
        return wanted
    if wanted or (wanted is None and _is_seen()):
        return _bar
    return lambda _: None


def _is_seen() -> bool:
    """Whether standard error is a terminal, or the output of a notebook's cell."""
    return sys.stderr.isatty() or type(sys.stderr).__module__.startswith("ipykernel")


def _bar(progress: Progress) -> None:
    filled = round(max(0.0, min(progress.done, 1.0)) * 24)
    end = "\n" if progress.done >= 1 else ""
    line = f"{'█' * filled}{'·' * (24 - filled)} {progress.done:4.0%} {progress.text}"
    sys.stderr.write(f"\r{line[:110]:<110}{end}")
    sys.stderr.flush()
