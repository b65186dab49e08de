"""Parse the entries of a flight-recorder dump, whose fields differ between its formats.

Numbers may be text, and a time of 0 means that there is none. ``process_group`` was ``pg_name`` in an early format,
and frames are omitted on request. Gloo records no ends, only that it released a collective (``retired``).
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
"""Folders of dsexplore, whose frames are between torch's in a job that it records."""
_LIBRARY_FILES = ("/torch/", *_DSEXPLORE_FILES, "<frozen", "/contextlib.py", "/threading.py", "/runpy.py")
_LONGEST_MS = 1e12
LIBRARIES_WITHOUT_ENDS = ("gloo", "mpi", "ucc")
"""Communication libraries whose recorders do not write when a collective ended."""


class RecorderEntry(NamedTuple):
    """One collective, or one message between two ranks, as a rank issued it."""

    record: int
    """Number of the entry on this rank, from 0; a ring buffer that does not begin with 0 has lost the first ones."""
    sequence: int
    """Number in the group among the collectives, or among this rank's point-to-point messages."""
    numbers: tuple[int, int]
    """``collective_seq_id`` and ``p2p_seq_id``; 0 if missing."""
    call_number: int | None
    """``op_id``: number among the group's calls of all kinds, also those that the recorder does not write."""
    state: State
    created: int | None
    """Time of issue in nanoseconds since the epoch; None if unknown."""
    started: int | None
    """Observed start in nanoseconds since the epoch; None if unknown."""
    ended: int | None
    """Observed end in nanoseconds since the epoch; None if unknown."""
    duration_ms: float | None
    """Measured duration in milliseconds; None if the recorder did not time the collective."""
    source: str
    """Line of the innermost frame that is not a library's, ``"train.py:12"``; empty without frames."""
    group: str
    """Name of the process group."""
    description: str
    """``group_desc`` of the process group; empty if it has none."""
    group_number: int | None
    """Number of the group in this process, a key of ``pg_status``; other processes may number it differently."""
    op: str
    """Plain name, such as ``all_reduce``; ``unknown:…`` for an unknown op."""
    raw_op: str
    """The recorder's name, such as ``nccl:_all_gather_base``."""
    peers: tuple[int, int] | None
    """Sender and receiver by their rank in the group; None unless it is a send or recv that names them."""
    is_p2p: bool
    input_sizes: Sizes
    output_sizes: Sizes
    input_dtypes: tuple[str, ...]
    output_dtypes: tuple[str, ...]
    timeout_ms: int | None
    batch: int | None = None
    """Record number of the entry that ended the coalesced call, shared by its members; None outside one."""


_REPEATED_KEYS = (
    *("profiling_name", "process_group", "pg_name", "pg_id", "is_p2p", "input_sizes", "output_sizes", "input_dtypes"),
    *("output_dtypes", "timeout_ms"),
)
"""Keys of an entry whose values repeat from step to step: in thousands of entries, few combinations of them differ."""


class MissingField(Exception):
    """A required field is missing; the text is its path, such as ``entries[3].profiling_name``."""


def entries_of(content: Mapping[str, Any]) -> list[RecorderEntry]:
    """Parse the entries of a dump, in its order.

    Raises:
        MissingField: a required field is missing.
        TypeError, ValueError: an entry is invalid.
    """
    sources: dict[int, str] = {}
    """{id of a stack: its source line}; many entries share a stack."""
    parsed: dict[bytes, dict[str, Any]] = {}
    """{values of `_REPEATED_KEYS`: the fields parsed from them}."""
    entries = []
    for index, entry in enumerate(content.get("entries") or ()):
        if not isinstance(entry, dict):
            raise TypeError(f"entries[{index}] is {reprlib.repr(entry)}")
        try:
            frames = entry.get("frames") or ()
            source = sources.get(id(frames))
            if source is None:
                source = sources[id(frames)] = _source(frames)
            key = marshal.dumps(list(map(entry.get, _REPEATED_KEYS)), 2)  # lists cannot be keys
            repeated = parsed.get(key)
            if repeated is None:
                repeated = parsed[key] = _repeated_fields(index, entry)
            entries.append(_entry_of(index, entry, source, repeated))
        except (TypeError, ValueError, AttributeError, ArithmeticError, LookupError) as error:
            raise ValueError(f"entries[{index}]: {error}") from error
    return entries


def _entry_of(index: int, entry: Mapping[str, Any], source: str, repeated: Mapping[str, Any]) -> RecorderEntry:
    """Parse one entry of a dump.

    Args:
        index: position of the entry in the dump, for errors, and as its record number if it has none.
        entry: entry as in the file.
        source: source line from its stack.
        repeated: fields that `_repeated_fields` parsed.

    Raises:
        MissingField: a required field is missing.
        TypeError, ValueError: the entry is invalid.
    """
    get = entry.get
    collective, message = _count(get("collective_seq_id", get("seq_id"))), _count(get("p2p_seq_id"))
    if collective is None and (message is None or not repeated["is_p2p"]):
        raise MissingField(f"entries[{index}].collective_seq_id")
    is_of_cupti = "process_group_ranks" in entry  # CUPTI's timer numbers ranges of all kinds, not collectives
    record = None if is_of_cupti else _count(get("record_id", get("id")))
    ended = _time(get("time_discovered_completed_ns"))
    return RecorderEntry(
        record=index if record is None else record,
        sequence=_sequence(repeated["is_p2p"], collective, message),
        numbers=(collective or 0, message or 0),
        call_number=_count(get("op_id")),
        state="completed" if ended is not None else _state(index, entry, repeated["raw_op"]),
        created=_time(get("time_created_ns")),
        started=_time(get("time_discovered_started_ns")),
        ended=ended,
        duration_ms=_duration(get("duration_ms")),
        source=source,
        **repeated,
    )


