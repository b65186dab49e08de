"""Where callbacks of futures come from: ``then`` and ``add_done_callback`` of a work's future.

A backend runs them in a thread of its own, once the work is done. Nothing on that thread's stack says which module the
callback is for: PowerSGD's second all_reduce, which DDP's hook asks for in this way, was issued by no module and no
line. So the origin of the call that gave the callback is kept with it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import wraps
from threading import get_ident
from types import FrameType
from typing import Any

import torch

from dsexplore.capture.issued_collective import Origin

_METHODS = ("then", "add_done_callback")
Read = Callable[[FrameType], Origin]
"""Returns the origin of what is issued inside of a frame."""


class _RunningCallback(threading.local):
    origin: Origin | None = None


_running = _RunningCallback()


def observe_callbacks(read: Read) -> Callable[[], None]:
    """Keep with each callback where in the program it was given to its future.

    Args:
        read: called for each callback.

    Returns:
        a function that ends this; callbacks that were given before it still know their origin.
    """
    future = torch.futures.Future.__mro__[1]  # the class of C++, which a work returns
    originals = {name: getattr(future, name) for name in _METHODS}
    for name, original in originals.items():
        setattr(future, name, _keeping_origin(original, read))

    def end() -> None:
        for name, original in originals.items():
            setattr(future, name, original)

    return end


def _keeping_origin(original: Callable[..., Any], read: Read) -> Callable[..., Any]:
    @wraps(original)
    def method(future: Any, callback: Callable[[Any], Any]) -> Any:
        try:
            origin = read(sys._getframe(1))
        except Exception:  # the callback's collectives are then without an origin, as without a recording
            return original(future, callback)
        thread = get_ident()

        def called(done: Any) -> Any:
            if get_ident() == thread:  # its stack says it all
                return callback(done)
            before, _running.origin = _running.origin, origin
            try:
                return callback(done)
            finally:
                _running.origin = before

        return original(future, called)

    return method


def with_callback(origin: Origin, depth: int) -> Origin:
    """Complete the origin of what a callback issues in a backend's thread by that of the callback.

    Args:
        origin: that the stack shows.
        depth: how many of the user's lines to name.
    """
    given = _running.origin
    if given is None or origin.trigger is not None:
        return origin
    return origin._replace(
        phase=given.phase,
        trigger=given.trigger,
        owner=origin.owner or given.owner,
        sources=(origin.sources + given.sources)[:depth],
        cause=origin.cause or given.cause,
    )
