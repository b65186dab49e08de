"""Remarks of a simulated world on the program that runs in it, each made once."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from dsexplore._internal.capture.stack.frame_kinds import OF_CALLER, meaningful
from dsexplore._internal.capture.stack.source_lines import source_text
from dsexplore._internal.units import format_count

_LINES = 5
"""Lines of the program that a remark names."""


class Remarks:
    """The remarks of one world: each is a warning when first made, and a note of the traces that are recorded."""

    def __init__(self) -> None:
        self._lines: dict[str, dict[str, None]] = {}
        self._is_silent = False

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Suppress remarks in the block: torch reads values there that are replaced by known ones."""
        before, self._is_silent = self._is_silent, True
        try:
            yield
        finally:
            self._is_silent = before

    def say(self, text: str, *, quiet: bool = False) -> None:
        """Make a remark about the line of the user's program that runs now; the same text again adds its line.

        Args:
            text: whole, without a full stop.
            quiet: note it for the traces, and do not warn.
        """
        if self._is_silent:
            return
        frame = user_frame(sys._getframe(1))
        first = text not in self._lines
        lines = self._lines.setdefault(text, {})
        if frame is not None:
            lines[source_text(frame.f_code, frame.f_lasti)] = None
        if first and not quiet:
            file, line = (frame.f_code.co_filename, frame.f_lineno) if frame is not None else ("<simulated world>", 0)
            warnings.warn_explicit(text, RuntimeWarning, file, line)

    def line(self) -> str:
        """Return the line of the user's program that runs now, ``"train.py:31"``; empty if none does."""
        frame = user_frame(sys._getframe(1))
        return "" if frame is None else source_text(frame.f_code, frame.f_lasti)

    def note(self, text: str) -> None:
        """Make a remark for the traces alone."""
        if not self._is_silent:
            self._lines.setdefault(text, {})

    def notes(self) -> list[str]:
        """Return every remark so far, with the lines of the program that it is about."""
        return [f"{text}{_lines_text(list(lines))}" for text, lines in self._lines.items()]


def user_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of the user's program, searching outward from `frame`."""
    return next(user_frames(frame), None)


def user_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the frames of the user's program, outward from `frame`."""
    return (outer for kind, outer in meaningful(frame) if kind in OF_CALLER)


def _lines_text(lines: list[str]) -> str:
    if not lines:
        return ""
    return f" ({named_lines(lines, _LINES)})"


def named_lines(lines: Sequence[str], most: int) -> str:
    """Format lines of a program, at most `most` by name: ``"train.py:5, train.py:7 and 1 more line"``."""
    more = len(lines) - most
    rest = f" and {format_count(more, 'more line')}" if more > 0 else ""
    return f"{', '.join(lines[:most])}{rest}"
