"""Contexts that delay or drop Ctrl-C and SIGTERM during work that must not be interrupted, or handle both alike."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType
from typing import Any


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay SIGINT and SIGTERM until the end of the block.

    SIGTERM is included because launchers send it to the other ranks when one has failed. Outside the main thread, this
    has no effect.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with ExitStack() as deliver:
        for number in (signal.SIGINT, signal.SIGTERM):
            _hold(number, deliver)
        yield


@contextmanager
def once_interrupted() -> Iterator[None]:
    """Drop further Ctrl-C in a block that handles the first one; SIGTERM is delivered after the block.

    The block must be short. Outside the main thread, this has no effect.
    """
    with suppress(KeyboardInterrupt), uninterrupted():
        yield


@contextmanager
def sigterm_interrupts() -> Iterator[list[signal.Signals]]:
    """Raise KeyboardInterrupt on SIGTERM inside the block, so that a command ended by a scheduler keeps its results.

    Outside the main thread, and in a process that ignores SIGTERM or has its own handler, this has no effect.

    Yields:
        The list of received signals, to which each SIGTERM is appended.
    """
    received: list[signal.Signals] = []

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        received.append(signal.SIGTERM)
        raise KeyboardInterrupt

    on_main = threading.current_thread() is threading.main_thread()
    if not on_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield received
        return
    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield received
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _hold(number: signal.Signals, deliver: ExitStack) -> None:
    """Delay a signal until `deliver` is closed."""
    handler = signal.getsignal(number)
    if handler is None or handler is signal.SIG_IGN:  # installed by C, or ignored anyway
        return
    held: list[FrameType | None] = []
    signal.signal(number, lambda _number, frame: held.append(frame))
    deliver.callback(_release, number, handler, held)


def _release(number: signal.Signals, handler: Any, held: list[FrameType | None]) -> None:
    """Restore the handler of a signal, and call it once if the signal came: `held` has a frame for each time."""
    signal.signal(number, handler)
    if held and callable(handler):
        handler(number, held[0])
    elif held:
        signal.raise_signal(number)
