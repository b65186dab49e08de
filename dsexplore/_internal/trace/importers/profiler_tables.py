"""Build the tables of a trace from one rank's profiler trace.

Phase, module and step of a collective are those of the ranges around its issue on the thread that issued it: calls of
modules on the Python stack (``nn.Module: Linear_3``), ranges that the program named with ``record_function``, steps of
the profiler, and autograd's nodes.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import polars as pl

from dsexplore._internal.trace import schema
from dsexplore._internal.trace.collectives import wire_bytes_if_known
from dsexplore._internal.trace.importers.event_kinds import Event
from dsexplore._internal.trace.importers.event_ranges import EventRanges, begin_of, end_of, thread_of
from dsexplore._internal.trace.importers.kernel_launches import is_on_cpu
from dsexplore._internal.trace.importers.profiler_calls import ProfilerCall, calls_of, communicates
from dsexplore._internal.trace.importers.profiler_file import ProfilerFile
from dsexplore._internal.trace.importers.profiler_groups import ProfilerGroups
from dsexplore._internal.trace.importers.profiler_messages import message_of
from dsexplore._internal.trace.importers.profiler_notes import notes_of, notes_on_sizes, notes_on_steps
from dsexplore._internal.trace.schema import Phase
from dsexplore._internal.trace.tables import Tables, TraceInfo

_MODULE = "nn.Module: "
_STEP = re.compile(r"ProfilerStep#(\d+)")
_FSDP = re.compile(r"FSDP::(\S+)(?: (?:for )?\(?([\w.\[\]-]+)\)?)?")
_OPTIMIZER = ("Optimizer.step", "optimizer_step")
_BACKWARD = ("autograd::engine::evaluate_function", "## backward")
_NOT_THE_PROGRAMS = (
    *("nccl:", "gloo:", "c10d::", "record_param_comms", "Optimizer.", "ProfilerStep", "autograd::", "FSDP::"),
)
"""Start of the names of ranges that torch names."""


class Place(NamedTuple):
    """The part of the program that issued a collective."""

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
        events: events of the trace.
        threads: threads that issued its collectives.
    """

    def __init__(self, events: Sequence[Event], threads: Collection[object]) -> None:
        ranges = [event for event in events if thread_of(event) in threads and _is_range(event)]
        self._ranges = EventRanges(ranges)
        self._has_modules = any(event["name"].startswith(_MODULE) for event in ranges)
        self._steps = _steps(events)

    @property
    def has_steps(self) -> bool:
        """True if the profiler marked steps."""
        return bool(self._steps)

    def of(self, moments: Sequence[tuple[object, float | None]]) -> list[Place]:
        """Return the `Place` of each moment.

        Args:
            moments: pairs of a thread, None if unknown, and a time in the file's microseconds, None for a time before
                the recording.
        """
        around = self._ranges.around([(thread, 0.0 if at is None else at) for thread, at in moments])
        places = []
        for (_, at), ranges in zip(moments, around, strict=True):
            names = [] if at is None else [event["name"] for event in ranges]
            places.append(self._in_step(_place(names, self._has_modules), at))
        return places

    def _in_step(self, place: Place, at: float | None) -> Place:
        """Return the place with its step, and with the phase of a moment outside all steps."""
        if not self._steps:
            return place
        first = self._steps[0]
        if at is None or at < first.begin:
            return place._replace(phase="start-up")
        step = self._steps[bisect_right(self._steps, at, key=lambda step: step.begin) - 1]
        phase = place.phase if at <= step.end else "between steps"
        return place._replace(step=step.number - first.number, phase=phase)


class _ProfiledStep(NamedTuple):
    begin: float
    """Start in the file's microseconds."""
    end: float
    number: int


def _steps(events: Iterable[Event]) -> list[_ProfiledStep]:
    """Return the steps that the profiler marked, in order of time.

    Marks of the GPU are copies of those of the CPU, and count only in a file without the latter.
    """
    on_cpu: list[_ProfiledStep] = []
    on_gpu: list[_ProfiledStep] = []
    for event in events:
        if event["name"].startswith("ProfilerStep#") and (match := _STEP.match(event["name"])):
            step = _ProfiledStep(begin=begin_of(event), end=end_of(event), number=int(match[1]))
            (on_cpu if is_on_cpu(event) else on_gpu).append(step)
    return sorted(on_cpu or on_gpu)


def _is_range(event: Event) -> bool:
    name, category = event["name"], str(event.get("cat", ""))
    return name.startswith((_MODULE, *_BACKWARD, *_OPTIMIZER)) or category == "user_annotation"


