"""Load pickles of plain data, checked before: loading imports nothing, and reserves no more memory than they need.

A small pickle can take much memory or time in two ways. A number in it may be the position of a value in the
unpickler's memo, or the length of a text, and the unpickler reserves as much as the number says. And a list may be used
many times, also inside itself, so that a walk through it never ends.
"""

from __future__ import annotations

import io
import pickle
import re
from functools import lru_cache
from typing import Any, NoReturn

_MOST_VALUES = 10_000_000
"""Largest number of values, each counted as often as it is reached: 20,000 entries with 100 frames each have fewer."""
_DEEPEST = 200
"""Largest number of lists inside each other; a dump has six."""

_ARGUMENT_BYTES = {
    # the stack and the memo
    **dict.fromkeys((pickle.MARK, pickle.POP, pickle.POP_MARK, pickle.DUP, pickle.MEMOIZE), 0),
    **dict.fromkeys((pickle.BINGET, pickle.BINPUT), 1),
    **dict.fromkeys((pickle.LONG_BINGET, pickle.LONG_BINPUT), 4),
    # how the rest is read: the protocol, the length of the frame that follows
    pickle.PROTO: 1,
    pickle.FRAME: 8,
    # None, booleans and numbers
    **dict.fromkeys((pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE), 0),
    pickle.BININT1: 1,
    pickle.BININT2: 2,
    pickle.BININT: 4,
    pickle.BINFLOAT: 8,
    # tuples, lists, dicts and sets of what is on the stack
    **dict.fromkeys((pickle.EMPTY_TUPLE, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3), 0),
    **dict.fromkeys((pickle.EMPTY_LIST, pickle.LIST, pickle.APPEND, pickle.APPENDS), 0),
    **dict.fromkeys((pickle.EMPTY_DICT, pickle.DICT, pickle.SETITEM, pickle.SETITEMS), 0),
    **dict.fromkeys((pickle.EMPTY_SET, pickle.ADDITEMS, pickle.FROZENSET), 0),
}
"""{opcode of plain data: bytes of its argument}. Opcodes of protocol 0 whose argument is a line of text (`pickle.INT`)
and integers of more than 255 bytes (`pickle.LONG4`) are refused, because no dump has them."""
_LENGTH_BYTES = {
    **dict.fromkeys((pickle.SHORT_BINUNICODE, pickle.SHORT_BINSTRING, pickle.SHORT_BINBYTES, pickle.LONG1), 1),
    **dict.fromkeys((pickle.BINUNICODE, pickle.BINSTRING, pickle.BINBYTES), 4),
    **dict.fromkeys((pickle.BINUNICODE8, pickle.BINBYTES8, pickle.BYTEARRAY8), 8),
}
"""{opcode of a text, bytes or an integer: bytes of its length}; as many bytes follow as the length says."""
_REFUSED_IN_LOADING = frozenset((pickle.GLOBAL, pickle.INST, pickle.STACK_GLOBAL, pickle.PERSID, pickle.BINPERSID))
"""Opcodes of names and of objects outside the pickle, for which the unpickler calls a method of `_Plain`."""
_CONTAINERS = frozenset((list, tuple, dict, set, frozenset))


