"""Reports of a program's reads and writes, from `dsexplore.aio` to the recorder.

`dsexplore.aio` reports them here so that it need not import the recorder, which imports torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

IoOp = Literal["read", "write", "wait", "input"]
"""``wait``: the program waits for reads and writes; ``input``: it waits for the next batch of a data loader."""


class Access(Protocol):
    """A read, a write or a wait that has begun."""

    def ends(self) -> None:
        """Record that the access ends now; any thread may call this."""


Listener = Callable[[IoOp, str, int | None], Access | None]
"""Called when an access begins, with the op, the path of the file, and the number of bytes (None if unknown)."""

_listeners: list[Listener] = []


def listen(listener: Listener) -> Callable[[], None]:
    """Call a function with each access that begins.

    Returns:
        A function that stops this.
    """
    _listeners.append(listener)
    return lambda: _listeners.remove(listener)


def begins(op: IoOp, path: str = "", nbytes: int | None = None) -> Access | None:
    """Report that an access begins now.

    Returns:
        The object on which to call ``ends``; None if no recorder listens.
    """
    return _listeners[-1](op, path, nbytes) if _listeners else None
