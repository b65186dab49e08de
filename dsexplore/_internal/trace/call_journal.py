"""The call journal: a file with the latest calls of one rank that is always current, however its process ends.

`record` writes one for each rank of a job that saves into a folder, and removes it once the rank's trace is saved. A
rank that SIGKILL, ``abort`` or ``os._exit`` ends saves no trace, so its journal is read instead. The file is mapped
into memory, and the operating system keeps what was written there when the process is gone. The columns that calls of
one kind share are written once; a call is then two numbers and a time in a ring buffer.

| bytes | |
|---|---|
| 0 to `_END_AT` | `_HEAD`: mark, version, number of events, how many of the first ones had ended, lengths of texts |
| to `_INFO_AT` | how the process ended, as a rank that outlived it noted: UTF-8 up to the first zero byte |
| to `_KINDS_AT` | `JournalInfo` as JSON |
| to `_RING_AT` | kinds of calls, a line of JSON each: the columns of an event that all calls of the kind share |
| to `_SIZE` | the ring: `_CALL` for each of the last `KEPT` events |
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import polars as pl

from dsexplore._internal.errors import TraceFileError
from dsexplore._internal.trace import schema
from dsexplore._internal.trace.checked_tables import checked_tables
from dsexplore._internal.trace.ends import RUNNING
from dsexplore._internal.trace.guarded import check_kind_of_path
from dsexplore._internal.trace.process_states import end_of_process, host_clock
from dsexplore._internal.trace.tables import Tables, TraceInfo

_MARK, _VERSION = b"dsxcalls", 1
_HEAD = struct.Struct("<8sIQQII")
"""Mark, version, events, events that had ended, bytes of the info, bytes of the kinds."""
_COUNTS, _COUNTS_AT = struct.Struct("<QQ"), struct.calcsize("<8sI")
"""The two counts of events in `_HEAD`, and where they begin."""
_ENDED_AT, _BYTES_OF_KINDS_AT = struct.calcsize("<8sIQ"), struct.calcsize("<8sIQQI")
_COUNT, _BYTES = struct.Struct("<Q"), struct.Struct("<I")
_END_AT, _INFO_AT, _KINDS_AT, _RING_AT = 64, 256, 4096, 1 << 18
_CALL = struct.Struct("<IIQ")
"""Kind, number among the collectives of its group, start in nanoseconds since the Unix epoch."""
KEPT = 4096
"""Events that a journal keeps: enough to see where a program was, in 64 KiB."""
_CALL_BYTES = _CALL.size
_pack_call, _pack_counts = _CALL.pack_into, _COUNTS.pack_into
_SIZE = _RING_AT + KEPT * _CALL_BYTES
NOT_NUMBERED = 0xFFFFFFFF
"""Number of a call that its group does not count, such as a send."""
_OMITTED = 0xFFFFFFFE
"""Kind of calls that were taken back, and of calls whose own kind did not fit into the file."""

Row = dict[str, Any]
"""Columns of `schema.EVENTS` that all calls of a kind share."""


@dataclass(frozen=True)
class JournalInfo:
    """The rank and process that a journal belongs to."""

    rank: int
    world_size: int
    attempt: str
    began: int
    """Start of the recording, see `TraceInfo.began`."""
    clock: str
    """Name of the clock, see `TraceInfo.clocks`; processes of one host have the same."""
    pid: int
    born: int
    """Start of the process in ticks since boot, because another process may get its ID later."""
    torch_version: str = ""


class JournaledCall(Protocol):
    """A call that knows whether it is over."""

    @property
    def is_over(self) -> bool:
        """True if the call has ended or will never end."""


class CallJournal:
    """Writer of a journal.

    Args:
        file: path of the journal; an older file is replaced.
        info: rank and process that the journal belongs to.
    """

    def __init__(self, file: Path, info: JournalInfo) -> None:
        self.file = file
        self._kinds_end = _KINDS_AT
        self._count = 0
        self._kinds = 0
        self._running: deque[tuple[int, JournaledCall]] = deque()
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
        text = json.dumps(asdict(info)).encode()
        with partial.open("wb+") as opened:
            opened.truncate(_SIZE)
            self._map = mmap.mmap(opened.fileno(), _SIZE)
        self._map[_INFO_AT : _INFO_AT + len(text)] = text
        _HEAD.pack_into(self._map, 0, _MARK, _VERSION, 0, 0, len(text), 0)
        partial.replace(file)

    def add_kind(self, rows: Sequence[Row], group: Sequence[Any] | None) -> int:
        """Write a kind of calls and return its number; calls of a kind that does not fit are omitted from the journal.

        Args:
            rows: shared columns of each event that such a call has.
            group: row of the call's group, with the columns `schema.GROUPS`; None if it has no group.
        """
        line = json.dumps({"rows": rows, "group": group}).encode() + b"\n"
        if self._kinds_end + len(line) > _RING_AT:
            return _OMITTED
        self._map[self._kinds_end : self._kinds_end + len(line)] = line
        self._kinds_end += len(line)
        _BYTES.pack_into(self._map, _BYTES_OF_KINDS_AT, self._kinds_end - _KINDS_AT)
        self._kinds += 1
        return self._kinds - 1

    def add(self, kind: int, number: int, start: int | None, call: JournaledCall) -> None:
        """Write an event of a call that is about to be issued, or has been.

        Args:
            kind: number of the call's kind, from `add_kind`.
            number: number of a collective among those of its group; `NOT_NUMBERED` for a message.
            start: start in nanoseconds since the epoch; None if unknown.
            call: the call, which is asked later whether it has ended.
        """
        count, running = self._count, self._running
        _pack_call(self._map, _RING_AT + count % KEPT * _CALL_BYTES, kind, number, start or 0)
        while running and running[0][1].is_over:
            running.popleft()
        running.append((count, call))
        self._count = count = count + 1
        _pack_counts(self._map, _COUNTS_AT, count, running[0][0])

    def take_back(self, call: JournaledCall) -> None:
        """Remove a call that was refused before it was issued.

        If another thread has added a call since, the place of the removed one stays empty.
        """
        positions = [position for position, running in self._running if running is call]
        self._running = deque(pair for pair in self._running if pair[1] is not call)
        for position in reversed(positions):
            if position == self._count - 1:
                self._count = position
            else:
                _BYTES.pack_into(self._map, _RING_AT + position % KEPT * _CALL_BYTES, _OMITTED)
        _pack_counts(self._map, _COUNTS_AT, self._count, self._running[0][0] if self._running else self._count)

    def settle(self) -> None:
        """Write which calls have ended since the last one was issued; any thread may call this."""
        count, running = self._count, tuple(self._running)
        ended = next((position for position, call in running if not call.is_over), count)
        _COUNT.pack_into(self._map, _ENDED_AT, min(ended, count))

    def remove(self) -> None:
        """Remove the file; a thread that still writes then writes into memory that nobody reads."""
        self.file.unlink(missing_ok=True)


@dataclass(frozen=True)
class ReadJournal:
    """The content of a journal."""

    info: JournalInfo
    events: int
    """Number of events written; the ring holds the last of them."""
    noted_end: str
    """How the process ended, as a rank that outlived it noted; empty if none did."""
    calls: Tables
    """Tables of the calls in the ring; calls that are not known to have ended are ``scheduled``."""

    def end_now(self) -> str:
        """Return how the process ended, if this host can tell; empty if it runs, or ran on another host."""
        return _end_of_process(self.info)

    def tables(self, end: str) -> Tables:
        """Return the tables of the rank.

        Args:
            end: how its recording ended, see `trace.ends`; empty if it runs.
        """
        return replace(self.calls, info=replace(self.calls.info, ends=(end or RUNNING,)))


def journal_file(rank: int) -> str:
    """Return the name of a rank's journal in a trace directory: ``rank-00003.calls``."""
    return f"rank-{rank:05d}.calls"


