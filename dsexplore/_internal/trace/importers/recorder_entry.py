"""One entry of a flight-recorder dump: the fields of all formats, and what differs between them.

Numbers may be text, a time of 0 is none, ``process_group`` was once ``pg_name``, frames are omitted on request, and
gloo records no ends, only that it let go of a collective (``retired``).
"""

from __future__ import annotations

import marshal
import math
import re
import reprlib
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple, cast

from dsexplore._internal.trace.importers.op_names import plain_dtype, plain_op
from dsexplore._internal.trace.limits import MOST_ELEMENTS, checked_number
from dsexplore._internal.trace.schema import State

Sizes = tuple[tuple[int, ...], ...]
"""The shape of each tensor."""

_PEERS = re.compile(r"(\d+)\s*(->|<-)\s*(\d+)")
_DSEXPLORE_FILES = ("/dsexplore/_internal/", "/dsexplore/capture/", "/dsexplore/comm/")
"""In a job that dsexplore records, our frames are between torch's."""
_LIBRARY_FILES = ("/torch/", *_DSEXPLORE_FILES, "<frozen", "/contextlib.py", "/threading.py", "/runpy.py")
_LONGEST_MS = 1e12
LIBRARIES_WITHOUT_ENDS = ("gloo", "mpi", "ucc")


class RecorderEntry(NamedTuple):
    """One collective, or one message between two ranks, as a rank issued it."""

    record: int
    """The entry's number on this rank, from 0; a ring buffer that does not begin with 0 has lost the first ones."""
    sequence: int
    """Its number in the group among the collectives, or among this rank's point-to-point messages."""
    numbers: tuple[int, int]
    """``collective_seq_id`` and ``p2p_seq_id``; 0 if missing."""
    call_number: int | None
    """``op_id``: its number among the group's calls of all kinds, also those that the recorder does not write."""
    state: State
    created: int | None
    """Nanoseconds since the epoch, as are the next two."""
    started: int | None
    ended: int | None
    duration_ms: float | None
    source: str
    """``"train.py:12"``: the innermost frame that is neither torch's nor ours; empty without frames."""
    group: str
    """Name of the process group; like all fields from here on but ``batch``, one of `_EntryFields`."""
    description: str
    group_number: int | None
    """Key of ``pg_status``: the group's number in this process; other processes may number it differently."""
    op: str
    """Plain name, such as ``all_reduce``; ``unknown:…`` for an unknown op."""
    raw_op: str
    """The recorder's name, such as ``nccl:_all_gather_base``."""
    peers: tuple[int, int] | None
    """Sender and receiver by their rank in the group, of a send or recv that names them."""
    is_p2p: bool
    input_sizes: Sizes
    output_sizes: Sizes
    input_dtypes: tuple[str, ...]
    output_dtypes: tuple[str, ...]
    timeout_ms: int | None
    batch: int | None = None
    """Record number of the entry that ended the coalesced call, shared by its members."""


class _EntryFields(NamedTuple):
    """The fields of an entry that repeat from step to step, in `RecorderEntry`'s order.

    A dump has thousands of entries, and few that differ in these.
    """

    group: str
    description: str
    group_number: int | None
    op: str
    raw_op: str
    peers: tuple[int, int] | None
    is_p2p: bool
    input_sizes: Sizes
    output_sizes: Sizes
    input_dtypes: tuple[str, ...]
    output_dtypes: tuple[str, ...]
    timeout_ms: int | None


_KEYS_OF_REPEATED = (
    *("profiling_name", "process_group", "pg_name", "pg_id", "is_p2p", "input_sizes", "output_sizes", "input_dtypes"),
    *("output_dtypes", "timeout_ms"),
)


class MissingField(Exception):
    """A field that is missing; the text is its path, such as ``entries[3].profiling_name``."""


def entries_of(content: Mapping[str, Any]) -> list[RecorderEntry]:
    """Parse the entries of a dump, in its order.

    Raises:
        MissingField: a required field is missing.
        TypeError, ValueError: an entry is invalid.
    """
    sources: dict[int, str] = {}
    """{id of a stack: its source line}; many entries share a stack."""
    repeated_fields: dict[bytes, _EntryFields] = {}
    """{the dump's values: the parsed fields}."""
    entries = []
    for index, entry in enumerate(content.get("entries") or ()):
        if not isinstance(entry, dict):
            raise TypeError(f"entries[{index}] is {reprlib.repr(entry)}")
        try:
            frames = entry.get("frames") or ()
            source = sources.get(id(frames))
            if source is None:
                source = sources[id(frames)] = _source(frames)
            key = marshal.dumps(list(map(entry.get, _KEYS_OF_REPEATED)), 2)  # lists are no keys
            repeated = repeated_fields.get(key)
            if repeated is None:
                repeated = repeated_fields[key] = _repeated(index, entry)
            entries.append(_entry_of(index, entry, source, repeated))
        except (TypeError, ValueError, AttributeError, ArithmeticError, LookupError) as error:
            raise ValueError(f"entries[{index}]: {error}") from error
    return entries


