"""Delay Ctrl-C and SIGTERM during work that must be done completely or not at all; handle SIGTERM like Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType
from typing import Any


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay SIGINT and SIGTERM until the block has ended, then deliver them.

    A launcher sends SIGTERM to the remaining ranks once one has failed. Outside the main thread nothing is delayed.
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
    """Drop a further Ctrl-C while what the first one asked for is done; SIGTERM is delivered after the block.

    The block must end by itself soon. Outside the main thread nothing is dropped.
    """
    with suppress(KeyboardInterrupt), uninterrupted():
        yield


@contextmanager
def sigterm_interrupts() -> Iterator[list[signal.Signals]]:
    """Raise KeyboardInterrupt on SIGTERM inside the block, so that a command ended by a scheduler keeps its results.

    Yields:
        the signals received so far: SIGTERM, once for each. Outside the main thread, and in a process that ignores
        SIGTERM or has a handler of its own, nothing changes.
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
    handler = signal.getsignal(number)
    if handler is None or handler is signal.SIG_IGN:  # not Python's to replace, or ignored anyway
        return
    held: list[FrameType | None] = []
    signal.signal(number, lambda _number, frame: held.append(frame))
    deliver.callback(_release, number, handler, held)


def _release(number: signal.Signals, handler: Any, held: list[FrameType | None]) -> None:
    signal.signal(number, handler)
    if held and callable(handler):
        handler(number, held[0])
    elif held:
        signal.raise_signal(number)
