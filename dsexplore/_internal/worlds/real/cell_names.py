"""The notebook's names that a cell needs on the ranks that run it, and their pickled values."""

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
    """Global names that code reads and assigns."""

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
                # Names that a class body stores are its attributes.
                if instruction.opname in _ASSIGNS and (code is top or instruction.opname.endswith("GLOBAL")):
                    assigned.add(name)
    return UsedNames(frozenset(read), frozenset(assigned))


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def _cloudpickle() -> Any:
    """Return the module cloudpickle; raise UsageError if it is missing."""
    try:
        import cloudpickle
    except ImportError as error:
        hint = "pip install 'dsexplore[ranks]'"
        raise UsageError(
            f"a cell and its names are sent to ranks with cloudpickle, which is missing: {hint}"
        ) from error
    return cloudpickle


def pack_names(values: Mapping[str, Any]) -> bytes:
    """Pickle names and their values together, so that objects that values share are shared on the ranks too.

    Raises:
        UsageError: some values cannot be pickled; the message names each with the reason.
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
    """Yield each name whose value cannot be pickled, with the reason: ``"lock (lock: cannot pickle …)"``."""
    for name, value in values.items():
        try:
            pickler.dumps(value)
        except Exception as error:
            yield f"{name} ({type(value).__name__}: {str(error).partition(chr(10))[0]})"


@dataclass
class SentNames:
    """The notebook's names that the same ranks have, which says what to send with each cell.

    Names that a cell assigned on the ranks, and names that were sent and have not changed, are not sent until the
    notebook assigns another value to them.
    """

    _assigned_on_ranks: dict[str, object] = field(default_factory=dict)
    """{name assigned on the ranks: its value in the notebook at that time}."""
    _sent: dict[str, bytes] = field(default_factory=dict)
    """{name: digest of the value sent last}."""

    def choose(self, used: UsedNames, notebook: Mapping[str, Any]) -> dict[str, Any]:
        """Return the names that a cell reads and the ranks do not have, with their values.

        Args:
            used: names that the cell uses.
            notebook: namespace of the notebook.
        """
        chosen: dict[str, Any] = {}
        for name in sorted(used.read & notebook.keys()):
            value = notebook[name]
            if name in self._assigned_on_ranks:
                if self._assigned_on_ranks[name] is value:
                    continue
                del self._assigned_on_ranks[name]
            if name in used.assigned and not _can_be_pickled(value):
                continue  # the cell probably assigns the name before it reads it
            chosen[name] = value
        return chosen

    def changed(self, chosen: Mapping[str, Any]) -> dict[str, Any]:
        """Return the chosen names whose values have changed since they were sent last.

        Raises:
            UsageError: a value cannot be pickled.
        """
        digests = {name: hashlib.sha256(pack_names({name: value})).digest() for name, value in chosen.items()}
        new = {name: value for name, value in chosen.items() if self._sent.get(name) != digests[name]}
        self._sent.update((name, digests[name]) for name in new)
        return new

    def note_run(self, used: UsedNames, notebook: Mapping[str, Any]) -> None:
        """Record that a cell has run, and that the ranks have the names that it assigned."""
        for name in used.assigned:
            self._assigned_on_ranks[name] = notebook.get(name, _MISSING)
            self._sent.pop(name, None)


def _can_be_pickled(value: Any) -> bool:
    try:
        pack_names({"": value})
    except UsageError:
        return False
    return True
