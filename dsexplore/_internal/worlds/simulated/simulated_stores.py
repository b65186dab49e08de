"""`SimulatedStore`: replaces the stores of ``torch.distributed`` in a simulated world, where one rank uses them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from dsexplore._internal.errors import UsageError
from dsexplore._internal.torch_internals.patches import Change, Entry, Parts, Patch, Patches
from dsexplore._internal.torch_internals.process_groups import FILE_STORES, TCP_STORES

_FREE_PORT = 29_400
"""Port of a store that asks for any free port."""


class SimulatedStore(dist.Store):  # type: ignore[name-defined, misc] # torch's stub lacks it
    """A store that holds only the values that this rank sets.

    Args:
        values: dict that holds the values, shared with other stores at the same address; None for a new one.
    """

    def __init__(self, values: dict[str, bytes] | None = None) -> None:
        super().__init__()
        self._values: dict[str, bytes] = {} if values is None else values

    def set(self, key: str, value: Any) -> None:
        """Store a value under a key."""
        self._values[key] = value if isinstance(value, bytes) else str(value).encode()

    def get(self, key: str) -> bytes:
        """Return a value that this rank has set.

        Raises:
            UsageError: this rank has not set it.
        """
        if key not in self._values:
            raise UsageError(
                f"store.get({_plain(key)!r}) waits for a value of another rank, and no process runs the others: set "
                f"it on rank {dist.get_rank()} too, or run as the rank that sets it (--rank R)"
            )
        return self._values[key]

    def add(self, key: str, value: int) -> int:
        """Add to the number under a key, and return the sum, without what other ranks would add."""
        total = int(self._values.get(key, b"0")) + int(value)
        self._values[key] = str(total).encode()
        return total

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        """Replace a value if it is the expected one, or if there is none and ``expected`` is empty.

        Returns:
            The new value; ``expected`` if there is none.
        """
        expected, desired = (
            value if isinstance(value, bytes) else str(value).encode() for value in (expected, desired)
        )
        if self._values.get(key, b"") == expected:
            self._values[key] = desired
        current: bytes = self._values.get(key, expected)
        return current

    def append(self, key: str, value: Any) -> None:
        """Add to the end of the value under a key."""
        self._values[key] = self._values.get(key, b"") + (value if isinstance(value, bytes) else str(value).encode())

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Return the values of several keys.

        Raises:
            UsageError: this rank has not set one of them.
        """
        return [self.get(key) for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[Any]) -> None:
        """Store several values."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def has_extended_api(self) -> bool:
        """Return True: the store has `append`, `multi_get` and `multi_set`."""
        return True

    def check(self, keys: Sequence[str]) -> bool:
        """Return True if this rank has set all of these keys."""
        return all(key in self._values for key in keys)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Return at once, as if the other ranks had set the keys."""

    def delete_key(self, key: str) -> bool:
        """Delete a value, and return True if there was one."""
        return self._values.pop(key, None) is not None

    def num_keys(self) -> int:
        """Return the number of keys in the store."""
        return len(self._values)

    deleteKey, getNumKeys = delete_key, num_keys  # how torch's C++ calls them

    def set_timeout(self, timeout: timedelta) -> None:
        """Do nothing: no call of this store waits."""

    def clone(self) -> SimulatedStore:
        """Return the store itself, as there is one process."""
        return self


def _plain(key: str) -> str:
    """Return the key as the program wrote it, without torch's prefixes."""
    return key.rpartition("/")[2]


class _Stores:
    """The stores of one world; those with the same address or file share their values.

    A module may keep one of the classes beyond the world. After `close`, the class creates torch's own stores.
    """

    def __init__(self) -> None:
        self.contents: defaultdict[Any, dict[str, bytes]] = defaultdict(dict)
        self.created: list[SimulatedStore] = []  # keeps their Python objects alive, which C++ does not
        self.is_open = True

    def close(self) -> None:
        """Make the classes create torch's own stores from now on."""
        self.is_open = False


def _close_with_world(patches: Patches, parts: Parts) -> None:
    """Make the classes of stores create torch's own again from the end of the block on."""
    patches.callback(parts[_Stores].close)


def _tcp_store(original: type, parts: Parts) -> type:
    """Return a class that replaces ``TCPStore`` while the world is open."""
    stores = parts[_Stores]

    class TCPStore(SimulatedStore):
        """A store that replaces ``torch.distributed.TCPStore``."""

        libuvBackend = True

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            return super().__new__(cls) if stores.is_open else original(*args, **kwargs)

        def __init__(self, host_name: str, port: int, *_: Any, **__: Any) -> None:
            super().__init__(stores.contents[host_name, port])
            self.host, self.port = host_name, port or _FREE_PORT
            stores.created.append(self)

    return TCPStore


def _file_store(original: type, parts: Parts) -> type:
    """Return a class that replaces ``FileStore`` while the world is open."""
    stores = parts[_Stores]

    class FileStore(SimulatedStore):
        """A store that replaces ``torch.distributed.FileStore``."""

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            return super().__new__(cls) if stores.is_open else original(*args, **kwargs)

        def __init__(self, file_name: str, *_: Any, **__: Any) -> None:
            super().__init__(stores.contents[file_name])
            self.path = file_name
            stores.created.append(self)

    return FileStore


_WAITS = "it waits for other ranks, which no process runs"

PATCHES: tuple[Entry, ...] = (
    Change("the program's own stores", "their classes may outlive the world", _close_with_world),
    *(Patch(name, _WAITS, _tcp_store) for name in TCP_STORES),
    *(Patch(name, _WAITS, _file_store) for name in FILE_STORES),
)
