"""Hold Ctrl-C and SIGTERM back during work that must be done completely or not at all."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold SIGINT and SIGTERM back until the block has ended, then deliver them.

    A launcher sends SIGTERM to the remaining ranks once one has failed. Outside the main thread nothing is held back.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with ExitStack() as deliver:
        for number in (signal.SIGINT, signal.SIGTERM):
            _hold(number, deliver)
        yield


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
