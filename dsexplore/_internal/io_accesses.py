"""The reads and writes of a program besides its collectives: who makes one reports it here, and a recorder listens.

`dsexplore.aio` reports so without importing the recorder, and torch with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

IoOp = Literal["read", "write", "wait", "input"]
"""``wait``: the program stands still for reads and writes; ``input``: for the next batch of a data loader."""


class Access(Protocol):
    """A read, a write or a wait that has begun."""

    def ends(self) -> None:
        """Note that it ends now; in any thread."""


Listener = Callable[[IoOp, str, int | None], Access | None]
"""Called with the op, the file and its bytes, as it begins."""

_listeners: list[Listener] = []


def listen(listener: Listener) -> Callable[[], None]:
    """Call a function with each access that begins.

    Returns:
        a function that ends this.
    """
    _listeners.append(listener)
    return lambda: _listeners.remove(listener)


def begins(op: IoOp, path: str = "", nbytes: int | None = None) -> Access | None:
    """Report an access that begins now; return the object to notify of its end, or None if nobody listens."""
    return _listeners[-1](op, path, nbytes) if _listeners else None