def journals_in(folder: Path) -> list[Path]:
    """Return the journals in a folder."""
    return sorted(folder.glob("rank-*.calls"))


def read_journal(file: Path) -> ReadJournal:
    """Read a journal.

    Raises:
        TraceFileError: the file is damaged, or not a journal.
    """
    check_kind_of_path(file)
    try:
        data = file.read_bytes()
        mark, version, count, ended, info_bytes, kinds_bytes = _HEAD.unpack_from(data, 0)
        if mark != _MARK or version != _VERSION or len(data) != _SIZE:
            raise ValueError("it has another mark, version or size")
        info = _info(data[_INFO_AT : _INFO_AT + min(info_bytes, _KINDS_AT - _INFO_AT)])
        kinds = [json.loads(line) for line in data[_KINDS_AT : min(_KINDS_AT + kinds_bytes, _RING_AT)].splitlines()]
        end = data[_END_AT:_INFO_AT].partition(b"\0")[0].decode(errors="replace")
        tables = checked_tables(_tables(info, kinds, data, count=count, ended=ended))
    except (
        *(struct.error, ValueError, TypeError, AttributeError, ArithmeticError, LookupError, RecursionError),
        *(OSError, pl.exceptions.PolarsError),
    ) as error:
        reason = str(error).partition("\n")[0][:200]
        raise TraceFileError(f"{file} is not a whole journal of calls ({reason}): leave it out") from error
    return ReadJournal(info, count, end, tables)


