"""The names that a cell reads and assigns, and their values as bytes for the ranks that run it."""

from __future__ import annotations

import dis
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from dsexplore._internal.errors import UsageError

_READS = frozenset({"LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS", "DELETE_NAME", "DELETE_GLOBAL"})
_ASSIGNS = frozenset({"STORE_NAME", "STORE_GLOBAL", "DELETE_NAME", "DELETE_GLOBAL"})
_MISSING = object()


@dataclass(frozen=True)
class UsedNames:
    """The global names of some code."""

    read: frozenset[str]
    assigned: frozenset[str]


def used_names(codes: Iterable[CodeType]) -> UsedNames:
    """Return the global names that code reads and assigns, including functions and classes inside it."""
    read: set[str] = set()
    assigned: set[str] = set()
    for top in codes:
        for code in _nested(top):
            for instruction in dis.get_instructions(code):
                name = str(instruction.argval)
                if instruction.opname in _READS:
                    read.add(name)
                # What a class body stores by name are its attributes.
                if instruction.opname in _ASSIGNS and (code is top or instruction.opname.endswith("GLOBAL")):
                    assigned.add(name)
    return UsedNames(frozenset(read), frozenset(assigned))


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def _cloudpickle() -> Any:
    try:
        import cloudpickle
    except ImportError as error:
        hint = "pip install 'dsexplore[ranks]'"
        raise UsageError(
            f"a cell and its names are sent to ranks with cloudpickle, which is missing: {hint}"
        ) from error
    return cloudpickle


def pack_names(values: Mapping[str, Any]) -> bytes:
    """Pickle names with their values, all together, so that objects which they share are shared on the ranks too.

    Raises:
        UsageError: values that cannot be pickled, each named with the reason.
    """
    if not values:
        return b""
    pickler = _cloudpickle()
    try:
        data: bytes = pickler.dumps(dict(values))
    except Exception as error:
        reasons = list(_reasons(pickler, values)) or [str(error)]
        raise UsageError(
            f"this cell's names cannot all be sent to its ranks: {'; '.join(reasons)}. Make them inside the cell"
        ) from error
    return data


def _reasons(pickler: Any, values: Mapping[str, Any]) -> Iterator[str]:
    for name, value in values.items():
        try:
            pickler.dumps(value)
        except Exception as error:
            yield f"{name} ({type(value).__name__}: {str(error).partition(chr(10))[0]})"


@dataclass
class Travel:
    """Selects the notebook's names that are sent with each cell to the same ranks.

    A name that a cell assigned on the ranks belongs to them, and a name that was sent and has not changed is there
    already; both are sent again once the notebook assigns another value to the name.
    """

    _left: dict[str, object] = field(default_factory=dict)
    """{name assigned on the ranks: its value in the notebook at that time}."""
    _sent: dict[str, bytes] = field(default_factory=dict)
    """{name: digest of the value sent last}."""

    def choose(self, used: UsedNames, notebook: Mapping[str, Any]) -> dict[str, Any]:
        """Return {name: value} to send: names that the cell reads and the ranks do not have.

        Raises:
            UsageError: as `pack_names`.
        """
        chosen: dict[str, Any] = {}
        for name in sorted(used.read & notebook.keys()):
            value = notebook[name]
            if name in self._left:
                if self._left[name] is value:
                    continue
                del self._left[name]
            if name in used.assigned and not _can_travel(value):
                continue  # the cell makes its own before it reads it
            chosen[name] = value
        return chosen

    def without_sent(self, chosen: Mapping[str, Any]) -> dict[str, Any]:
        """Return the chosen names with values that have changed since they were sent."""
        digests = {name: hashlib.sha256(pack_names({name: value})).digest() for name, value in chosen.items()}
        fresh = {name: value for name, value in chosen.items() if self._sent.get(name) != digests[name]}
        self._sent.update((name, digests[name]) for name in fresh)
        return fresh

    def ran(self, used: UsedNames, notebook: Mapping[str, Any]) -> None:
        """Record that the cell ran: the ranks own the names that it assigned."""
        for name in used.assigned:
            self._left[name] = notebook.get(name, _MISSING)
            self._sent.pop(name, None)


def _can_travel(value: Any) -> bool:
    try:
        pack_names({"": value})
    except UsageError:
        return False
    return True
