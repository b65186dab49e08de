"""Logs of NCCL Inspector: one JSON object per line and collective, as NCCL's profiler plugin of that name writes them.

| key | value |
|---|---|
| ``header`` | ``id`` and ``comm_name`` of the communicator, ``rank`` in it, ``n_ranks``, ``nnodes`` |
| ``metadata`` | ``hostname``, ``pid``, ``dump_timestamp_us`` (when the line was written) |
| ``coll_perf`` | ``coll`` (``AllReduce``), ``coll_sn`` (its number in the communicator), ``coll_msg_size_bytes`` \
(of one rank's part where NCCL's call counts that), ``coll_exec_time_us``; in verbose logs the times of its kernels |
| ``p2p_perf`` | the same of a send or recv, with ``p2p_peer`` |

A process writes one file. Its rank is that in the largest communicator, which is taken to be of all ranks.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from dsexplore._internal.errors import TraceFileError
from dsexplore._internal.trace import schema
from dsexplore._internal.trace.collectives import wire_bytes_if_known
from dsexplore._internal.trace.importers.op_names import plain_op
from dsexplore._internal.trace.importers.packed import blocks_of
from dsexplore._internal.trace.importers.profiler_messages import whole_of
from dsexplore._internal.trace.limits import MOST_TIME, checked_number, checked_ranks
from dsexplore._internal.trace.tables import Tables, TraceInfo
from dsexplore._internal.units import format_count, format_seconds

_LONGEST_LINE = 1 << 20
_MOST_BYTES = 1 << 50
_LONGEST = 1e9
"""Seconds of a collective; a longer time, or none, is damage."""


@dataclass(frozen=True, slots=True)
class InspectorCall:
    """One line of a log."""

    communicator: str
    name: str
    """Name of the communicator; empty if it has none."""
    place: int
    """Place of this rank in the communicator."""
    size: int
    """Number of ranks in the communicator."""
    op: str
    raw_op: str
    number: int | None
    """Among the collectives of the communicator; None for send and recv."""
    peer: int | None
    """Place of the other rank of a send or recv."""
    message_bytes: int | None
    start: int | None
    """Nanoseconds since the epoch, as is the next; None unless the log is verbose."""
    end: int | None
    seconds: float


@dataclass(frozen=True)
class InspectorLog:
    """One file."""

    file: Path
    calls: tuple[InspectorCall, ...]
    damaged: int
    """Number of lines that are no line of a log, such as one that was cut off."""


def read_inspector_log(file: Path) -> InspectorLog:
    """Read a log.

    Raises:
        TraceFileError: it cannot be read, or most of its lines are none of a log.
    """
    calls, damaged = [], 0
    try:
        for line in _lines(file):
            try:
                calls.append(_call(json.loads(line)))
            except (ValueError, TypeError, AttributeError, ArithmeticError, LookupError, RecursionError):
                damaged += 1
                if damaged > len(calls) + 8:
                    raise ValueError(f"{damaged:,} of its first lines are damaged") from None
    except (OSError, EOFError, ValueError) as error:
        raise TraceFileError(f"{file} cannot be read ({error}): copy or record it again") from error
    if not calls:
        raise TraceFileError(f"{file} has no line of NCCL Inspector that can be read: copy or record it again")
    return InspectorLog(file, tuple(calls), damaged)


def _lines(file: Path) -> Iterator[bytes]:
    rest = b""
    for block in blocks_of(file):
        *whole, rest = (rest + block).split(b"\n")
        if len(rest) > _LONGEST_LINE:
            raise ValueError(f"a line is longer than {_LONGEST_LINE:,} bytes")
        yield from (line for line in whole if line.strip())
    if rest.strip():
        yield rest


def _call(line: Mapping[str, Any]) -> InspectorCall:
    header, kind = line["header"], "coll" if "coll_perf" in line else "p2p"
    perf = line[f"{kind}_perf"]
    raw_op, size, place = perf[kind], int(header["n_ranks"]), int(header["rank"])
    checked_ranks((place, size - 1))
    took = float(perf[f"{kind}_exec_time_us"]) / 1e6
    if not isinstance(raw_op, str) or header["id"] is None or not 0 <= took < _LONGEST:
        raise ValueError(raw_op)
    op, said = plain_op(raw_op), int(perf[f"{kind}_msg_size_bytes"])
    message = said if 0 <= said <= _MOST_BYTES else None
    kernels = (perf.get("event_trace_ts") or {}).get("kernel_events") or ()
    start, end = _span(kernels)
    name = str(header.get("comm_name") or "unknown")
    return InspectorCall(
        communicator=str(header["id"]),
        name="" if name == "unknown" else name,
        place=place,
        size=size,
        op=op,
        raw_op=raw_op,
        number=_count(perf["coll_sn"]) if kind == "coll" else None,
        peer=int(perf["p2p_peer"]) if kind == "p2p" and "p2p_peer" in perf else None,
        message_bytes=whole_of(op, message, size) if message else message,
        start=start,
        end=end,
        seconds=took,
    )


def _count(value: Any) -> int:
    """Return a number among the collectives of a communicator.

    Raises:
        TypeError, ValueError: it is none.
    """
    number = checked_number(int(value))
    if number < 0:
        raise ValueError(f"{number} counts nothing")
    return number


def _span(kernels: Iterable[Mapping[str, Any]]) -> tuple[int | None, int | None]:
    """Return start of the first and end of the last kernel of a collective; None if those of a kernel are unknown."""
    times = [(int(kernel.get("kernel_start_ts") or 0), int(kernel.get("kernel_stop_ts") or 0)) for kernel in kernels]
    if not times or not all(0 < start <= stop <= MOST_TIME // 1_000 for start, stop in times):
        return None, None
    return min(start for start, _ in times) * 1_000, max(stop for _, stop in times) * 1_000


def tables_of_inspector(logs: Sequence[InspectorLog]) -> list[Tables]:
    """Build the tables of each rank from the logs of one job.

    Raises:
        TraceFileError: two files are of the same rank.
    """
    world = max(call.size for log in logs for call in log.calls)
    ranks = {log.file: _rank(log, world) for log in logs}
    first: dict[int, Path] = {}
    for file, rank in ranks.items():
        if rank is not None and first.setdefault(rank, file) is not file:
            raise TraceFileError(f"{first[rank].name} and {file.name} are both of rank {rank}: give one job's files")
    notes: list[str] = []
    members: dict[str, dict[int, int]] = defaultdict(dict)
    placed: list[tuple[int, InspectorCall]] = []
    for log in logs:
        calls = [(call.place if call.size == world else ranks[log.file], call) for call in log.calls]
        kept = [(rank, call) for rank, call in calls if rank is not None]
        for rank, call in kept:
            members[call.communicator][call.place] = rank
        placed += kept
        notes += _notes(log, len(calls) - len(kept))
    by_rank: dict[int, list[InspectorCall]] = defaultdict(list)
    for rank, call in placed:
        by_rank[rank].append(call)
    parts = [_tables(rank, by_rank[rank], members, world) for rank in sorted(by_rank)]
    parts[0] = replace(parts[0], info=replace(parts[0].info, notes=tuple(notes)))
    return parts


def _tables(rank: int, calls: Sequence[InspectorCall], members: Mapping[str, Mapping[int, int]], world: int) -> Tables:
    rows = [_row(rank, place, call, _ranks_of(call, members, world)) for place, call in enumerate(calls)]
    groups = [
        (name, last.name, "", list(_ranks_of(last, members, world)), last.size, "nccl", "cuda")
        for name, last in {call.communicator: call for call in calls}.items()
    ]
    return Tables(
        events=pl.DataFrame(rows, schema=schema.EVENTS, orient="row"),
        groups=pl.DataFrame(groups, schema=schema.GROUPS, orient="row"),
        info=TraceInfo(world_size=world, ranks=(rank,)),
    )


def _rank(log: InspectorLog, world: int) -> int | None:
    """Return the rank of a process; None if its file has none, or several, as of a process with several GPUs."""
    places = {call.place for call in log.calls if call.size == world}
    return places.pop() if len(places) == 1 else None


def _ranks_of(call: InspectorCall, members: Mapping[str, Mapping[int, int]], world: int) -> tuple[int, ...]:
    """Return the ranks of a communicator in its order; empty if the files of some are missing."""
    if call.size == world:
        return tuple(range(world))
    ranks = members[call.communicator]
    return tuple(ranks[place] for place in range(call.size)) if len(ranks) == call.size else ()


def _row(rank: int, position: int, call: InspectorCall, ranks: Sequence[int]) -> tuple[Any, ...]:
    peer = ranks[call.peer] if call.peer is not None and 0 <= call.peer < len(ranks) else None
    return (
        *(rank, 0, position, call.op, call.raw_op, "other", "", "", call.name, call.communicator, call.size),
        *(call.message_bytes, wire_bytes_if_known(call.op, call.message_bytes, call.size), "", []),
        *(False, "", "", True, False),
        *(None, peer, None, None, None, call.start, call.end, "completed", None, call.number, None),
    )


def _notes(log: InspectorLog, skipped: int) -> Iterator[str]:
    name = log.file.name
    if log.damaged:
        yield f"{name}: {format_count(log.damaged, 'damaged line')} left out"
    if skipped:
        yield f"{name} does not name the rank of {format_count(skipped, 'collective')}, left out here"
    numbers: dict[tuple[str, int], set[int]] = defaultdict(set)
    for call in log.calls:
        if call.number is not None:
            numbers[call.communicator, call.place].add(call.number)
    missing = sum(max(present) - min(present) + 1 - len(present) for present in numbers.values())
    if missing:
        yield f"{name} lacks {format_count(missing, 'collective')} between those that it has, by their numbers"
    untimed = [call for call in log.calls if call.end is None]
    if untimed:
        took = format_seconds(sum(call.seconds for call in untimed))
        many = format_count(len(untimed), "collective")
        yield (
            f"{name} says how long {many} took, {took} together, but not when: "
            "record with NCCL_INSPECTOR_DUMP_VERBOSE=1 for their times"
        )
