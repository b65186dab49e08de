"""`ReturnWatch`: call a function when another one, which is running, returns."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


class ReturnWatch:
    """Calls ``then`` when the function of a frame returns, and not if it raises; Python's tracing tells when.

    Args:
        frame: the frame of a function that runs in this thread.
        then: may raise; its exception leaves the watched function in place of what that returns.
    """

    def __init__(self, frame: FrameType, then: Callable[[], None]) -> None:
        self.frame = frame
        self._then = then
        self._raises = False

    def begin(self) -> bool:
        """Start to watch.

        Returns:
            False where a debugger or a coverage tool traces the thread, which is left alone: nothing is watched.
        """
        if sys.gettrace() is not None:
            return False
        self.frame.f_trace, self.frame.f_trace_lines = self._met, False
        sys.settrace(_no_other)
        return True

    def end(self) -> None:
        """Watch no longer; a second call does nothing."""
        if sys.gettrace() is _no_other:
            sys.settrace(None)
        if self.frame.f_trace == self._met:
            self.frame.f_trace = None

    def _met(self, frame: FrameType, event: str, _argument: Any) -> Any:
        """Handle a trace event of the frame; line events show that it continues after an exception."""
        if event == "return":
            self.end()
            if not self._raises:
                self._then()
            return None
        self._raises = frame.f_trace_lines = event == "exception"
        return self._met


def _no_other(_frame: FrameType, _event: str, _argument: Any) -> None:
    """Ignore functions that are called from now on, as a trace function that traces nothing."""