def _repeated_fields(index: int, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `RecorderEntry` that are parsed from `_REPEATED_KEYS`.

    Raises:
        MissingField: a required field is missing.
        TypeError, ValueError: the entry is invalid.
    """
    get = entry.get
    raw_op, group = get("profiling_name"), get("process_group")
    group = get("pg_name") if group is None else group
    if raw_op is None or group is None:
        raise MissingField(f"entries[{index}].{'profiling_name' if raw_op is None else 'process_group'}")
    name, _, peers = str(raw_op).rpartition(":")[2].strip().partition(" ")
    op = plain_op(name)
    direction = _PEERS.search(peers)
    is_p2p = get("is_p2p")
    group_name, description = group if isinstance(group, (list, tuple)) else (group, "")
    if group_name is None:
        raise MissingField(f"entries[{index}].process_group")
    return {
        "group": str(group_name),
        "description": str(description or ""),
        "group_number": _integer(get("pg_id")),
        "op": op,
        "raw_op": str(raw_op),
        "peers": _sender_and_receiver(direction) if direction else None,
        "is_p2p": op in ("send", "recv") if is_p2p is None else bool(is_p2p),
        "input_sizes": _sizes(get("input_sizes")),
        "output_sizes": _sizes(get("output_sizes")),
        "input_dtypes": _dtypes(get("input_dtypes")),
        "output_dtypes": _dtypes(get("output_dtypes")),
        "timeout_ms": _integer(get("timeout_ms")),
    }


def _sequence(is_p2p: bool, collective: int | None, message: int | None) -> int:
    """Return the sequence number: that of its kind, or the other one if the entry has no number of its kind."""
    if is_p2p:
        return message or collective or 0
    return collective if collective is not None else message or 0


def _sender_and_receiver(direction: re.Match[str]) -> tuple[int, int]:
    first, arrow, second = int(direction[1]), direction[2], int(direction[3])
    return (first, second) if arrow == "->" else (second, first)


def _state(index: int, entry: Mapping[str, Any], raw_op: str) -> State:
    """Return the state of an entry whose end was not recorded.

    Raises:
        MissingField: the entry has no state, or a null in its place.
        ValueError: the state is unknown.
    """
    if raw_op.startswith(LIBRARIES_WITHOUT_ENDS) and entry.get("retired"):
        return "completed"
    state = entry.get("state")
    if state is None or entry.get("retired", False) is None:
        raise MissingField(f"entries[{index}].{'state' if state is None else 'retired'}")
    if state not in ("scheduled", "started", "completed"):
        raise ValueError(f"its state is {reprlib.repr(state)}")
    return cast(State, state)


def _integer(value: Any) -> int | None:
    """Return a number, which may be text; None if there is none.

    Raises:
        TypeError, ValueError: the value is not a whole number of 64 bits.
    """
    if value is None or value == "":
        return None
    return checked_number(value if type(value) is int else int(value))


def _count(value: Any) -> int | None:
    """Return a number that is not negative; None if there is none.

    Raises:
        TypeError, ValueError: the value is not such a number.
    """
    number = _integer(value)
    if number is not None and number < 0:
        raise ValueError(f"{number} counts nothing")
    return number


def _time(value: Any) -> int | None:
    """Return a time in nanoseconds; None if there is none, which may be written as 0 or a negative number."""
    time = _integer(value)
    return time if time is not None and time > 0 else None


def _duration(value: Any) -> float | None:
    """Return a duration in ms; None if it is not finite, negative or absurd, as after the loss of a device's event."""
    milliseconds = math.nan if value is None else float(value)
    return milliseconds if 0 <= milliseconds < _LONGEST_MS else None


def _sizes(sizes: Any) -> Sizes:
    """Return the shapes of the tensors; empty if one of them is impossible."""
    listed = sizes or ()
    if listed and not isinstance(listed[0], (list, tuple)):
        listed = [listed]  # the shape of the only tensor
    shapes = tuple(tuple(map(int, shape)) for shape in listed)
    return shapes if all(map(_is_possible, shapes)) else ()


def _is_possible(shape: tuple[int, ...]) -> bool:
    return math.prod(shape) <= MOST_ELEMENTS and all(0 <= length <= MOST_ELEMENTS for length in shape)


def _dtypes(names: Any) -> tuple[str, ...]:
    listed = (names,) if isinstance(names, str) else names or ()
    return tuple(plain_dtype(str(name)) for name in listed if name)


def _source(frames: Iterable[Any]) -> str:
    """Return the line of the innermost frame that is not a library's, ``"train.py:12"``; empty if there is none."""
    for frame in frames:
        file = frame.get("filename", "") if isinstance(frame, dict) else ""
        if file and not _is_library(file):
            return f"{file}:{frame['line']}" if frame.get("line") is not None else ""
    return ""


@cache
def _is_library(file: str) -> bool:
    return any(part in file for part in _LIBRARY_FILES)
