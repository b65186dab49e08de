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
from dsexplore.trace.tables import Tables, TraceInfo
from dsexplore.trace.trace import Trace

_NOTE = "From the log of dsexplore.comm: calls made through it; modules, mesh axes and DTensor causes are not known."


def to_trace(records: Sequence[Record], epoch: int) -> Trace:
    """One rank's log, which is in program order, as a trace; ops that failed or were not seen to end have no end.

    Args:
        records: the log.
        epoch: what to add to its clock for nanoseconds since the Unix epoch.
    """
    rank, world_size = (td.get_rank(), td.get_world_size()) if is_initialized() else (0, 1)
    rows = [_event(seq, record, rank, epoch) for seq, record in enumerate(records)]
    events = pl.DataFrame({name: [row[name] for row in rows] for name in schema.EVENTS}, schema=schema.EVENTS)
    groups = {record.group.name: record.group for record in records}
    info = TraceInfo(
        world_size=max(world_size, *(rank + 1 for group in groups.values() for rank in group.ranks), 1),
        ranks=(rank,),
        torch_version=torch.__version__,
        notes=(_NOTE,),
    )
    table = pl.DataFrame([_group(group) for group in groups.values()], schema=schema.GROUPS)
    return Trace(Tables(events=events, groups=table, info=info))


def _event(seq: int, record: Record, rank: int, epoch: int) -> dict[str, Any]:
    start, end = record.times or (record.start, record.end if record.switched_off else None)
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
        "message_bytes": record.bytes,
        "wire_bytes": wire_bytes(record.op, record.bytes, record.group.size),
        "dtype": "" if record.dtype is None else str(record.dtype).removeprefix("torch."),
        "shape": list(record.shape),
        "implicit": False,
        "cause": cause,
        "source": record.source,
        "is_async": record.is_async,
        "is_object": record.is_object,
        "batch": record.batch,
        "start": None if start is None else start + epoch,
        "end": None if end is None else end + epoch,
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
