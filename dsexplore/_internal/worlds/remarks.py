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

_MAX_LINES = 5
"""Maximal number of the program's lines that a remark names."""


class Remarks:
    """The remarks of one world: each is a warning when first made, and a note of every trace recorded there."""

    def __init__(self) -> None:
        self._lines: dict[str, dict[str, None]] = {}
        self._is_silent = False

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Suppress remarks in the block, in which torch reads values that the world replaces by known ones."""
        before, self._is_silent = self._is_silent, True
        try:
            yield
        finally:
            self._is_silent = before

    def say(self, text: str, *, quiet: bool = False) -> None:
        """Make a remark about the line of the user's program that runs now; the same text again adds a line to it.

        Args:
            text: the sentence, without a full stop.
            quiet: True to note it for the traces without a warning.
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
        """Return every remark so far, with the lines of the program that it is about in parentheses."""
        return [
            f"{text} ({named_lines(list(lines), _MAX_LINES)})" if lines else text for text, lines in self._lines.items()
        ]


def user_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of the user's program, searching outward from `frame`."""
    return next(user_frames(frame), None)


def user_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the frames of the user's program, outward from `frame`."""
    return (outer for kind, outer in meaningful(frame) if kind in OF_CALLER)


def named_lines(lines: Sequence[str], max_named: int) -> str:
    """Format lines of a program, at most `max_named` by name: ``"train.py:5, train.py:7 and 1 more line"``."""
    named = ", ".join(lines[:max_named])
    omitted = len(lines) - max_named
    return f"{named} and {format_count(omitted, 'more line')}" if omitted > 0 else named
