"""Results on standard output, whose reader may go before it has read all, as ``head`` does."""

from __future__ import annotations

import os
import sys


def print_result(text: str) -> None:
    """Print a text and a line's end; where the reader has gone, the rest is not printed, and that is no error."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        print_no_more()


def print_no_more() -> None:
    """Close a pipe whose reader has ended, as head does: Python would fail again when it flushes."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)