class _Plain(pickle.Unpickler):
    """Unpickler that refuses to import, call or fetch anything."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"the pickle names {module}.{name}, and plain data names nothing")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("the pickle refers to an object outside it")


def load_plain(data: bytes, most: int = _MOST_VALUES) -> Any:
    """Unpickle plain data.

    Args:
        data: bytes of the pickle.
        most: largest number of values, each counted as often as it is reached.

    Raises:
        pickle.UnpicklingError: the pickle names a class or a function, refers to an object outside it, reserves more
            than it has, or shares its values without end.
        Exception: the bytes are not a complete pickle.
    """
    _check(data)
    content = _Plain(io.BytesIO(data)).load()
    _check_size(content, most)
    return content


def _check(data: bytes) -> None:
    """Check that a pickle has only opcodes of plain data, and that none reserves more than the pickle has.

    The loop checks opcode by opcode. Most opcodes are harmless, and one match of a regular expression passes a run of
    these; the result would be the same without it, but later. A loop over `pickletools.genops` would take longer than
    unpickling, because it makes Python objects of each opcode and argument: ``python -m benchmarks.imported_files
    --only scan`` prints both times.

    Raises:
        pickle.UnpicklingError: an opcode is not one of plain data, or its argument asks for more than the pickle has.
    """
    size = len(data)
    run = _run_in(size)
    at = 0
    while at < size:
        if (match := run.match(data, at)) is not None and match.end() > at:
            at = match.end()
            continue
        opcode = data[at : at + 1]
        if opcode == pickle.STOP:
            return
        if opcode in _REFUSED_IN_LOADING:
            return  # here `_Plain` raises an error with the name; what follows is never read
        at += 1
        if opcode in _LENGTH_BYTES:
            width = _LENGTH_BYTES[opcode]
            at += width + int.from_bytes(data[at : at + width], "little")
        elif opcode in _ARGUMENT_BYTES:
            width = _ARGUMENT_BYTES[opcode]
            if opcode == pickle.LONG_BINPUT and int.from_bytes(data[at : at + width], "little") > size:
                raise pickle.UnpicklingError("the pickle asks for more than it has")
            at += width
        else:
            raise pickle.UnpicklingError(f"the pickle has opcode {opcode[0]}, and plain data has not")
        if at > size:
            raise pickle.UnpicklingError("the pickle asks for more than it has")


def _run_in(size: int) -> re.Pattern[bytes]:
    """Return the pattern of a run of harmless opcodes in a pickle of that size."""
    return _run_below(min(1 << size.bit_length() >> 1, 1 << 32))


@lru_cache(maxsize=8)
def _run_below(limit: int) -> re.Pattern[bytes]:
    """Return the pattern of a run of opcodes that can do no harm in a pickle of at least `limit` bytes.

    Args:
        limit: power of two, up to ``2**32``, so that pickles of similar sizes share a pattern.
    """
    alternatives = [
        # no argument, or one of fixed width
        _opcodes(0),
        _opcodes(1) + rb".",
        _opcodes(2) + rb"..",
        _opcodes(4) + rb".{4}",
        _opcodes(8) + rb".{8}",
        # a place of the memo below the limit, as a pickle of so many bytes may have as many values
        rb"%b%b" % (pickle.LONG_BINPUT, _number_below(limit)),
        # an integer of 64 bits, which are up to nine bytes
        rb"%b(?:%b)" % (pickle.LONG1, _counted(1, 9)),
        # a text or bytes with a length of one byte
        rb"[%b](?:%b)" % (pickle.SHORT_BINUNICODE + pickle.SHORT_BINSTRING + pickle.SHORT_BINBYTES, _counted(1, 255)),
        # a short text with a length of four bytes, as protocols 1 to 3 write it
        rb"%b(?:%b)" % (pickle.BINUNICODE, _counted(4, 255)),
    ]
    return re.compile(rb"(?:%b){0,65536}+" % b"|".join(alternatives), re.DOTALL)


def _opcodes(width: int) -> bytes:
    """Return the pattern of the opcodes with an argument of `width` bytes, except the one that reserves memory."""
    opcodes = [opcode for opcode, size in _ARGUMENT_BYTES.items() if size == width and opcode != pickle.LONG_BINPUT]
    return rb"[%b]" % re.escape(b"".join(opcodes))


def _number_below(limit: int) -> bytes:
    """Return the pattern of a number of four bytes, little-endian, that is less than a power of two.

    Worked example: below ``0x0004_0000``, the third byte is 0 to 3 and the fourth 0. With a limit of less than
    ``0x0001_0000`` nothing matches, and the loop of `_check` reads the numbers.
    """
    if limit >= 1 << 24:
        return rb"...[\x00-%b]" % re.escape(bytes([(limit >> 24) - 1]))
    if limit >= 1 << 16:
        return rb"..[\x00-%b]\x00" % re.escape(bytes([(limit >> 16) - 1]))
    return rb"(?!)"


def _counted(width: int, most: int) -> bytes:
    """Return the pattern of a length of `width` bytes, little-endian and up to `most`, and of the bytes it counts."""
    return b"|".join(re.escape(length.to_bytes(width, "little")) + rb".{%d}" % length for length in range(most + 1))


def _check_size(content: Any, most: int) -> None:
    """Check that a walk through a value takes reasonable time.

    It is walked level by level. A container that a level has many times is visited once, with the number of times.

    Raises:
        pickle.UnpicklingError: the value is very deep, contains itself, or uses its parts very often.
    """
    level: dict[int, tuple[Any, int]] = {id(content): (content, 1)} if type(content) in _CONTAINERS else {}
    count = 0
    for _ in range(_DEEPEST):
        below: dict[int, tuple[Any, int]] = {}
        for value, times in level.values():
            count += len(value) * times
            for member in value.values() if type(value) is dict else value:
                if type(member) in _CONTAINERS:
                    _, times_before = below.get(id(member), (member, 0))
                    below[id(member)] = member, times_before + times
        if count > most:
            raise pickle.UnpicklingError(f"its values use each other more than {most:,} times")
        if not below:
            return
        level = below
    raise pickle.UnpicklingError(f"its values are more than {_DEEPEST} inside each other")
