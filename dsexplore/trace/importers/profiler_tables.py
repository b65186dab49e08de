"""The tables of a trace from one rank's profiler trace."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import polars as pl
import torch

from dsexplore.trace import schema
from dsexplore.trace.collectives import wire_bytes
from dsexplore.trace.importers.op_names import dtype_in_kernel, plain_dtype
from dsexplore.trace.importers.profiler_calls import ProfilerCall, calls_of, is_a_call
from dsexplore.trace.importers.profiler_file import ProfilerFile
from dsexplore.trace.importers.profiler_groups import ProfilerGroups
from dsexplore.trace.importers.profiler_places import Place, Places
from dsexplore.trace.tables import Tables, TraceInfo
from dsexplore.trace.unknown_sizes import HAS_UNKNOWN_DTYPE, IS_UNSIZED

_IN_WHOLE = ("all_reduce", "broadcast", "reduce", "send", "recv")


def tables_of_profile(trace: ProfilerFile, rank: int, world_size: int) -> Tables:
    """Build one rank's tables of collectives, modules and groups.

    Args:
        trace: of that rank.
        rank: its number.
        world_size: of the job.
    """
    calls = [call for call in calls_of(trace) if is_a_call(call)]
    threads = {call.thread for call in calls if call.thread is not None}
    ranges, damaged = trace.ranges_on(threads)
    places = Places([*trace.events, *ranges], threads)
    where = places.of([(call.thread, call.issued) for call in calls])
    named = ProfilerGroups(trace, rank, world_size)
    rows = [_row(rank, i, call, place, named) for i, (call, place) in enumerate(zip(calls, where, strict=True))]
    events = _events(rows) if rows else schema.empty("events")
    notes = [*_notes(calls, trace, trace.damaged + damaged), *named.notes(), *_unknown_sizes(events, trace)]
    return Tables(
        events=events,
        modules=_modules(where),
        groups=pl.DataFrame(list(named.rows(calls)), schema=schema.GROUPS, orient="row"),
        info=TraceInfo(world_size=world_size, ranks=(rank,), notes=tuple(notes)),
    )


def _notes(calls: Sequence[ProfilerCall], trace: ProfilerFile, damaged: int) -> Iterable[str]:
    unknown = list(dict.fromkeys(call.op.removeprefix("unknown:") for call in calls if call.op.startswith("unknown:")))
    for kernel in unknown[:8]:
        count = sum(call.op == f"unknown:{kernel}" for call in calls)
        yield f"{kernel} communicates, but the trace does not say what: {count:,} calls of unknown kind and size"
    if not calls:
        yield f"{trace.file.name} has no collectives: was it recorded with ProfilerActivity.CUDA, or with gloo?"
    elif all(call.end is None for call in calls):
        yield f"{trace.file.name} has no kernels: its collectives have no durations"
    if damaged:
        yield f"{trace.file.name}: {damaged:,} events are damaged, and left out"


def _unknown_sizes(events: pl.DataFrame, trace: ProfilerFile) -> Iterable[str]:
    """Yield notes on collectives of known kind whose size or dtype is unknown, so that they count as 0 bytes."""
    described = ~pl.col("op").str.starts_with("unknown:")
    unsized, untyped = events.filter(described & IS_UNSIZED), events.filter(described & HAS_UNKNOWN_DTYPE)
    for found, what in ((unsized, "size"), (untyped, "dtype")):
        if len(found):
            many = f"{len(found):,} of its collectives"
            yield f"{trace.file.name} does not say the {what} of {many}: they count as 0 bytes"


def _events(rows: Sequence[tuple[Any, ...]]) -> pl.DataFrame:
    """Build the events table; each row's shape is a number of elements, because lists are slow to read one by one."""
    flat = pl.DataFrame(rows, schema={**schema.EVENTS, "shape": pl.Int64()}, orient="row")
    shape = pl.col("shape").reshape((-1, 1)).cast(schema.EVENTS["shape"]).list.drop_nulls()
    return flat.with_columns(shape=shape)


