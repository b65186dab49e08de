"""Tracebacks that omit frames of torch, dsexplore and others that do not help the user."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from types import CodeType, TracebackType

from dsexplore._internal.user_code import is_user_file


def frames_where(trace: TracebackType | None, is_shown: Callable[[CodeType], bool]) -> TracebackType | None:
    """Return the traceback without the frames for which `is_shown(code)` is False; None if no frame remains."""
    entries = []
    while trace is not None:
        if is_shown(trace.tb_frame.f_code):
            entries.append(trace)
        trace = trace.tb_next
    for entry in reversed(entries):
        trace = TracebackType(trace, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return trace


def is_not_hidden(code: CodeType) -> bool:
    """Return True unless a function sets ``__tracebackhide__``, which also hides its frames in IPython and pytest."""
    return "__tracebackhide__" not in code.co_varnames


def lines_of_the_program(error: BaseException) -> list[str]:
    """Return the lines that IPython shows for an error of dsexplore: the user's frames, and the message.

    A model of a closed world, for example, raises a hundred frames deep inside torch, and none of them helps. If the
    end of a world raised the same error again, the first one is shown.
    """
    from IPython.core.getipython import get_ipython

    first = error.__context__
    if type(first) is type(error) and str(first) == str(error):
        return lines_of_the_program(first)
    trace = frames_where(error.__traceback__, lambda code: is_not_hidden(code) and is_user_file(code.co_filename))
    shell = get_ipython()
    if shell is None or trace is None:
        return "".join(traceback.format_exception_only(error)).splitlines()
    lines: list[str] = shell.InteractiveTB.structured_traceback(type(error), error, trace, tb_offset=0)
    return lines
