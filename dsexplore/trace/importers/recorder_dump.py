"""Dumps of torch's flight recorder, formats 2.3 to 2.10: what one rank had issued when it was asked.

A dump is JSON or a pickle of plain data, each maybe gzipped:

| key | value |
|---|---|
| ``entries`` | a ring buffer of the last collectives, in the order of issue; empty where nothing was pending |
| ``pg_config`` | by group name: its description, and its ranks as text, ``"[0, 1]"`` |
| ``pg_status`` | by a number of the group in this process: its last enqueued, started and completed sequence number |
| ``nccl_version``, since 2.10 ``comm_lib_version`` | of the communication library |

What differs between files: numbers may be text, a time of 0 is none, ``process_group`` was once ``pg_name``, frames are
left out on request, and gloo records no ends, only that it let go of a collective (``retired``). The members of a
coalesced call have no state of their own: they take that of the entry that ends the call.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

from dsexplore.errors import TraceFileError
from dsexplore.trace.importers.op_names import plain_dtype, plain_op
from dsexplore.trace.importers.plain_pickle import load_plain
from dsexplore.trace.schema import State

Sizes = tuple[tuple[int, ...], ...]
"""The shape of each tensor."""

_PEERS = re.compile(r"(\d+)\s*(->|<-)\s*(\d+)")
_LIBRARY_FILES = ("/torch/", "<frozen", "/contextlib.py", "/threading.py", "/runpy.py")
_LIBRARIES_WITHOUT_ENDS = ("gloo", "mpi", "ucc")


@dataclass(frozen=True, slots=True)
class RecorderEntry:
    """One collective, or one message between two ranks, as a rank issued it."""

    record: int
    """Its number on this rank, from 0; a ring buffer has lost the first ones where it does not begin with 0."""
    group: str
    description: str
    group_number: int | None
    """Key of ``pg_status``: the group's number in this process, which another process may count otherwise."""
    sequence: int
    """Number in its group among the collectives, or among this rank's messages between two ranks."""
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


@dataclass(frozen=True)
class RecorderDump:
    """What one rank's flight recorder held."""

    file: Path
    rank: int
    version: str
    library: str
    """Version of the communication library."""
    entries: tuple[RecorderEntry, ...]
    groups: Mapping[str, tuple[str, tuple[int, ...]]]
    """By name: description and global ranks, which are empty where they are not known."""
    status: Mapping[int, tuple[int, int, int]]
    """By `RecorderEntry.group_number`: the last enqueued, started and completed sequence number, −1 for none."""
    note: str = ""
    """Why there is nothing in it, where the file itself is empty."""


def is_recorder_dump(content: Any) -> bool:
    """Whether a file's content is a flight recorder's."""
    return isinstance(content, dict) and (
        "pg_config" in content or "pg_status" in content or ("entries" in content and "version" in content)
    )


def read_content(file: Path) -> Any:
    """The content of a JSON file or a pickle of plain data, gzipped or not; None of a file without a byte.

    Raises:
        TraceFileError: neither, or not whole.
    """
    data = file.read_bytes()
    try:
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        if not data.strip():
            return None
        if data[:1] == b"\x80":
            return load_plain(data)
        return json.loads(data)
    except MemoryError:
        raise
    except Exception as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise TraceFileError(
            f"{file} cannot be read ({reason}): give a dump of torch's flight recorder, JSON or pickle, as written"
        ) from error


def dump_of(file: Path, content: Any, rank: int) -> RecorderDump:
    """One rank's dump from what its file holds.

    Raises:
        TraceFileError: a field is missing or is no such field; the message names it.
    """
    if content is None:
        return RecorderDump(file, rank, "", "", (), {}, {}, note=f"{file.name} is empty")
    try:
        entries = [_entry(i, entry) for i, entry in enumerate(content.get("entries") or ())]
        return RecorderDump(
            file,
            rank,
            version=str(content.get("version", "")),
            library=str(content.get("comm_lib_version") or content.get("nccl_version") or ""),
            entries=tuple(with_batches(sorted(entries, key=lambda entry: entry.record))),
            groups=groups_of(content),
            status={int(number): _status(one) for number, one in (content.get("pg_status") or {}).items()},
        )
    except _MissingField as missing:
        raise TraceFileError(f"{file} has no {missing}: it is no whole dump of torch's flight recorder") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise TraceFileError(f"{file} is no dump of torch's flight recorder ({error}): dump it again") from error


class _MissingField(Exception):
    """Its text is the path of the field, such as ``entries[3].profiling_name``."""


