"""The tables of a trace from flight-recorder dumps: one event per collective of each rank, with its state."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import polars as pl

from dsexplore._internal.trace import schema
from dsexplore._internal.trace.collectives import wire_bytes_if_known
from dsexplore._internal.trace.importers.recorder_dump import RecorderDump
from dsexplore._internal.trace.importers.recorder_entry import RecorderEntry, Sizes
from dsexplore._internal.trace.item_size import item_size
from dsexplore._internal.trace.tables import Tables, TraceInfo


def tables_of(dump: RecorderDump, world_size: int) -> Tables:
    """Build one rank's tables of events and groups.

    Args:
        dump: of that rank.
        world_size: number of ranks of the job.
    """
    members = {name: ranks for name, (_, ranks) in dump.groups.items()}
    rows = [_row(dump.rank, i, entry, members.get(entry.group, ())) for i, entry in enumerate(dump.entries)]
    notes = [f"rank {dump.rank}: {dump.note}"] if dump.note else []
    notes += [dump.note_on_unwritten] if dump.unwritten else []
    if dump.entries and dump.entries[0].record > 0:
        first = dump.entries[0].record
        notes.append(f"rank {dump.rank}: the recorder kept {len(dump.entries):,} collectives, not the {first:,} before")
    return Tables(
        events=pl.DataFrame(rows, schema=schema.EVENTS, orient="row") if rows else schema.empty("events"),
        groups=pl.DataFrame(list(_groups(dump)), schema=schema.GROUPS, orient="row"),
        info=TraceInfo(world_size=world_size, ranks=(dump.rank,), notes=tuple(notes)),
    )


def world_size_of(dumps: Iterable[RecorderDump]) -> int:
    """Return the number of ranks in the dumps' groups, or more if a dump has a higher rank."""
    ranks = {0}
    for dump in dumps:
        ranks |= {dump.rank}.union(*(ranks for _, ranks in dump.groups.values()))
    return max(ranks) + 1


def _groups(dump: RecorderDump) -> Iterable[tuple[Any, ...]]:
    described = dict(dump.groups)
    backends: dict[str, str] = {}
    for entry in dump.entries:
        described.setdefault(entry.group, (entry.description, ()))
        backends.setdefault(entry.group, entry.raw_op.partition(":")[0] if ":" in entry.raw_op else "")
    for name, (description, ranks) in described.items():
        yield name, _axis(description), "", list(ranks), len(ranks) or 1, backends.get(name, ""), "host"


def _axis(description: str) -> str:
    """Return the mesh axis in a ``group_desc`` that a mesh made, else the description itself; empty if none."""
    if description in ("default_pg", "undefined", ""):
        return ""
    return description.removeprefix("mesh_")


def _row(rank: int, position: int, entry: RecorderEntry, members: Sequence[int]) -> tuple[Any, ...]:
    size = len(members) or 1  # of groups without a list of members, only this rank is known
    is_part = not members and _is_part(entry)
    message = None if is_part or not is_sized(entry) else message_bytes(entry, size)
    sizes = entry.output_sizes if entry.op in ("all_gather", "recv") else entry.input_sizes
    shape = _first(sizes) or _first(entry.output_sizes)
    is_sent = entry.op != "barrier"
    has_size = is_sent and not is_part
    dtype = (entry.input_dtypes or entry.output_dtypes or ("",))[0] if is_sent else ""
    peer = None
    if entry.peers is not None:
        place = entry.peers[1] if entry.op == "send" else entry.peers[0]
        peer = members[place] if place < len(members) else None
    return (
        *(rank, 0, position, entry.op, entry.raw_op, "other", "", "", _axis(entry.description), entry.group, size),
        *(message, wire_bytes_if_known(entry.op, message, len(members)), dtype, list(shape) if has_size else []),
        *(False, "", entry.source, True, False, entry.batch, peer, None, None, None),
        *(*_times(entry), entry.state),
        None,  # how long the program stood still is not in a dump
        entry.sequence if entry.op not in ("send", "recv") else None,
        None,  # what modules were called with is not in a dump
    )


def _is_part(entry: RecorderEntry) -> bool:
    """Return True if the sizes are of one rank's part only, so that the whole depends on the number of ranks."""
    whole = {"all_gather": entry.output_sizes, "reduce_scatter": entry.input_sizes, "gather": (), "scatter": ()}
    return entry.op in whole and (not whole[entry.op] or entry.input_sizes == entry.output_sizes)


def is_sized(entry: RecorderEntry) -> bool:
    """Return True if the entry says what was sent: sizes, of a dtype that torch has."""
    if entry.op == "barrier":
        return True
    return (
        bool(entry.input_sizes or entry.output_sizes)
        and _item_size(entry.input_dtypes or entry.output_dtypes) is not None
    )


def _times(entry: RecorderEntry) -> tuple[int | None, int | None]:
    """Return start and end: measured if the recorder timed the collective, else its issue and when its end was seen."""
    start = entry.started or entry.created
    if entry.state != "completed" or entry.ended is None:
        return start, None
    if entry.duration_ms is not None:
        return entry.ended - round(entry.duration_ms * 1e6), entry.ended
    is_before = start is not None and entry.ended < start  # a clock was set, or the file is damaged
    return start, None if is_before else entry.ended


def _first(sizes: Sizes) -> tuple[int, ...]:
    return sizes[0] if sizes else ()


@lru_cache(maxsize=4096)  # a job's calls have few different shapes
def numel(sizes: Sizes) -> int:
    """Return the number of elements of several tensors together."""
    return sum(math.prod(shape) for shape in sizes)


def message_bytes(entry: RecorderEntry, group_size: int) -> int:
    """Return S, the message bytes of an entry that `is_sized`, as `schema` counts them: the whole buffer."""
    received = numel(entry.output_sizes) * (_item_size(entry.output_dtypes or entry.input_dtypes) or 0)
    sent = numel(entry.input_sizes) * (_item_size(entry.input_dtypes or entry.output_dtypes) or 0)
    match entry.op:
        case "barrier":
            return 0
        case "all_gather":
            return max(received, sent * group_size)
        case "reduce_scatter":
            return max(sent, received * group_size)
        case "gather":
            return sent * group_size
        case "scatter":
            return received * group_size
        case "recv":
            return received or sent
        case "all_to_all":
            return max(sent, received)
    return sent or received


def _item_size(dtypes: Sequence[str]) -> int | None:
    return item_size(dtypes[0]) if dtypes else None