def _info(text: bytes) -> JournalInfo:
    """Parse `JournalInfo`.

    Raises:
        TypeError, ValueError: the text is not JSON of its fields, or a field has another type.
    """
    info = JournalInfo(**json.loads(text))
    for name, value in asdict(info).items():
        if type(value) is not (str if name in ("attempt", "clock", "torch_version") else int):
            raise ValueError(f"its {name} is {value!r}")
    return info


def _tables(info: JournalInfo, kinds: Sequence[Mapping[str, Any]], data: bytes, *, count: int, ended: int) -> Tables:
    """Return the tables of the calls in the ring.

    Args:
        info: rank and process of the journal.
        kinds: kinds of calls, in the order of their numbers.
        data: bytes of the whole file.
        count: number of events that were written.
        ended: number of the first events that are known to have ended.
    """
    rows, groups = [], {}
    first = max(count - KEPT, 0)
    kind_before, event_of_call = _OMITTED, 0
    for seq in range(first, count):
        kind, number, start = _CALL.unpack_from(data, _RING_AT + seq % KEPT * _CALL_BYTES)
        if kind == _OMITTED:
            continue
        shared_rows, group = kinds[kind]["rows"], kinds[kind]["group"]
        if kind == kind_before:  # a call of several events has several rows, one after the other
            event_of_call = (event_of_call + 1) % len(shared_rows)
        else:
            kind_before, event_of_call = kind, 0
        if group is not None:
            groups[group[0]] = group
        rows.append(
            {
                **shared_rows[event_of_call],
                "rank": info.rank,
                "seq": seq,
                "start": start or None,
                "group_seq": None if number == NOT_NUMBERED else number,
                "state": "completed" if seq < ended else "scheduled",
            }
        )
    notes = [f"rank {info.rank} kept its last {KEPT:,} of {count:,} calls"] if first else []
    return Tables(
        events=schema.events_of(rows),
        groups=pl.DataFrame(list(groups.values()), schema=schema.GROUPS, orient="row"),
        info=TraceInfo(
            world_size=info.world_size,
            ranks=(info.rank,),
            clocks=(info.clock,),
            began=(info.began,),
            attempt=info.attempt,
            torch_version=info.torch_version,
            notes=tuple(notes),
        ),
    )


def is_of_one_job(attempt: str, other: str) -> bool:
    """Return True if two names of `TraceInfo.attempt` are of one attempt, in whatever block."""
    return attempt.rpartition(" ")[0] == other.rpartition(" ")[0]


def _end_of_process(info: JournalInfo) -> str:
    is_of_this_host = info.clock and info.clock == host_clock()
    return end_of_process(info.pid, info.born) if is_of_this_host else ""


def note_ends(folder: Path, attempt: str) -> None:
    """Note in the journals of other processes on this host how these have ended, or that they are stopped.

    When the journals are read later, the launcher has ended all processes, and who ended first cannot be seen.

    Args:
        folder: folder of the journals.
        attempt: attempt of the job, see `TraceInfo.attempt`; journals of its earlier blocks are included.
    """
    for file in journals_in(folder):
        with suppress(OSError, TraceFileError, ValueError, struct.error):
            check_kind_of_path(file)
            with file.open("rb+") as opened:
                head = opened.read(_KINDS_AT)
                *_, info_bytes, _ = _HEAD.unpack_from(head, 0)
                info = _info(head[_INFO_AT : _INFO_AT + info_bytes])
                if info.pid == os.getpid() or head[_END_AT] or not is_of_one_job(info.attempt, attempt):
                    continue
                text = _end_of_process(info).encode()
                if text:
                    os.pwrite(opened.fileno(), text[: _INFO_AT - _END_AT - 1], _END_AT)
