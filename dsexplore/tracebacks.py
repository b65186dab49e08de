"""Tracebacks without the frames that say nothing to the user."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, TracebackType


def frames_where(trace: TracebackType | None, is_shown: Callable[[CodeType], bool]) -> TracebackType | None:
    """The traceback of those frames alone whose code is to be shown; None where there is none."""
    entries = []
    while trace is not None:
        if is_shown(trace.tb_frame.f_code):
            entries.append(trace)
        trace = trace.tb_next
    for entry in reversed(entries):
        trace = TracebackType(trace, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return trace


def is_not_hidden(code: CodeType) -> bool:
    """Whether a function sets no ``__tracebackhide__``, by which IPython and pytest hide frames too."""
    return "__tracebackhide__" not in code.co_varnames
