"""The log as a `Trace`: the same events that the recorder writes, as far as calls can tell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl
import torch
import torch.distributed as td

from dsexplore.comm.groups import is_initialized
from dsexplore.comm.records import GroupInfo, Record
from dsexplore.trace import schema
from dsexplore.trace.collectives import wire_bytes
from dsexplore.trace.model import Tables, Trace, TraceInfo

_NOTE = "From the log of dsexplore.comm: calls made through it; modules, mesh axes and DTensor causes are not known."


def to_trace(records: Sequence[Record]) -> Trace:
    """One rank's log as a trace, in program order; ops that failed or were not seen to end have no end."""
    rank, world_size = (td.get_rank(), td.get_world_size()) if is_initialized() else (0, 1)
    ordered = sorted(records, key=lambda record: record.seq)
    rows = [_event(seq, record, rank) for seq, record in enumerate(ordered)]
    events = pl.DataFrame({name: [row[name] for row in rows] for name in schema.EVENTS}, schema=schema.EVENTS)
    groups = {record.group.name: record.group for record in ordered}
    info = TraceInfo(
        world_size=max(world_size, *(rank + 1 for group in groups.values() for rank in group.ranks), 1),
        ranks=(rank,),
        torch_version=torch.__version__,
        notes=(_NOTE,),
    )
    table = pl.DataFrame([_group(group) for group in groups.values()], schema=schema.GROUPS)
    return Trace(Tables(events=events, groups=table, info=info))


def _event(seq: int, record: Record, rank: int) -> dict[str, Any]:
    times = record.times
    message = record.message
    cause = record.cause or ("" if record.name in (record.op, record.call) else record.name)
    return {
        "rank": rank,
        "step": 0,
        "seq": seq,
        "op": record.op,
        "raw_op": f"dsexplore.comm.{record.call}",
        "phase": record.phase,
        "trigger": "",
        "owner": "",
        "axis": "",
        "group": record.group.name,
        "group_size": record.group.size,
        "message_bytes": message.bytes,
        "wire_bytes": wire_bytes(record.op, message.bytes, record.group.size),
        "dtype": "" if message.dtype is None else str(message.dtype).removeprefix("torch."),
        "shape": list(message.shape),
        "implicit": False,
        "cause": cause,
        "source": record.source,
        "is_async": record.is_async,
        "is_object": record.is_object,
        "batch": record.batch,
        "start": record.start if times is None else times[0],
        "end": record.end if times is None and record.switched_off else (None if times is None else times[1]),
    }


def _group(group: GroupInfo) -> dict[str, Any]:
    return {
        "group": group.name,
        "axis": "",
        "mesh": "",
        "ranks": list(group.ranks),
        "size": group.size,
        "backend": group.backend,
        "timing": group.timing,
    }