def _entry_of(index: int, entry: Mapping[str, Any], source: str, repeated: _EntryFields) -> RecorderEntry:
    """Parse one entry of a dump.

    Args:
        index: its position in the dump, for errors, and as its record number if it has none.
        entry: as in the file.
        source: the source line from its stack.
        repeated: its fields that repeat.

    Raises:
        MissingField: a required field is missing.
        TypeError, ValueError: the entry is invalid.
    """
    get = entry.get
    collective, message = _count(get("collective_seq_id", get("seq_id"))), _count(get("p2p_seq_id"))
    if collective is None and (message is None or not repeated.is_p2p):
        raise MissingField(f"entries[{index}].collective_seq_id")
    is_of_cupti = "process_group_ranks" in entry  # its timer numbers ranges of all kinds, not collectives
    record = None if is_of_cupti else _count(get("record_id", get("id")))
    ended = _time(get("time_discovered_completed_ns"))
    return RecorderEntry(
        index if record is None else record,
        _sequence(repeated.is_p2p, collective, message),
        (collective or 0, message or 0),
        _count(get("op_id")),
        "completed" if ended is not None else _state(index, entry, repeated.raw_op),
        _time(get("time_created_ns")),
        _time(get("time_discovered_started_ns")),
        ended,
        _duration(get("duration_ms")),
        source,
        *repeated,
    )


def _repeated(index: int, entry: Mapping[str, Any]) -> _EntryFields:
    get = entry.get
    raw_op, group = get("profiling_name"), get("process_group")
    group = get("pg_name") if group is None else group
    if raw_op is None or group is None:
        raise MissingField(f"entries[{index}].{'profiling_name' if raw_op is None else 'process_group'}")
    name, _, rest = str(raw_op).rpartition(":")[2].strip().partition(" ")
    op, peers, is_p2p = plain_op(name), _PEERS.search(rest), get("is_p2p")
    group_name, description = group if isinstance(group, (list, tuple)) else (group, "")
    if group_name is None:
        raise MissingField(f"entries[{index}].process_group")
    return _EntryFields(
        group=str(group_name),
        description=str(description or ""),
        group_number=_integer(get("pg_id")),
        op=op,
        raw_op=str(raw_op),
        peers=_direction(peers) if peers else None,
        is_p2p=op in ("send", "recv") if is_p2p is None else bool(is_p2p),
        input_sizes=_sizes(get("input_sizes")),
        output_sizes=_sizes(get("output_sizes")),
        input_dtypes=_dtypes(get("input_dtypes")),
        output_dtypes=_dtypes(get("output_dtypes")),
        timeout_ms=_integer(get("timeout_ms")),
    )


def _sequence(is_p2p: bool, collective: int | None, message: int | None) -> int:
    """Return the sequence number: for messages ``p2p_seq_id``, else the collective number of their coalesced call."""
    if is_p2p:
        return message or collective or 0
    return collective if collective is not None else message or 0


def _direction(peers: re.Match[str]) -> tuple[int, int]:
    first, arrow, second = int(peers[1]), peers[2], int(peers[3])
    return (first, second) if arrow == "->" else (second, first)


def _state(index: int, entry: Mapping[str, Any], raw_op: str) -> State:
    """Return the state of an entry whose end was not recorded; an unknown state is not that of a call that waits."""
    if raw_op.startswith(LIBRARIES_WITHOUT_ENDS) and entry.get("retired"):
        return "completed"
    state = entry.get("state")
    if state is None or entry.get("retired", False) is None:
        raise MissingField(f"entries[{index}].{'state' if state is None else 'retired'}")
    if state not in ("scheduled", "started", "completed"):
        raise ValueError(f"its state is {reprlib.repr(state)}")
    return cast(State, state)


def _integer(value: Any) -> int | None:
    if value is None or value == "":
        return None
    return checked_number(value if type(value) is int else int(value))


def _count(value: Any) -> int | None:
    number = _integer(value)
    if number is not None and number < 0:
        raise ValueError(f"{number} counts nothing")
    return number


def _time(value: Any) -> int | None:
    return max(_integer(value) or 0, 0) or None


def _duration(value: Any) -> float | None:
    """Return milliseconds; None if not finite, negative or absurd, as where an event of the device was lost."""
    milliseconds = math.nan if value is None else float(value)
    return milliseconds if 0 <= milliseconds < _LONGEST_MS else None


def _sizes(sizes: Any) -> Sizes:
    listed = sizes or ()
    if listed and not isinstance(listed[0], (list, tuple)):
        listed = [listed]  # the shape of the only tensor
    shapes = tuple(tuple(map(int, shape)) for shape in listed)
    is_complete = all(length >= 0 for shape in shapes for length in shape) and all(map(_is_possible, shapes))
    return shapes if is_complete else ()


def _is_possible(shape: tuple[int, ...]) -> bool:
    return math.prod(shape) <= MOST_ELEMENTS and max(shape, default=0) <= MOST_ELEMENTS


def _dtypes(names: Any) -> tuple[str, ...]:
    listed = (names,) if isinstance(names, str) else names or ()
    return tuple(plain_dtype(str(name)) for name in listed if name)


def _source(frames: Iterable[Any]) -> str:
    for frame in frames:
        file = frame.get("filename", "") if isinstance(frame, dict) else ""
        if file and not _is_library(file):
            return f"{file}:{frame['line']}" if frame.get("line") is not None else ""
    return ""


@cache
def _is_library(file: str) -> bool:
    return any(part in file for part in _LIBRARY_FILES)
