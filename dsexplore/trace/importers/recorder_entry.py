"""One entry of a flight-recorder dump: the fields of all formats, and what differs between them.

Numbers may be text, a time of 0 is none, ``process_group`` was once ``pg_name``, frames are left out on request, and
gloo records no ends, only that it let go of a collective (``retired``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from dsexplore.trace.importers.op_names import plain_dtype, plain_op
from dsexplore.trace.schema import State

Sizes = tuple[tuple[int, ...], ...]
"""The shape of each tensor."""

_PEERS = re.compile(r"(\d+)\s*(->|<-)\s*(\d+)")
_LIBRARY_FILES = ("/torch/", "<frozen", "/contextlib.py", "/threading.py", "/runpy.py")
LIBRARIES_WITHOUT_ENDS = ("gloo", "mpi", "ucc")


@dataclass(frozen=True, slots=True)
class RecorderEntry:
    """One collective, or one message between two ranks, as a rank issued it."""

    record: int
    """The entry's number on this rank, from 0; a ring buffer that does not begin with 0 has lost the first ones."""
    group: str
    description: str
    group_number: int | None
    """Key of ``pg_status``: the group's number in this process, which another process may count otherwise."""
    sequence: int
    """Number in its group among the collectives, or among this rank's messages between two ranks."""
    numbers: tuple[int, int]
    """``collective_seq_id`` and ``p2p_seq_id``; 0 for one that is missing."""
    op: str
    """Plain name, such as ``all_reduce``; ``unknown:…`` for one that nobody described."""
    raw_op: str
    """The recorder's name, such as ``nccl:_all_gather_base``."""
    peers: tuple[int, int] | None
    """Sender and receiver by their position in the group, of a send or recv that names them."""
    is_p2p: bool
    state: State
    created: int | None
    """Nanoseconds since the epoch, as are the next two."""
    started: int | None
    ended: int | None
    duration_ms: float | None
    input_sizes: Sizes
    output_sizes: Sizes
    input_dtypes: tuple[str, ...]
    output_dtypes: tuple[str, ...]
    source: str
    """``"train.py:12"``: the innermost frame that is not torch's; empty where the dump has no frames."""
    timeout_ms: int | None
    batch: int | None = None
    """Members of one coalesced call share the record of the entry that ended it."""


class MissingField(Exception):
    """A field that is missing; the text is its path, such as ``entries[3].profiling_name``."""


def entry_of(index: int, entry: Any) -> RecorderEntry:
    if not isinstance(entry, dict):
        raise TypeError(f"entries[{index}] is {entry!r}")

    def field(*names: str) -> Any:
        for name in names:
            if entry.get(name) is not None:
                return entry[name]
        raise MissingField(f"entries[{index}].{names[0]}")

    raw_op = str(field("profiling_name"))
    library, _, called = raw_op.rpartition(":")
    name, _, rest = called.strip().partition(" ")
    peers = _PEERS.search(rest)
    group = field("process_group", "pg_name")
    group_name, description = group if isinstance(group, (list, tuple)) else (group, "")
    op = plain_op(name)
    is_p2p = bool(entry.get("is_p2p", op in ("send", "recv")))
    numbers = _integer(entry.get("collective_seq_id", entry.get("seq_id"))), _integer(entry.get("p2p_seq_id"))
    if numbers == (None, None):
        raise MissingField(f"entries[{index}].collective_seq_id")
    record = _integer(entry.get("record_id", entry.get("id")))
    return RecorderEntry(
        record=index if record is None else record,
        group=str(group_name),
        description=str(description),
        group_number=_integer(entry.get("pg_id")),
        sequence=_sequence(is_p2p, *numbers),
        numbers=(numbers[0] or 0, numbers[1] or 0),
        op=op,
        raw_op=raw_op,
        peers=_direction(peers) if peers else None,
        is_p2p=is_p2p,
        state=_state(entry, library),
        created=_time(entry.get("time_created_ns")),
        started=_time(entry.get("time_discovered_started_ns")),
        ended=_time(entry.get("time_discovered_completed_ns")),
        duration_ms=float(entry["duration_ms"]) if entry.get("duration_ms") is not None else None,
        input_sizes=_sizes(entry.get("input_sizes")),
        output_sizes=_sizes(entry.get("output_sizes")),
        input_dtypes=_dtypes(entry.get("input_dtypes")),
        output_dtypes=_dtypes(entry.get("output_dtypes")),
        source=_source(entry.get("frames") or ()),
        timeout_ms=_integer(entry.get("timeout_ms")),
    )


def _sequence(is_p2p: bool, collective: int | None, message: int | None) -> int:
    """The number that counts: of messages that torch counts among the collectives, those of coalesced calls, theirs."""
    if is_p2p:
        return message or collective or 0
    return collective if collective is not None else message or 0


def _direction(peers: re.Match[str]) -> tuple[int, int]:
    first, arrow, second = int(peers[1]), peers[2], int(peers[3])
    return (first, second) if arrow == "->" else (second, first)


def _state(entry: Mapping[str, Any], library: str) -> State:
    if _time(entry.get("time_discovered_completed_ns")) is not None:
        return "completed"
    if library.startswith(LIBRARIES_WITHOUT_ENDS) and entry.get("retired"):
        return "completed"
    state = str(entry.get("state", "scheduled"))
    return cast(State, state) if state in ("scheduled", "started", "completed") else "scheduled"


def _integer(value: Any) -> int | None:
    return None if value is None or value == "" else int(value)


def _time(value: Any) -> int | None:
    return _integer(value) or None


def _sizes(sizes: Any) -> Sizes:
    listed = sizes or ()
    if listed and not isinstance(listed[0], (list, tuple)):
        listed = [listed]  # the shape of the only tensor
    return tuple([tuple(map(int, shape)) for shape in listed])


def _dtypes(names: Any) -> tuple[str, ...]:
    listed = [names] if isinstance(names, str) else names or ()
    return tuple([plain_dtype(str(name)) for name in listed if name])


def _source(frames: Iterable[Any]) -> str:
    for frame in frames:
        file = frame.get("filename", "") if isinstance(frame, dict) else ""
        if file and not _is_library(file):
            return f"{file}:{frame.get('line', 0)}"
    return ""


@cache
def _is_library(file: str) -> bool:
    return any(part in file for part in _LIBRARY_FILES)
