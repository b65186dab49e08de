"""`print_result`: prints to standard output, also if the reader closes the pipe early, as ``head`` does."""

from __future__ import annotations

import os
import sys


def print_result(text: str) -> None:
    """Print a text and a newline; if the reader has closed the pipe, drop the rest of the output."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        print_no_more()


def print_no_more() -> None:
    """Redirect standard output to ``/dev/null`` after a broken pipe, as Python would fail again when it flushes."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)
