"""Keeps the origin of callbacks that a program gives to a work's future, by ``then`` or ``add_done_callback``.

A backend runs callbacks in its own thread, once the work is done. That thread's stack does not show which module and
line a callback belongs to. For example, DDP's PowerSGD hook issues its second all_reduce in a callback. So the origin
of the call that registered the callback is kept with it.
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
    """The callback that runs in this thread."""

    origin: Origin | None = None
    """The origin of the call that registered it; None while no callback runs."""


_running = _RunningCallback()


class _OriginReader:
    """Reads the origin of collectives that are issued inside a frame."""

    def __init__(self, read: Callable[[FrameType], Origin]) -> None:
        self.read = read


def observe_callbacks(read: Callable[[FrameType], Origin]) -> Callable[[], None]:
    """Keep the origin of each callback that is registered from now on.

    Args:
        read: returns the origin of collectives that are issued inside a frame; called for each callback.

    Returns:
        A function that ends this; callbacks that were registered before still have their origin.
    """
    patches = Patches()
    install_all(PATCHES, {"always"}, patches, Parts(_OriginReader(read)))
    return patches.undo


def _keeping_origin(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    """Wrap a method that registers a callback to keep the callback's origin."""
    reader = parts[_OriginReader]

    @wraps(original)
    def method(future: Any, callback: Callable[[Any], Any]) -> Any:
        try:
            origin = reader.read(sys._getframe(1))
        except Exception:  # an error must not reach the program; the callback has no origin then
            return original(future, callback)
        thread = get_ident()

        def called(done: Any) -> Any:
            if get_ident() == thread:  # the stack shows the origin
                return callback(done)
            before, _running.origin = _running.origin, origin
            try:
                return callback(done)
            finally:
                _running.origin = before

        return original(future, called)

    return method


PATCHES: tuple[Entry, ...] = tuple(
    Patch(name, "a callback's thread does not show who registered the callback", _keeping_origin)
    for name in FUTURE_METHODS
)
"""Functions that are replaced while callbacks are observed."""


def with_callback(origin: Origin, depth: int) -> Origin:
    """Complete the origin of a collective that a callback issues by the callback's own origin.

    Args:
        origin: the origin that the stack shows.
        depth: the maximum number of the user's lines.
    """
    registered = _running.origin
    if registered is None or origin.trigger is not None:
        return origin
    return origin._replace(
        phase=registered.phase,
        trigger=registered.trigger,
        owner=origin.owner or registered.owner,
        sources=(origin.sources + registered.sources)[:depth],
        cause=origin.cause or registered.cause,
    )
