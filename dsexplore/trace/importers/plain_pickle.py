"""Pickles of plain data, checked before they are read: nothing is imported, and no memory reserved that they lack.

Two things make a small pickle large. A number in it is the place of a value in the unpickler's memo, or the length of a
text, and the unpickler reserves as much as it says. And a list may be used many times, also inside itself, so that
whoever walks through it never ends.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from typing import Any, NoReturn

_MOST_VALUES = 10_000_000
"""Values of a dump, each counted as often as it is reached: 20,000 entries with 100 frames each have fewer."""

_ALONE = frozenset(b".012N\x85\x86\x87\x88\x89)(tld]}\x8faesu\x90\x91\x94")
"""Opcodes without an argument."""
_WIDTH = {
    **dict.fromkeys(b"\x80Khq", 1),
    **dict.fromkeys(b"M", 2),
    **dict.fromkeys(b"Jjr", 4),
    **dict.fromkeys(b"G\x95", 8),
}
"""{opcode: bytes of its argument}."""
_LENGTH = {**dict.fromkeys(b"UC\x8c\x8a", 1), **dict.fromkeys(b"XTB", 4), **dict.fromkeys(b"\x8d\x8e\x96", 8)}
"""{opcode of a text, bytes or a number: bytes of its length}."""
_NAMING = frozenset(b"ci\x93PQ")
"""Opcodes of names and of objects outside the pickle, which `_Plain` refuses."""
_PUT, _GET, _MEMOIZE, _DUP = frozenset(b"qr"), frozenset(b"hj"), 0x94, 0x32
_LEAF = frozenset((*_LENGTH, *b"KMJGN\x88\x89"))


class _Plain(pickle.Unpickler):
    """Refuses whatever would import, call or fetch something."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"the pickle names {module}.{name}, and plain data names nothing")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("the pickle refers to an object outside it")


def load_plain(data: bytes) -> Any:
    """Unpickle plain data.

    Raises:
        pickle.UnpicklingError: it names a class or a function, refers to an object outside it, reserves more than it
            has, or shares its values without end.
        Exception: the bytes are not a complete pickle.
    """
    is_shared = _check(data)
    content = _Plain(io.BytesIO(data)).load()
    if is_shared and _expanded(content, {}) > _MOST_VALUES:
        raise pickle.UnpicklingError(f"its values use each other more than {_MOST_VALUES:,} times")
    return content


def _check(data: bytes) -> bool:
    """Return True if a list, dict or tuple of a pickle is used more than once.

    Raises:
        pickle.UnpicklingError: an opcode is none of plain data, or its number is more than the pickle has.
    """
    size, at, last = len(data), 0, 0
    put, leaves, is_shared = set[int](), set[int](), False
    while at < size:
        code = data[at]
        at += 1
        if code in _ALONE:
            value = len(put)
        elif code in _WIDTH or code in _LENGTH:
            end = at + (_WIDTH.get(code) or _LENGTH[code])
            value = int.from_bytes(data[at:end], "little")
            at = end + value if code in _LENGTH else end
        elif code in _NAMING:
            return False
        else:
            raise pickle.UnpicklingError(f"the pickle has opcode {code}, and plain data has not")
        if at > size or (code in _PUT and value > size):
            raise pickle.UnpicklingError("the pickle asks for more than it has")
        if code in _PUT or code == _MEMOIZE:
            put.add(value)
            (leaves.add if last in _LEAF else leaves.discard)(value)
        elif code == _DUP or (code in _GET and value not in leaves):
            is_shared = True
        last = code
        if code == ord("."):
            break
    return is_shared


def _expanded(value: Any, known: dict[int, int]) -> int:
    """Return how many values one passes in walking through `value`, up to infinitely many.

    Args:
        value: plain data.
        known: {id of a list, dict, tuple or set: that number}, to be filled.

    Raises:
        pickle.UnpicklingError: a value contains itself.
    """
    if not isinstance(value, (list, tuple, dict, set, frozenset)):
        return 1
    count = known.get(id(value))
    if count == -1:
        raise pickle.UnpicklingError("a value of the pickle contains itself")
    if count is None:
        known[id(value)] = -1
        members = value.values() if isinstance(value, Mapping) else value
        count = known[id(value)] = 1 + sum(_expanded(member, known) for member in members)
    return count