def _row(rank: int, position: int, call: ProfilerCall, place: Place, groups: ProfilerGroups) -> tuple[Any, ...]:
    name, axis, ranks, size = groups.of(call)
    sent, dtype, elements = _message(call, size)
    trigger = ".".join(place.modules)
    peer = call.arguments.get("Dst Rank" if call.op == "send" else "Src Rank") if call.op in ("send", "recv") else None
    cause = place.cause or (place.names[-1] if place.names and place.names != place.modules else "")
    return (
        *(rank, place.step or 0, position, call.op, call.raw_op, place.phase, trigger, place.owner or trigger, axis),
        *(name, size, sent, wire_bytes(call.op, sent, size), dtype, elements or None, False),
        *(cause, "", True, False, None, _member(peer, ranks), None, None, None),
        *(call.start, call.end, "completed" if call.end is not None else ""),
        call.exposed,
        _group_seq(call),
    )


def _group_seq(call: ProfilerCall) -> int | None:
    """Return NCCL's sequence number of a collective in its group, written since torch 2.7; None for send and recv."""
    number = call.arguments.get("Seq")
    return number if isinstance(number, int) and number >= 0 and call.op not in ("send", "recv") else None


def _member(peer: Any, ranks: Sequence[int]) -> int | None:
    if not isinstance(peer, (int, str)) or not str(peer).isdigit():
        return None
    place = int(peer)
    return place if not ranks or place in ranks else ranks[place] if place < len(ranks) else None


def _message(call: ProfilerCall, size: int) -> tuple[int, str, int]:
    """Return message bytes, dtype and number of elements, from the arguments or the launching op's tensors.

    All are 0 or empty if neither has them.
    """
    if call.op == "barrier":
        return 0, "", 0
    dtype = plain_dtype(str(call.arguments.get("dtype", ""))) or next((kind for _, kind in call.tensors if kind), "")
    dtype = dtype or dtype_in_kernel(call.raw_op)
    ins, outs = (int(call.arguments.get(f"{way} msg nelems") or 0) for way in ("In", "Out"))
    if ins < 0 or outs < 0:
        ins = outs = 0  # more elements than torch's 32 bits count
    if not ins and not outs:
        elements = max((count for count, _ in call.tensors), default=0)
        if _gives_its_own_part(call):
            elements *= size  # lists of all ranks' parts are not in the file
    elif call.op == "all_gather":
        elements = max(outs, ins * size)
    elif call.op == "reduce_scatter":
        elements = max(ins, outs * size)
    elif call.op in ("gather", "scatter"):
        elements = (ins if call.op == "gather" else outs) * size
    else:
        elements = (ins or outs) if call.op in _IN_WHOLE else max(ins, outs)
    return elements * _width(dtype), dtype, elements


@cache
def _width(dtype: str) -> int:
    """Return the bytes of one element; 0 for a dtype that torch does not have."""
    kind = getattr(torch, dtype, None)
    return kind.itemsize if isinstance(kind, torch.dtype) else 0


def _gives_its_own_part(call: ProfilerCall) -> bool:
    """Return True if the op's tensors are one rank's part of a larger message."""
    if call.raw_op.startswith("gloo:"):
        return call.op in ("all_gather", "gather")
    in_lists = ("all_gather", "gather", "reduce_scatter", "scatter")
    return call.raw_op.startswith("c10d::") and not call.raw_op.endswith("base_") and call.op in in_lists


def _modules(places: Iterable[Place]) -> pl.DataFrame:
    """Build the table of the modules in which collectives were issued, and the modules around them."""
    rows: dict[str, tuple[str, str, str, int, int]] = {}
    for place in places:
        if place.owner:
            rows.setdefault(place.owner, (place.owner, "", "", 0, 0))
        for depth, module in enumerate(place.modules):
            path, parent = ".".join(place.modules[: depth + 1]), ".".join(place.modules[:depth])
            rows.setdefault(path, (path, parent, module.rpartition("_")[0] or module, depth, 0))
    return pl.DataFrame(sorted(rows.values()), schema=schema.MODULES, orient="row")
