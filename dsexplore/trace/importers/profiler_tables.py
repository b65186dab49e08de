"""The tables of a trace from one rank's profiler trace."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import polars as pl
import torch

from dsexplore.trace import schema
from dsexplore.trace.collectives import wire_bytes
from dsexplore.trace.importers.op_names import dtype_in_kernel, plain_dtype
from dsexplore.trace.importers.profiler_calls import ProfilerCall, calls_of, is_a_call
from dsexplore.trace.importers.profiler_file import Event, ProfilerFile
from dsexplore.trace.importers.profiler_groups import ProfilerGroups
from dsexplore.trace.limits import MOST_ELEMENTS
from dsexplore.trace.schema import Phase
from dsexplore.trace.tables import Tables, TraceInfo
from dsexplore.trace.unknown_sizes import HAS_UNKNOWN_DTYPE, IS_UNSIZED

# Where in the program a profiled rank was: the ranges around a moment on the thread that issued a collective.
#
# Ranges are the calls of modules on the Python stack (``nn.Module: Linear_3``), what the program named with
# ``record_function``, steps of the profiler, and autograd's nodes.

_MODULE = "nn.Module: "
_STEP = re.compile(r"ProfilerStep#(\d+)")
_FSDP = re.compile(r"FSDP::(\S+)(?: (?:for )?\(?([\w.\[\]-]+)\)?)?")
_OPTIMIZER = ("Optimizer.step", "optimizer_step")
_BACKWARD = ("autograd::engine::evaluate_function", "## backward")
_NOT_THE_PROGRAMS = (
    "nccl:",
    "gloo:",
    "c10d::",
    "record_param_comms",
    "Optimizer.",
    "ProfilerStep",
    "autograd::",
    "FSDP::",
)


class Place(NamedTuple):
    """Where a collective was issued."""

    step: int | None
    phase: Phase
    modules: tuple[str, ...]
    """The modules that were running, outermost first; in a file without modules, the ranges named by the program."""
    names: tuple[str, ...]
    """Names given by the program to the enclosing ranges, outermost first."""
    owner: str
    """The module that FSDP names; empty if none."""
    cause: str
    """FSDP's reason; empty if FSDP did not issue the collective."""


@dataclass(frozen=True, slots=True)
class _Range:
    start: float
    end: float
    name: str


class Places:
    """The ranges of one trace on the threads that issued collectives.

    Args:
        events: of the trace.
        threads: of its collectives.
    """

    def __init__(self, events: Iterable[Event], threads: Iterable[object]) -> None:
        wanted = set(threads)
        self._ranges: dict[object, list[_Range]] = defaultdict(list)
        self._steps: list[tuple[float, float, int]] = []
        self._has_modules = False
        for event in events:
            name = event["name"]
            if name.startswith("ProfilerStep#") and (found := _STEP.match(name)):
                start = float(event["ts"])
                self._steps.append((start, start + float(event.get("dur", 0)), int(found[1])))
            elif (thread := (event.get("pid"), event.get("tid"))) in wanted and _is_range(event):
                start = float(event["ts"])
                self._has_modules = self._has_modules or name.startswith(_MODULE)
                self._ranges[thread].append(_Range(start, start + float(event.get("dur", 0)), name))
        self.first_step = min((step for *_, step in self._steps), default=0)

    def of(self, moments: Sequence[tuple[object, float]]) -> list[Place]:
        """Return the `Place` of each moment.

        Args:
            moments: pairs of a thread, None if unknown, and a time in the file's microseconds.
        """
        by_thread: dict[object, list[int]] = defaultdict(list)
        for i, (thread, _) in enumerate(moments):
            by_thread[thread].append(i)
        places: list[Place] = [Place(self._step(at), "other", (), (), "", "") for _, at in moments]
        for thread, wanted in by_thread.items():
            wanted.sort(key=lambda i: moments[i][1])
            around = _around(self._ranges.get(thread, []), [moments[i][1] for i in wanted])
            for i, names in zip(wanted, around, strict=True):
                places[i] = _place(names, places[i].step, self._has_modules)
        return places

    def _step(self, at: float) -> int | None:
        return next((step - self.first_step for start, end, step in self._steps if start <= at <= end), None)


