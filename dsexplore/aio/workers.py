"""Threads of the engine, and what it means when the system has none left."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable


def started(name: str, work: Callable[..., None], *arguments: object) -> threading.Thread:
    """A daemon thread that has begun to work.

    Raises:
        OSError: the system starts no more threads (EAGAIN).
    """
    thread = threading.Thread(target=work, args=arguments, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise OSError(
            errno.EAGAIN,
            f"the system starts no thread beyond the {threading.active_count()} of this process ({error}): lower "
            "thread_count or queue_depth, or raise the limit (ulimit -u, or the container's number of processes)",
        ) from error
    return thread
