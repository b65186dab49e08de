"""Traces of a few events, written down or simulated, for what is said of them."""

from __future__ import annotations

from typing import Any

import polars as pl
import torch
import torch.distributed as dist

import dsexplore
from dsexplore._internal.trace import schema
from dsexplore._internal.trace.tables import Tables, TraceInfo
from dsexplore._internal.trace.trace import Trace


def row(seq: int, **columns: Any) -> dict[str, Any]:
    """Return an event of a Trace: an all_reduce of module ``Net.a`` over axis tp, but for the given columns."""
    plain = {
        "rank": 0, "step": 0, "seq": seq, "op": "all_reduce", "phase": "forward", "trigger": "", "owner": "Net.a",
        "axis": "tp", "group": "g", "group_size": 4, "message_bytes": 1024, "wire_bytes": 1536, "implicit": False,
        "cause": "", "source": "train.py:3", "is_async": False, "is_object": False,
    }  # fmt: skip
    return {name: {**plain, **columns}.get(name) for name in schema.EVENTS}


def trace_of(*rows: dict[str, Any], stands_for: tuple[str, ...] = ()) -> Trace:
    """Return a trace with these events, of a world of eight ranks."""
    ranks = tuple(sorted({each["rank"] for each in rows}))
    info = TraceInfo(world_size=8, ranks=ranks, stands_for=stands_for)
    return Trace(Tables(pl.DataFrame(rows, schema=schema.EVENTS), info=info))


def two_messages(rank: int) -> Trace:
    """Return what one simulated rank of two records where rank 0 sends twice and rank 1 receives twice."""
    with dsexplore.simulate(2, rank=rank), dsexplore.commtrace() as trace:
        for _ in range(2):
            if rank == 0:
                dist.send(torch.ones(1), 1)
            else:
                dist.recv(torch.ones(1), 0)
    return trace
