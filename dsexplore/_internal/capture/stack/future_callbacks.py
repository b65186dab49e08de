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

from dsexplore._internal.capture.collectives.issued_collective import Origin
from dsexplore._internal.torch_internals.patches import Entry, Parts, Patch, Patches, install_all
from dsexplore._internal.torch_internals.process_groups import FUTURE_METHODS


class _RunningCallback(threading.local):
    origin: Origin | None = None


_running = _RunningCallback()


class _OriginReader:
    """Reads the origin of what is issued inside of a frame."""

    def __init__(self, read: Callable[[FrameType], Origin]) -> None:
        self.read = read


def observe_callbacks(read: Callable[[FrameType], Origin]) -> Callable[[], None]:
    """Keep with each callback where in the program it was given to its future.

    Args:
        read: returns the origin of what is issued inside of a frame; called for each callback.

    Returns:
        a function that ends this; callbacks that were given before it still know their origin.
    """
    patches = Patches()
    install_all(PATCHES, {"always"}, patches, Parts(_OriginReader(read)))
    return patches.undo


def _keeping_origin(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    reader = parts[_OriginReader]

    @wraps(original)
    def method(future: Any, callback: Callable[[Any], Any]) -> Any:
        try:
            origin = reader.read(sys._getframe(1))
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


PATCHES: tuple[Entry, ...] = tuple(
    Patch(name, "the thread that runs a callback does not know who gave it", _keeping_origin) for name in FUTURE_METHODS
)
"""Functions that are replaced while callbacks are observed."""


def with_callback(origin: Origin, depth: int) -> Origin:
    """Complete the origin of what a callback issues in a backend's thread by the callback's own origin.

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
