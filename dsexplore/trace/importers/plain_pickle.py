"""Pickles of plain data, checked before they are read: nothing is imported, and no memory reserved that they lack.

Two things make a small pickle large. A number in it is the place of a value in the unpickler's memo, or the length of a
text, and the unpickler reserves as much as it says. And a list may be used many times, also inside itself, so that
whoever walks through it never ends.
"""

from __future__ import annotations

import io
import pickle
import re
from functools import lru_cache
from typing import Any, NoReturn

_MOST_VALUES = 10_000_000
"""Values of a dump, each counted as often as it is reached: 20,000 entries with 100 frames each have fewer."""
_DEEPEST = 200
"""Lists inside each other: those of a dump are six."""

_ALONE = rb"012N\x85\x86\x87\x88\x89)(tld\]}\x8faesu\x90\x91\x94"
"""Opcodes without an argument, as members of a regular expression's set; without the one that ends a pickle."""
_PUT, _END = ord("r"), ord(".")
_LENGTH = {**dict.fromkeys(b"UC\x8c\x8a", 1), **dict.fromkeys(b"XTB", 4), **dict.fromkeys(b"\x8d\x8e\x96", 8)}
"""{opcode of a text, bytes or a number: bytes of its length}."""
_NAMING = frozenset(b"ci\x93PQ")
"""Opcodes of names and of objects outside the pickle, which `_Plain` refuses."""
_CONTAINERS = frozenset((list, tuple, dict, set, frozenset))


class _Plain(pickle.Unpickler):
    """Refuses whatever would import, call or fetch something."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"the pickle names {module}.{name}, and plain data names nothing")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("the pickle refers to an object outside it")


def load_plain(data: bytes, most: int = _MOST_VALUES) -> Any:
    """Unpickle plain data.

    Args:
        data: the pickle.
        most: values that it may have, each counted as often as it is reached.

    Raises:
        pickle.UnpicklingError: it names a class or a function, refers to an object outside it, reserves more than it
            has, or shares its values without end.
        Exception: the bytes are not a complete pickle.
    """
    _check(data)
    content = _Plain(io.BytesIO(data)).load()
    _check_size(content, most)
    return content


def _check(data: bytes) -> None:
    """Check that a pickle is of plain data and reserves no more than it has.

    Most opcodes are passed in runs, by a regular expression; one by one are those whose number it cannot judge.

    Raises:
        pickle.UnpicklingError: an opcode is none of plain data, or its number is more than the pickle has.
    """
    size, at, run = len(data), 0, _harmless(len(data))
    while at < size:
        if (match := run.match(data, at)) is not None and match.end() > at:
            at = match.end()
            continue
        code = data[at]
        if code == _END or code in _NAMING:
            return
        width = 4 if code == _PUT else _LENGTH.get(code)
        if width is None:
            raise pickle.UnpicklingError(f"the pickle has opcode {code}, and plain data has not")
        value = int.from_bytes(data[at + 1 : at + 1 + width], "little")
        at += 1 + width + (value if code != _PUT else 0)
        if at > size or (code == _PUT and value > size):
            raise pickle.UnpicklingError("the pickle asks for more than it has")


def _harmless(size: int) -> re.Pattern[bytes]:
    """Return the pattern of a run of opcodes that reserve little in a pickle of that size."""
    return _harmless_of(min(size >> 16, 0xFFFF))


@lru_cache(maxsize=8)
def _harmless_of(size: int) -> re.Pattern[bytes]:
    """Return the pattern of `_harmless`, given the upper 16 of the 32 bits of the pickle's size."""
    upper, lower = divmod(size, 256)
    places = b"".join(
        rb"r..%b|" % (_up_to(third) + fourth)
        for third, fourth in ((255, _up_to(upper - 1)), (lower - 1, _byte(upper)))
        if third >= 0 and fourth
    )
    texts = b"|".join(_byte(length) + rb".{%d}" % length for length in range(256))
    long_texts = b"|".join(_byte(length) + rb"\x00\x00\x00.{%d}" % length for length in range(256))
    numbers = b"|".join(_byte(length) + rb".{%d}" % length for length in range(10))
    return re.compile(
        rb"(?:[%b]|[Khq\x80].|%bM..|[Jj].{4}|[G\x95].{8}|\x8a(?:%b)|[\x8cUC](?:%b)|X(?:%b)){0,65536}+"
        % (_ALONE, places, numbers, texts, long_texts),
        re.DOTALL,
    )


def _byte(value: int) -> bytes:
    return rb"\x%02x" % value


def _up_to(most: int) -> bytes:
    """Return the set of the bytes 0 to `most`; empty for none."""
    return rb"[\x00-%b]" % _byte(most) if most >= 0 else b""


def _check_size(content: Any, most: int) -> None:
    """Check that one can walk through a value in reasonable time.

    It is walked level by level, and what is used often once in each, with how often it is reached.

    Raises:
        pickle.UnpicklingError: it is very deep, contains itself, or uses its parts very often.
    """
    level, count = {id(content): (content, 1)} if type(content) in _CONTAINERS else {}, 0
    for _ in range(_DEEPEST):
        below: dict[int, tuple[Any, int]] = {}
        for value, times in level.values():
            count += len(value) * times
            for member in value.values() if type(value) is dict else value:
                if type(member) in _CONTAINERS:
                    counted = below.get(id(member))
                    below[id(member)] = member, times if counted is None else times + counted[1]
        if count > most:
            raise pickle.UnpicklingError(f"its values use each other more than {most:,} times")
        if not below:
            return
        level = below
    raise pickle.UnpicklingError(f"its values are more than {_DEEPEST} inside each other")
