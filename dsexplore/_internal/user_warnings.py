"""Warnings at the user's line, even if dsexplore or torch issue them many frames below it."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import torch

from dsexplore._internal.torch_internals.names import NEWEST, OLDEST, minor_version

_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_NOT_THE_USERS = (_PACKAGE, str(Path(torch.__file__).parent) + os.sep, contextlib.__file__)
_GENERATED = ("<frozen ", "<string>", "<eval_with_key>")
_asked_for_torch = False


def warn(message: str, category: type[Warning] = RuntimeWarning) -> None:
    """Issue a warning at the innermost running line that belongs neither to dsexplore nor to torch."""
    frame = _users_frame(sys._getframe(1))
    warnings.warn_explicit(
        message,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=frame.f_globals.get("__name__", "<unknown>"),
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )


def warn_of_untested_torch() -> None:
    """Warn once per process if this release was not tested with the installed torch; each new world calls this."""
    global _asked_for_torch
    if not _asked_for_torch:
        _asked_for_torch = True
        if not minor_version(OLDEST) <= minor_version(torch.__version__) <= minor_version(NEWEST):
            warn(f"dsexplore is tested with torch {OLDEST} to {NEWEST}; this is {torch.__version__}")


def naming_the_user(show: Callable[[warnings.WarningMessage], None]) -> Callable[[warnings.WarningMessage], None]:
    """Wrap a function that shows warnings, so that warnings at a line of dsexplore are shown at the user's line.

    torch issues some warnings, from Python or C++, at its caller, which may be a wrapper of dsexplore.

    Args:
        show: function that shows a warning, such as ``warnings._showwarnmsg``, which Python calls for each warning.
    """

    def shown(msg: warnings.WarningMessage) -> None:
        if msg.filename.startswith(_PACKAGE):
            frame = _users_frame(sys._getframe(1))
            msg.filename, msg.lineno, msg.line = frame.f_code.co_filename, frame.f_lineno, None
        show(msg)

    return shown


def _users_frame(frame: FrameType) -> FrameType:
    """Return the innermost frame of the user, starting from a frame and going outwards; else the outermost frame."""
    while frame.f_code.co_filename.startswith((*_NOT_THE_USERS, *_GENERATED)) and frame.f_back is not None:
        frame = frame.f_back
    return frame