def _place(names: Sequence[str], has_modules: bool) -> Place:
    """Return the place inside the ranges of these names, outermost first; its step is 0.

    Args:
        names: names of the ranges.
        has_modules: True if the file has ranges of modules.
    """
    modules = tuple(name.removeprefix(_MODULE) for name in names if name.startswith(_MODULE))
    of_program = tuple(name for name in names if not name.startswith((_MODULE, *_NOT_THE_PROGRAMS, *_BACKWARD)))
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
    elif modules or any("forward" in name.lower() for name in of_program):
        phase = "forward"
    if not has_modules:
        modules = of_program
    return Place(step=0, phase=phase, modules=modules, names=of_program, owner=owner, cause=cause)


def tables_of_profile(trace: ProfilerFile, rank: int, world_size: int) -> Tables:
    """Build one rank's tables of collectives, modules and groups.

    Args:
        trace: file of that rank.
        rank: the rank.
        world_size: number of ranks of the job.
    """
    calls = [call for call in calls_of(trace) if communicates(call)]
    threads = {call.thread for call in calls if call.thread is not None}
    ranges, damaged = trace.ranges_on(threads)
    places = Places([*trace.events, *ranges], threads)
    places_of_calls = places.of([(call.thread, call.issued) for call in calls])
    groups = ProfilerGroups(trace, rank, world_size)
    events = schema.events_of(
        [
            {**_row(call, place, groups), "rank": rank, "seq": seq}
            for seq, (call, place) in enumerate(zip(calls, places_of_calls, strict=True))
        ]
    )
    notes = [
        *(notes_on_steps(calls, trace.file.name) if places.has_steps else ()),
        *notes_of(calls, trace, trace.damaged + damaged),
        *groups.notes(),
        *notes_on_sizes(events, trace.file.name),
    ]
    return Tables(
        events=events,
        modules=_modules(places_of_calls),
        groups=pl.DataFrame(list(groups.rows(calls)), schema=schema.GROUPS, orient="row"),
        info=TraceInfo(world_size=world_size, ranks=(rank,), notes=tuple(notes)),
    )


def _row(call: ProfilerCall, place: Place, groups: ProfilerGroups) -> dict[str, object]:
    """Return the row of `schema.EVENTS` for a collective, without ``rank`` and ``seq``."""
    group = groups.of(call)
    message = message_of(call, group.size)
    trigger = ".".join(place.modules)
    peer = None
    if call.op in ("send", "recv"):
        stated = call.arguments.get("Dst Rank" if call.op == "send" else "Src Rank")
        peer = _member(stated, group.ranks, groups.world_size)
    cause = place.cause
    if not cause and place.names and place.names != place.modules:
        cause = place.names[-1]
    return {
        **schema.IMPORTED_EVENT,
        "step": place.step,
        "op": call.op,
        "raw_op": call.raw_op,
        "phase": place.phase,
        "trigger": trigger,
        "owner": place.owner or trigger,
        "axis": group.axis,
        "group": group.name,
        "group_size": group.size or 1,
        "message_bytes": message.message_bytes,
        "wire_bytes": wire_bytes_if_known(call.op, message.message_bytes, group.size),
        "dtype": message.dtype,
        "shape": [] if message.elements is None else [message.elements],
        "cause": cause,
        "peer": peer,
        "start": call.start,
        "end": call.end,
        "state": "" if call.end is None else "completed",
        "waited": call.exposed,
        "group_seq": _group_seq(call),
    }


def _group_seq(call: ProfilerCall) -> int | None:
    """Return NCCL's sequence number of a collective in its group, written since torch 2.7; None for send and recv."""
    number = call.arguments.get("Seq")
    return number if isinstance(number, int) and number >= 0 and call.op not in ("send", "recv") else None


def _member(peer: Any, ranks: Sequence[int], world_size: int) -> int | None:
    """Return the rank of a peer that a file states as a rank of the world or of the group; None if it is neither."""
    if not isinstance(peer, (int, str)) or not str(peer).isdecimal():
        return None
    rank = int(peer)
    if rank in ranks or (not ranks and rank < world_size):
        return rank
    return ranks[rank] if rank < len(ranks) else None


def _modules(places: Iterable[Place]) -> pl.DataFrame:
    """Build the table of the modules in which collectives were issued, and the modules around them."""
    rows: dict[str, tuple[str, str, str, int, int]] = {}
    for place in places:
        if place.owner:
            rows.setdefault(place.owner, (place.owner, "", "", 0, 0))
        for depth, module in enumerate(place.modules):
            path, parent = ".".join(place.modules[: depth + 1]), ".".join(place.modules[:depth])
            kind = module.rpartition("_")[0] or module  # the profiler writes Linear_3
            rows.setdefault(path, (path, parent, kind, depth, 0))
    return pl.DataFrame(sorted(rows.values()), schema=schema.MODULES, orient="row")
