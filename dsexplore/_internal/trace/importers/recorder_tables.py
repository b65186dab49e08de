"""Build the tables of a trace from flight-recorder dumps: one event per collective of each rank, with its state."""

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
        dump: dump of that rank.
        world_size: number of ranks of the job.
    """
    members = {name: ranks for name, (_, ranks) in dump.groups.items()}
    rows = [_row(dump.rank, seq, entry, members.get(entry.group, ())) for seq, entry in enumerate(dump.entries)]
    notes = [f"rank {dump.rank}: {dump.note}"] if dump.note else []
    notes += [dump.note_on_unwritten] if dump.unwritten else []
    if dump.entries and dump.entries[0].record > 0:
        first = dump.entries[0].record
        notes.append(f"rank {dump.rank}: the recorder kept {len(dump.entries):,} collectives, not the {first:,} before")
    return Tables(
        events=schema.events_of(rows),
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
    """Yield the rows of `schema.GROUPS`: the groups that the dump lists, and those that only its entries name."""
    groups = dict(dump.groups)
    backends: dict[str, str] = {}
    for entry in dump.entries:
        groups.setdefault(entry.group, (entry.description, ()))
        backends.setdefault(entry.group, entry.raw_op.partition(":")[0] if ":" in entry.raw_op else "")
    for name, (description, ranks) in groups.items():
        yield name, _axis(description), "", list(ranks), len(ranks) or 1, backends.get(name, ""), "host"


def _axis(description: str) -> str:
    """Return the mesh axis from the ``group_desc`` of a mesh's group, else the description itself; empty if none."""
    if description in ("default_pg", "undefined", ""):
        return ""
    return description.removeprefix("mesh_")


def _row(rank: int, seq: int, entry: RecorderEntry, members: Sequence[int]) -> dict[str, object]:
    """Return the row of `schema.EVENTS` for an entry.

    Args:
        rank: rank of the dump.
        seq: position of the entry in the rank's program order.
        entry: the entry.
        members: ranks of the entry's group; empty if unknown.
    """
    size = len(members) or 1  # if the members are unknown, only this rank is known to be one
    is_part = not members and _is_part(entry)
    message = None if is_part or not is_sized(entry) else message_bytes(entry, size)
    start, end = _times(entry)
    row = {
        **schema.IMPORTED_EVENT,
        "rank": rank,
        "seq": seq,
        "op": entry.op,
        "raw_op": entry.raw_op,
        "axis": _axis(entry.description),
        "group": entry.group,
        "group_size": size,
        "message_bytes": message,
        "wire_bytes": wire_bytes_if_known(entry.op, message, len(members)),
        "dtype": "",
        "shape": [],
        "source": entry.source,
        "batch": entry.batch,
        "start": start,
        "end": end,
        "state": entry.state,
    }
    if entry.op not in ("send", "recv"):
        row["group_seq"] = entry.sequence
    if entry.op != "barrier":
        row["dtype"] = (entry.input_dtypes or entry.output_dtypes or ("",))[0]
        if not is_part:
            sizes = entry.output_sizes if entry.op in ("all_gather", "recv") else entry.input_sizes
            row["shape"] = list(_first(sizes) or _first(entry.output_sizes))
    if entry.peers is not None:
        sender, receiver = entry.peers
        peer = receiver if entry.op == "send" else sender
        row["peer"] = members[peer] if peer < len(members) else None
    return row


def _is_part(entry: RecorderEntry) -> bool:
    """Return True if the entry has the sizes of one rank's part only, so that the whole depends on the group's size."""
    whole = {"all_gather": entry.output_sizes, "reduce_scatter": entry.input_sizes, "gather": (), "scatter": ()}
    return entry.op in whole and (not whole[entry.op] or entry.input_sizes == entry.output_sizes)


def is_sized(entry: RecorderEntry) -> bool:
    """Return True if the bytes of the message are known: the entry has sizes, and a dtype that this torch has."""
    has_sizes = bool(entry.input_sizes or entry.output_sizes)
    return entry.op == "barrier" or (has_sizes and _item_size(entry.input_dtypes or entry.output_dtypes) is not None)


def _times(entry: RecorderEntry) -> tuple[int | None, int | None]:
    """Return start and end in ns, measured if the recorder timed the collective, else its issue and observed end."""
    start = entry.started or entry.created
    if entry.state != "completed" or entry.ended is None:
        return start, None
    if entry.duration_ms is not None:
        return entry.ended - round(entry.duration_ms * 1e6), entry.ended
    is_before_start = start is not None and entry.ended < start  # the clock was set back, or the file is damaged
    return start, None if is_before_start else entry.ended


def _first(sizes: Sizes) -> tuple[int, ...]:
    return sizes[0] if sizes else ()


@lru_cache(maxsize=4096)  # a job's calls have few different shapes
def numel(sizes: Sizes) -> int:
    """Return the number of elements of all tensors together."""
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
    """Return the bytes of one element of the first dtype; None if there is none, or torch does not have it."""
    return item_size(dtypes[0]) if dtypes else None