def groups_of(content: Mapping[str, Any]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """By name: description and ranks of the groups of a dump; gloo writes one without a name, for none."""
    groups = {}
    for key, group in (content.get("pg_config") or {}).items():
        if isinstance(group, Mapping):
            name = str(group.get("name", key))
            described = str(group.get("desc", "")), numbers(group.get("ranks", ""))
        else:  # before format 2.1: only the ranks
            name, described = str(key), ("", numbers(group))
        if name or described[1]:
            groups[name] = described
    return groups


def numbers(ranks: Any) -> tuple[int, ...]:
    """Ranks from a list, or from text such as ``"[0, 1]"``."""
    if isinstance(ranks, str):
        return tuple(int(number) for number in re.findall(r"\d+", ranks))
    return tuple(int(rank) for rank in ranks or ())


def _status(one: Mapping[str, Any]) -> tuple[int, int, int]:
    enqueued, started, completed = (
        int(one.get(f"last_{what}_collective", -1)) for what in ("enqueued", "started", "completed")
    )
    return enqueued, started, completed


def _entry(index: int, entry: Any) -> RecorderEntry:
    if not isinstance(entry, dict):
        raise TypeError(f"entries[{index}] is {entry!r}")

    def field(*names: str) -> Any:
        for name in names:
            if entry.get(name) is not None:
                return entry[name]
        raise _MissingField(f"entries[{index}].{names[0]}")

    raw_op = str(field("profiling_name"))
    library, _, called = raw_op.rpartition(":")
    name, _, rest = called.strip().partition(" ")
    peers = _PEERS.search(rest)
    group = field("process_group", "pg_name")
    group_name, description = group if isinstance(group, (list, tuple)) else (group, "")
    op = plain_op(name)
    is_p2p = bool(entry.get("is_p2p", op in ("send", "recv")))
    collective = _integer(entry.get("collective_seq_id", entry.get("seq_id")))
    message = _integer(entry.get("p2p_seq_id"))
    sequence = message if is_p2p and message is not None else collective if collective is not None else message
    if sequence is None:
        raise _MissingField(f"entries[{index}].collective_seq_id")
    record = _integer(entry.get("record_id", entry.get("id")))
    return RecorderEntry(
        record=index if record is None else record,
        group=str(group_name),
        description=str(description),
        group_number=_integer(entry.get("pg_id")),
        sequence=sequence,
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


def _direction(peers: re.Match[str]) -> tuple[int, int]:
    first, arrow, second = int(peers[1]), peers[2], int(peers[3])
    return (first, second) if arrow == "->" else (second, first)


def _state(entry: Mapping[str, Any], library: str) -> State:
    if _time(entry.get("time_discovered_completed_ns")) is not None:
        return "completed"
    if library.startswith(_LIBRARIES_WITHOUT_ENDS) and entry.get("retired"):
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


def with_batches(entries: Iterable[RecorderEntry]) -> list[RecorderEntry]:
    """The entries, those of a coalesced call with its state and without the entry that ended it.

    A call's members stand before its end, in the same group and with its sequence number; other groups' entries may
    stand between. An end without members is an entry like any other.
    """
    result: list[RecorderEntry | None] = []
    open_calls: dict[tuple[str, bool], list[int]] = {}
    for entry in entries:
        key = entry.group, entry.is_p2p
        members = open_calls.setdefault(key, [])
        if members and _sequence(result, members) != entry.sequence:
            members.clear()
        if members and _ends_call(entry):
            for at in members:
                member = cast(RecorderEntry, result[at])
                result[at] = replace(
                    member, state=entry.state, started=entry.started, ended=entry.ended, batch=entry.record
                )
            members.clear()
            continue
        members.append(len(result))
        result.append(entry)
    return _completed_by_later([entry for entry in result if entry is not None])


def _sequence(result: list[RecorderEntry | None], members: list[int]) -> int:
    return cast(RecorderEntry, result[members[0]]).sequence


def _ends_call(entry: RecorderEntry) -> bool:
    name = entry.raw_op.rpartition(":")[2]
    return name in ("coalesced", "ALLGATHER_coalesced", "REDUCE_SCATTER_coalesced")


def _completed_by_later(entries: list[RecorderEntry]) -> list[RecorderEntry]:
    """The entries, those of a call whose end is lost completed where a later one of their group is.

    NCCL runs one group's collectives on one stream, in order; gloo has several threads. A message between two ranks may
    have a stream of its own, so only those of a call of several are meant: they share their sequence number.
    """
    last: dict[tuple[str, bool], int] = {}
    shared: dict[tuple[str, bool, int], int] = {}
    for i, entry in enumerate(entries):
        key = entry.group, entry.is_p2p
        shared[*key, entry.sequence] = shared.get((*key, entry.sequence), 0) + 1
        if entry.state == "completed":
            last[key] = i
    return [
        replace(entry, state="completed")
        if entry.state != "completed"
        and not entry.raw_op.startswith(_LIBRARIES_WITHOUT_ENDS)
        and i < last.get((entry.group, entry.is_p2p), -1)
        and (not entry.is_p2p or shared[entry.group, True, entry.sequence] > 1)
        else entry
        for i, entry in enumerate(entries)
    ]