def _is_range(event: Event) -> bool:
    name, category = event["name"], str(event.get("cat", ""))
    return name.startswith((_MODULE, *_BACKWARD, *_OPTIMIZER)) or category == "user_annotation"


def _around(ranges: list[_Range], moments: Sequence[float]) -> list[tuple[str, ...]]:
    """Return for each moment the names of the enclosing ranges, outermost first; `moments` must be sorted."""
    ranges.sort(key=lambda one: (one.start, -one.end))
    found, open_ranges, following = [], list[_Range](), 0
    for at in moments:
        while following < len(ranges) and ranges[following].start <= at:
            open_ranges = [one for one in open_ranges if one.end >= ranges[following].start]
            open_ranges.append(ranges[following])
            following += 1
        open_ranges = [one for one in open_ranges if one.end >= at]
        found.append(tuple(one.name for one in open_ranges))
    return found


def _place(names: Sequence[str], step: int | None, has_modules: bool) -> Place:
    modules = tuple(name.removeprefix(_MODULE) for name in names if name.startswith(_MODULE))
    own = tuple(name for name in names if not name.startswith((_MODULE, *_NOT_THE_PROGRAMS, *_BACKWARD)))
    is_backward = any(name.startswith(_BACKWARD) for name in names)
    owner, cause = "", ""
    for name in names:
        if found := _FSDP.match(name):
            owner, cause = found[2] or owner, f"FSDP {found[1]}"
            is_backward = is_backward or "backward" in found[1]
    phase: Phase = "other"
    if any(name.startswith(_OPTIMIZER) for name in names):
        phase = "optimizer"
    elif is_backward:
        phase = "recompute" if modules else "backward"
    elif modules or any("forward" in name.lower() for name in own):
        phase = "forward"
    if not has_modules:
        modules = own
    return Place(step, phase, modules, own, owner, cause)


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
        *(cause, "", True, False, None, _member(peer, ranks, groups.world_size), None, None, None),
        *(call.start, call.end, "completed" if call.end is not None else ""),
        call.exposed,
        _group_seq(call),
    )


def _group_seq(call: ProfilerCall) -> int | None:
    """Return NCCL's sequence number of a collective in its group, written since torch 2.7; None for send and recv."""
    number = call.arguments.get("Seq")
    return number if isinstance(number, int) and number >= 0 and call.op not in ("send", "recv") else None


def _member(peer: Any, ranks: Sequence[int], world_size: int) -> int | None:
    """Return the rank that a file gives as a rank of the world, or as a place in the group; None if it is neither."""
    if not isinstance(peer, (int, str)) or not str(peer).isdecimal():
        return None
    place = int(peer)
    if place in ranks or (not ranks and place < world_size):
        return place
    return ranks[place] if place < len(ranks) else None


def _message(call: ProfilerCall, size: int) -> tuple[int, str, int]:
    """Return message bytes, dtype and number of elements, from the arguments or the launching op's tensors.

    All are 0 or empty if neither has them.
    """
    if call.op == "barrier":
        return 0, "", 0
    dtype = plain_dtype(str(call.arguments.get("dtype", ""))) or next((kind for _, kind in call.tensors if kind), "")
    dtype = dtype or dtype_in_kernel(call.raw_op)
    ins, outs = (int(call.arguments.get(f"{way} msg nelems") or 0) for way in ("In", "Out"))
    if not (0 <= ins <= MOST_ELEMENTS and 0 <= outs <= MOST_ELEMENTS):
        ins = outs = 0  # more elements than torch's 32 bits count
    if not ins and not outs:
        elements = max((count for count, _ in call.tensors if count <= MOST_ELEMENTS), default=0)
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
