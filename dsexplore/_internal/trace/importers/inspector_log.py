"""Read logs of NCCL Inspector, a profiler plugin of NCCL that writes one JSON object per line and collective.

| key | value |
|---|---|
| ``header`` | ``id`` and ``comm_name`` of the communicator, ``rank`` in it, ``n_ranks``, ``nnodes`` |
| ``metadata`` | ``hostname``, ``pid``, ``dump_timestamp_us`` (when the line was written) |
| ``coll_perf`` | ``coll`` (``AllReduce``), ``coll_sn`` (its number in the communicator), ``coll_msg_size_bytes`` \
(one rank's part if NCCL's function takes its count), ``coll_exec_time_us``; in verbose logs the times of its kernels |
| ``p2p_perf`` | the same for a send or recv, with ``p2p_peer`` |

A process writes one file. Its rank is that in the largest communicator, which is assumed to have all ranks.
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
from dsexplore._internal.trace.limits import MOST_NUMBER, checked_number, checked_ranks
from dsexplore._internal.trace.tables import Tables, TraceInfo
from dsexplore._internal.units import format_count, format_seconds

_LONGEST_LINE = 1 << 20
_MOST_BYTES = 1 << 50
_LONGEST = 1e9
"""Longest time of a collective in seconds; a longer or negative one is damage."""


@dataclass(frozen=True, slots=True)
class InspectorCall:
    """A collective, from one line of a log."""

    communicator: str
    """Id of the communicator."""
    name: str
    """Name of the communicator; empty if it has none."""
    place: int
    """Rank of the process in the communicator."""
    size: int
    """Number of ranks in the communicator."""
    op: str
    raw_op: str
    number: int | None
    """Number among the collectives of the communicator; None for send and recv."""
    peer: int | None
    """Place of the other rank of a send or recv in the communicator; None for a collective."""
    message_bytes: int | None
    """Bytes of the whole message; None if unknown."""
    start: int | None
    """Start in nanoseconds since the epoch; None unless the log is verbose."""
    end: int | None
    """End in nanoseconds since the epoch; None unless the log is verbose."""
    seconds: float
    """Duration in seconds."""


@dataclass(frozen=True)
class InspectorLog:
    """The content of one file."""

    file: Path
    calls: tuple[InspectorCall, ...]
    damaged: int
    """Number of lines that cannot be read, such as one that was cut off."""


def read_inspector_log(file: Path) -> InspectorLog:
    """Read a log.

    Raises:
        TraceFileError: the file cannot be read, or most of its lines.
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
    """Yield the lines that are not blank.

    Raises:
        OSError, EOFError, ValueError: the file cannot be read, or a line is too long.
    """
    remainder = b""
    for block in blocks_of(file):
        *lines, remainder = (remainder + block).split(b"\n")
        if len(remainder) > _LONGEST_LINE:
            raise ValueError(f"a line is longer than {_LONGEST_LINE:,} bytes")
        yield from (line for line in lines if line.strip())
    if remainder.strip():
        yield remainder


def _call(line: Mapping[str, Any]) -> InspectorCall:
    """Return the collective of a line.

    Raises:
        ArithmeticError, AttributeError, LookupError, TypeError, ValueError: the line is damaged.
    """
    header = line["header"]
    is_collective = "coll_perf" in line
    kind = "coll" if is_collective else "p2p"
    perf = line[f"{kind}_perf"]
    raw_op, size, place = perf[kind], int(header["n_ranks"]), int(header["rank"])
    checked_ranks((place, size - 1))
    seconds = float(perf[f"{kind}_exec_time_us"]) / 1e6
    if not isinstance(raw_op, str) or header["id"] is None or not 0 <= seconds < _LONGEST:
        raise ValueError(raw_op)
    op = plain_op(raw_op)
    message: int | None = int(perf[f"{kind}_msg_size_bytes"])
    if message is not None and not 0 <= message <= _MOST_BYTES:
        message = None
    start, end = _span((perf.get("event_trace_ts") or {}).get("kernel_events") or ())
    name = str(header.get("comm_name") or "unknown")
    return InspectorCall(
        communicator=str(header["id"]),
        name="" if name == "unknown" else name,
        place=place,
        size=size,
        op=op,
        raw_op=raw_op,
        number=_count(perf["coll_sn"]) if is_collective else None,
        peer=int(perf["p2p_peer"]) if not is_collective and "p2p_peer" in perf else None,
        message_bytes=whole_of(op, message, size) if message else message,
        start=start,
        end=end,
        seconds=seconds,
    )


def _count(value: Any) -> int:
    """Return a number among the collectives of a communicator.

    Raises:
        TypeError, ValueError: the value is not such a number.
    """
    number = checked_number(int(value))
    if number < 0:
        raise ValueError(f"{number} counts nothing")
    return number


