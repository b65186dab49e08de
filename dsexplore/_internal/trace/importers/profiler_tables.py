"""The tables of a trace from one rank's profiler trace."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import polars as pl

from dsexplore._internal.trace import schema
from dsexplore._internal.trace.collectives import wire_bytes_if_known
from dsexplore._internal.trace.importers.event_kinds import Event
from dsexplore._internal.trace.importers.event_ranges import EventRanges, begin_of, end_of, thread_of
from dsexplore._internal.trace.importers.kernel_launches import is_on_cpu
from dsexplore._internal.trace.importers.profiler_calls import ProfilerCall, calls_of, is_a_call
from dsexplore._internal.trace.importers.profiler_file import ProfilerFile
from dsexplore._internal.trace.importers.profiler_groups import ProfilerGroups
from dsexplore._internal.trace.importers.profiler_messages import message_of
from dsexplore._internal.trace.importers.profiler_notes import notes_of, notes_on_sizes, notes_on_steps
from dsexplore._internal.trace.schema import Phase
from dsexplore._internal.trace.tables import Tables, TraceInfo

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

    step: int
    """The profiler's step, from 0, in which it was issued, or after which; 0 in a file without steps."""
    phase: Phase
    """``start-up`` before the first step, ``between steps`` after one has ended."""
    modules: tuple[str, ...]
    """The modules that were running, outermost first; in a file without modules, the ranges named by the program."""
    names: tuple[str, ...]
    """Names given by the program to the enclosing ranges, outermost first."""
    owner: str
    """The module that FSDP names; empty if none."""
    cause: str
    """FSDP's reason; empty if FSDP did not issue the collective."""


class Places:
    """The ranges of one trace on the threads that issued collectives, and its steps.

    Args:
        events: of the trace.
        threads: of its collectives.
    """

    def __init__(self, events: Iterable[Event], threads: Iterable[object]) -> None:
        wanted = set(threads)
        kept = [event for event in events if thread_of(event) in wanted and _is_range(event)]
        self._ranges = EventRanges(kept)
        self._has_modules = any(event["name"].startswith(_MODULE) for event in kept)
        self._steps = _steps(events)

    @property
    def has_steps(self) -> bool:
        """True if the profiler marked steps."""
        return bool(self._steps)

    def of(self, moments: Sequence[tuple[object, float | None]]) -> list[Place]:
        """Return the `Place` of each moment.

        Args:
            moments: pairs of a thread, None if unknown, and a time in the file's microseconds, None for one before the
                recording.
        """
        around = self._ranges.around([(thread, at) for thread, at in moments if at is not None])
        names = iter(around)
        return [
            self._place(tuple(event["name"] for event in next(names)) if at is not None else (), at)
            for _, at in moments
        ]

    def _place(self, names: tuple[str, ...], at: float | None) -> Place:
        place = _place(names, self._has_modules)
        if not self._steps:
            return place
        if at is None or at < self._steps[0][0]:
            return place._replace(phase="start-up")
        begins = [begin for begin, _, _ in self._steps]
        _, end, number = self._steps[bisect_right(begins, at) - 1]
        return place._replace(step=number - self._steps[0][2], phase=place.phase if at <= end else "between steps")


def _steps(events: Iterable[Event]) -> list[tuple[float, float, int]]:
    """Return begin, end and number of each step that the profiler marked, in order of time.

    The marks of the CPU count; those of the GPU, which are copies of them, only where a file has no others.
    """
    on_cpu, on_gpu = list[tuple[float, float, int]](), list[tuple[float, float, int]]()
    for event in events:
        if event["name"].startswith("ProfilerStep#") and (match := _STEP.match(event["name"])):
            step = begin_of(event), end_of(event), int(match[1])
            (on_cpu if is_on_cpu(event) else on_gpu).append(step)
    return sorted(on_cpu or on_gpu)


def _is_range(event: Event) -> bool:
    name, category = event["name"], str(event.get("cat", ""))
    return name.startswith((_MODULE, *_BACKWARD, *_OPTIMIZER)) or category == "user_annotation"


def _place(names: Sequence[str], has_modules: bool) -> Place:
    modules = tuple(name.removeprefix(_MODULE) for name in names if name.startswith(_MODULE))
    modules_named = tuple(name for name in names if not name.startswith((_MODULE, *_NOT_THE_PROGRAMS, *_BACKWARD)))
    is_backward = any(name.startswith(_BACKWARD) for name in names)
    owner, cause = "", ""
    for name in names:
        if match := _FSDP.match(name):
            owner, cause = match[2] or owner, f"FSDP {match[1]}"
            is_backward = is_backward or "backward" in match[1]
    phase: Phase = "other"
    if any(name.startswith(_OPTIMIZER) for name in names):
        phase = "optimizer"
    elif is_backward:
        phase = "recompute" if modules else "backward"
    elif modules or any("forward" in name.lower() for name in modules_named):
        phase = "forward"
    if not has_modules:
        modules = modules_named
    return Place(step=0, phase=phase, modules=modules, names=modules_named, owner=owner, cause=cause)


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
    queued = notes_on_steps(calls, trace.file.name) if places.has_steps else ()
    notes = [
        *queued,
        *notes_of(calls, trace, trace.damaged + damaged),
        *named.notes(),
        *notes_on_sizes(events, trace.file.name),
    ]
    return Tables(
        events=events,
        modules=_modules(where),
        groups=pl.DataFrame(list(named.rows(calls)), schema=schema.GROUPS, orient="row"),
        info=TraceInfo(world_size=world_size, ranks=(rank,), notes=tuple(notes)),
    )


def _events(rows: Sequence[tuple[Any, ...]]) -> pl.DataFrame:
    """Build the events table; each row's shape is a number of elements, because lists are slow to read one by one."""
    flat = pl.DataFrame(rows, schema={**schema.EVENTS, "shape": pl.Int64()}, orient="row")
    shape = pl.col("shape").reshape((-1, 1)).cast(schema.EVENTS["shape"]).list.drop_nulls()
    return flat.with_columns(shape=shape)


def _row(rank: int, position: int, call: ProfilerCall, place: Place, groups: ProfilerGroups) -> tuple[Any, ...]:
    name, axis, ranks, size = groups.of(call)
    sent, dtype, elements = message_of(call, size)
    trigger = ".".join(place.modules)
    peer = call.arguments.get("Dst Rank" if call.op == "send" else "Src Rank") if call.op in ("send", "recv") else None
    cause = place.cause or (place.names[-1] if place.names and place.names != place.modules else "")
    return (
        *(rank, place.step, position, call.op, call.raw_op, place.phase, trigger, place.owner or trigger, axis),
        *(name, size or 1, sent, wire_bytes_if_known(call.op, sent, size), dtype, elements, False),
        *(cause, "", True, False, None, _member(peer, ranks, groups.world_size), None, None, None),
        *(call.start, call.end, "completed" if call.end is not None else ""),
        call.exposed,
        _group_seq(call),
        None,
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