def _span(kernels: Iterable[Mapping[str, Any]]) -> tuple[int | None, int | None]:
    """Return start of the first and end of the last kernel in ns; both None if the times of a kernel are unknown."""
    times = [(int(kernel.get("kernel_start_ts") or 0), int(kernel.get("kernel_stop_ts") or 0)) for kernel in kernels]
    if not times or not all(0 < start <= stop <= MOST_NUMBER // 1_000 for start, stop in times):
        return None, None
    return min(start for start, _ in times) * 1_000, max(stop for _, stop in times) * 1_000


def tables_of_inspector(logs: Sequence[InspectorLog]) -> list[Tables]:
    """Build the tables of each rank from the logs of one job.

    Raises:
        TraceFileError: two files are of the same rank.
    """
    world_size = max(call.size for log in logs for call in log.calls)
    ranks = {log.file: _rank(log, world_size) for log in logs}
    first: dict[int, Path] = {}
    for file, rank in ranks.items():
        if rank is not None and first.setdefault(rank, file) is not file:
            raise TraceFileError(f"{first[rank].name} and {file.name} are both of rank {rank}: give one job's files")
    notes: list[str] = []
    members: dict[str, dict[int, int]] = defaultdict(dict)
    """{communicator: {place in it: rank}}."""
    by_rank: dict[int, list[InspectorCall]] = defaultdict(list)
    for log in logs:
        skipped = 0
        for call in log.calls:
            rank = call.place if call.size == world_size else ranks[log.file]
            if rank is None:
                skipped += 1
                continue
            members[call.communicator][call.place] = rank
            by_rank[rank].append(call)
        notes += _notes(log, skipped)
    parts = [_tables(rank, by_rank[rank], members, world_size) for rank in sorted(by_rank)]
    parts[0] = replace(parts[0], info=replace(parts[0].info, notes=tuple(notes)))
    return parts


def _tables(
    rank: int, calls: Sequence[InspectorCall], members: Mapping[str, Mapping[int, int]], world_size: int
) -> Tables:
    """Build the tables of one rank.

    Args:
        rank: the rank.
        calls: collectives of the rank.
        members: {communicator: {place in it: rank}} of all ranks.
        world_size: number of ranks of the job.
    """
    rows = [
        {**_row(call, _ranks_of(call, members, world_size)), "rank": rank, "seq": seq} for seq, call in enumerate(calls)
    ]
    groups = [
        (communicator, last.name, "", list(_ranks_of(last, members, world_size)), last.size, "nccl", "cuda")
        for communicator, last in {call.communicator: call for call in calls}.items()
    ]
    return Tables(
        events=schema.events_of(rows),
        groups=pl.DataFrame(groups, schema=schema.GROUPS, orient="row"),
        info=TraceInfo(world_size=world_size, ranks=(rank,)),
    )


def _rank(log: InspectorLog, world_size: int) -> int | None:
    """Return the rank of a process; None if its file tells none, or several because the process has several GPUs."""
    places = {call.place for call in log.calls if call.size == world_size}
    return places.pop() if len(places) == 1 else None


def _ranks_of(call: InspectorCall, members: Mapping[str, Mapping[int, int]], world_size: int) -> tuple[int, ...]:
    """Return the ranks of a call's communicator in its order; empty if the files of some are missing."""
    if call.size == world_size:
        return tuple(range(world_size))
    ranks = members[call.communicator]
    return tuple(ranks[place] for place in range(call.size)) if len(ranks) == call.size else ()


def _row(call: InspectorCall, ranks: Sequence[int]) -> dict[str, object]:
    """Return the row of `schema.EVENTS` for a collective among `ranks`, without ``rank`` and ``seq``."""
    return {
        **schema.IMPORTED_EVENT,
        "op": call.op,
        "raw_op": call.raw_op,
        "axis": call.name,
        "group": call.communicator,
        "group_size": call.size,
        "message_bytes": call.message_bytes,
        "wire_bytes": wire_bytes_if_known(call.op, call.message_bytes, call.size),
        "dtype": "",
        "shape": [],
        "peer": ranks[call.peer] if call.peer is not None and 0 <= call.peer < len(ranks) else None,
        "start": call.start,
        "end": call.end,
        "state": "completed",
        "group_seq": call.number,
    }


def _notes(log: InspectorLog, skipped: int) -> Iterator[str]:
    """Yield notes on what a file lacks; `skipped` is the number of its collectives of an unknown rank."""
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
        together = format_seconds(sum(call.seconds for call in untimed))
        many = format_count(len(untimed), "collective")
        yield (
            f"{name} says how long {many} took, {together} together, but not when: "
            "record with NCCL_INSPECTOR_DUMP_VERBOSE=1 for their times"
        )
