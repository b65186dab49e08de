"""Find the collectives in one rank's profiler trace: GPU kernels and gloo's works, or else the ops that issued them.

The collective of a kernel is read, in this order, from its own arguments, from the events around its launch on the CPU
(`trace.importers.kernel_launches`), and from its name. The name alone is not enough: AMD's library has one kernel for
all collectives (``ncclDevKernel_Generic``).
"""

from __future__ import annotations

import ast
import math
import re
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, islice
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from dsexplore._internal.trace.importers.communication_kernels import kind_of_kernel, short_name
from dsexplore._internal.trace.importers.event_kinds import Event, is_kernel
from dsexplore._internal.trace.importers.event_ranges import EventRanges, begin_of, end_of, thread_of
from dsexplore._internal.trace.importers.kernel_launches import (
    BACKENDS_RANGE,
    DESCRIPTION,
    Launch,
    arguments_of,
    is_on_cpu,
    launches_of,
)
from dsexplore._internal.trace.importers.op_names import plain_dtype, plain_op
from dsexplore._internal.trace.importers.profiler_file import ProfilerFile

Times = npt.NDArray[np.float64]

_MOST_US = 1 << 52
"""Largest time or duration in microseconds; a larger one is damage."""


class ComputeTime:
    """The compute kernels in one file, by GPU, to compute how long collectives are exposed.

    Worked example: kernels compute from 0 to 10 µs and, on another stream, from 5 to 20 µs. A collective from 15 to
    30 µs overlaps with 5 µs of computation, and is exposed for the other 10, in which its GPU computed nothing.

    Args:
        kernels: compute kernels with ``pid`` (the GPU's number, as text), ``ts`` and ``dur`` in microseconds; rows with
            a null are omitted.
    """

    def __init__(self, kernels: pl.DataFrame) -> None:
        possible = pl.col("ts").abs().lt(_MOST_US) & pl.col("dur").is_between(0, _MOST_US)
        kernels = kernels.cast({"ts": pl.Float64, "dur": pl.Float64}).drop_nulls().filter(possible)
        devices = kernels.partition_by("pid", as_dict=True, include_key=False)
        self._devices = {device: _covered(of_device.to_numpy()) for (device,), of_device in devices.items()}

    def exposed(self, events: Sequence[Event]) -> list[int | None]:
        """Return the nanoseconds of each event during which its GPU computed nothing; None without compute kernels."""
        exposed_ns: list[int | None] = [None] * len(events)
        for device, compute in self._devices.items():
            on_device = [at for at, event in enumerate(events) if str(event.get("pid")) == device and _is_timed(event)]
            begin = np.array([float(events[at]["ts"]) for at in on_device])
            length = np.array([float(events[at]["dur"]) for at in on_device])
            overlapped = np.interp(begin + length, *compute) - np.interp(begin, *compute)
            nanoseconds_alone = np.rint((length - overlapped) * 1_000).clip(min=0)
            for at, exposed in zip(on_device, nanoseconds_alone.astype(np.int64).tolist(), strict=True):
                exposed_ns[at] = exposed
        return exposed_ns


def _covered(spans: Times) -> tuple[Times, Times]:
    """Return moments, and the total compute time before each; it is linear between moments and constant outside.

    Args:
        spans: begin and duration of each kernel, shape (kernels, 2).
    """
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    begin, end = spans[:, 0], np.maximum.accumulate(spans.sum(axis=1))
    is_first = np.append(True, begin[1:] > end[:-1])
    begins = begin[is_first]
    ends = end[np.append(is_first[1:], True)]
    lengths = ends - begins
    total = np.cumsum(lengths)
    return np.stack([begins, ends], axis=1).ravel(), np.stack([total - lengths, total], axis=1).ravel()


_C10D = re.compile(r"c10d::_?(\w+?)_?$")
_LISTS = ("TensorList", "GenericList")
_SILENT_OPS = frozenset({"wait", "init", "destroy", "split", "startcoalescing", "endcoalescing", "coalesced"})
"""Names that are recorded as those of collectives and send nothing."""


@dataclass(frozen=True, slots=True)
class ProfilerCall:
    """One collective of a profiled rank."""

    op: str
    """Plain name; ``unknown:<kernel>`` for an unknown kernel that communicates."""
    raw_op: str
    """Name of the kernel, op or work in the file."""
    start: int
    """Start in nanoseconds since the epoch."""
    end: int | None
    """End in nanoseconds since the epoch; None if the file has no measurement of it."""
    arguments: Mapping[str, Any]
    """``Collective name``, ``In msg nelems``, … of the kernel, else of the op that issued it; empty in old files."""
    tensors: tuple[tuple[int, str], ...]
    """(number of elements, dtype) of each input tensor of the op in `tensors_of`; empty if unknown."""
    thread: object
    """The thread that issued the collective; None if its launch is unknown."""
    issued: float | None
    """Time of issue, in the file's microseconds; None if it was queued before the recording began."""
    tensors_of: str = ""
    """Name of the op or range that has the tensors: ``c10d::allreduce_``, ``nccl:all_reduce``."""
    is_kernel: bool = False
    """True if it was measured on a GPU."""
    exposed: int | None = None
    """Nanoseconds of the collective in which its GPU computed nothing; None if the file has no compute kernels."""


def calls_of(trace: ProfilerFile) -> list[ProfilerCall]:
    """Return the collectives in the order in which they began."""
    kernels = [event for event in trace.events if is_kernel(str(event.get("cat", "")))]
    exposed_ns = ComputeTime(trace.kernels).exposed(kernels)
    launches = launches_of(trace, kernels)
    on_gpu = [
        _kernel_call(kernel, exposed, launch, trace.base)
        for kernel, exposed, launch in zip(kernels, exposed_ns, launches, strict=True)
    ]
    on_cpu = [call for call in _cpu_calls(trace) if not on_gpu or call.end is not None]
    return sorted([*on_gpu, *on_cpu], key=lambda call: call.start)


def _is_timed(event: Event) -> bool:
    """Return True if start and duration of an event are possible."""
    return abs(float(event["ts"])) < _MOST_US and 0 <= float(event.get("dur", -1)) < _MOST_US


def _kernel_call(event: Event, exposed: int | None, launch: Launch, base: int) -> ProfilerCall:
    """Return the collective of a kernel.

    Args:
        event: the kernel.
        exposed: nanoseconds in which its GPU computed nothing; None if unknown.
        launch: launch of the kernel.
        base: origin of the file's times, in nanoseconds since the epoch.
    """
    arguments = arguments_of(event)
    if "Collective name" not in arguments:
        described = (arguments_of(op) for op in launch.ops)
        arguments = {**next((named for named in described if "Collective name" in named), {}), **arguments}
    tensors, of = _first_tensors(launch.ops)
    return ProfilerCall(
        op=_op(event["name"], arguments, launch.ops),
        raw_op=short_name(event["name"]),
        start=nanoseconds(event["ts"], base),
        end=_end_of(event, base),
        arguments=arguments,
        tensors=tensors,
        thread=launch.thread,
        issued=launch.when,
        tensors_of=of,
        is_kernel=True,
        exposed=exposed,
    )


def nanoseconds(microseconds: Any, base: int) -> int:
    """Convert a time of the file to ns since the epoch, whole and fractional microseconds apart so that it is exact."""
    time = microseconds if isinstance(microseconds, int) else float(microseconds)
    whole = int(time)
    return base + whole * 1_000 + round((time - whole) * 1_000)


def _op(kernel: str, arguments: Mapping[str, Any], ops: Iterable[Event]) -> str:
    """Return the plain name of a kernel's collective, ``unknown:…`` if neither arguments, ops nor names tell it."""
    names = [str(arguments.get("Collective name") or arguments.get("func") or "")]
    names += [_op_name(event) for event in ops]
    for name in names:
        if name and not (op := plain_op(name)).startswith("unknown:"):
            return op
    kind = kind_of_kernel(kernel) or next((kind for event in ops if (kind := kind_of_kernel(event["name"]))), "")
    return kind or f"unknown:{short_name(kernel)}"


def _op_name(event: Event) -> str:
    """Return the name of the collective from the name of c10d's op or of a backend's range."""
    name = event["name"]
    return BACKENDS_RANGE.sub("", _C10D.sub(r"\1", name)).partition(" ")[0]


def _first_tensors(ops: Iterable[Event], works: Iterable[Event] = ()) -> tuple[tuple[tuple[int, str], ...], str]:
    """Return (elements, dtype) of the input tensors of an op that describes a collective, and the op's name.

    The tensors of c10d's or a library's op are preferred: a description and a backend's range have only inputs, but
    also the dtypes of lists.

    Args:
        ops: events that describe one collective.
        works: gloo works that run it; only a dtype is read from them.
    """
    described = [(tensors, event["name"]) for event in ops if (tensors := _tensors(event))]
    if not described:
        return (), ""
    tensors, name = next((pair for pair in described if "::" in pair[1]), described[0])
    all_tensors = chain.from_iterable([*(of_op for of_op, _ in described), *map(_tensors, works)])
    known_dtype = next((dtype for _, dtype in all_tensors if dtype), "")
    return tuple((elements, dtype or known_dtype) for elements, dtype in tensors), name


def _tensors(op: Event) -> tuple[tuple[int, str], ...]:
    """Return the number of elements and the dtype of each tensor among an op's inputs."""
    arguments = arguments_of(op)
    shapes, types = arguments.get("Input Dims") or (), arguments.get("Input type") or ()
    tensors = []
    for shape, kind in zip(shapes, types, strict=False):
        if not isinstance(shape, list) or kind in ("", "Scalar", "ScalarList") or (not shape and kind in _LISTS):
            continue
        parts = shape if shape and isinstance(shape[0], list) else [shape]
        if all(isinstance(size, (int, float)) and size >= 0 for part in parts for size in part):
            dtype = "" if kind in _LISTS else plain_dtype(str(kind))
            tensors.append((sum(math.prod(map(int, part)) for part in parts), dtype))
    return tuple(tensors)


def _cpu_calls(trace: ProfilerFile) -> Iterable[ProfilerCall]:
    """Yield the collectives on the CPU: c10d's ops with the end of their gloo works, and gloo works without an op.

    Files of old versions have works without an op.
    """
    issued = sorted((event for event in trace.events if event["name"].startswith("c10d::")), key=begin_of)
    described = _described_once(event for event in trace.events if event["name"] == DESCRIPTION)
    inside = EventRanges([*described, *(event for event in trace.events if _is_backends_range(event))])
    works = _Works(event for event in trace.events if event["name"].startswith("gloo:"))
    ranks = int(trace.distributed.get("world_size") or 1)
    for event in issued:
        op = plain_op(_C10D.sub(r"\1", event["name"]))
        if op.startswith("unknown:"):
            continue
        works_of_op = works.take(op, event, ranks)
        within = inside.within(event)
        tensors, of = _first_tensors([event, *within], works_of_op)
        yield ProfilerCall(
            op=op,
            raw_op=event["name"],
            start=nanoseconds(event["ts"], trace.base),
            end=_last([_end_of(work, trace.base) for work in works_of_op]),
            arguments=next((arguments_of(inner) for inner in within if inner["name"] == DESCRIPTION), {}),
            tensors=tensors,
            thread=thread_of(event),
            issued=begin_of(event),
            tensors_of=of,
        )
    remaining = works.remaining()
    yield from (_work_call(work, trace.base) for work in remaining)
    if not issued and not remaining:
        named = [event for event in described if "Collective name" in arguments_of(event) or _ranges_in(inside, event)]
        yield from (_described(event, inside, trace.base) for event in named or described)


def _ranges_in(ranges: EventRanges, event: Event) -> list[Event]:
    """Return the ranges inside an event that are not descriptions of collectives."""
    return [inner for inner in ranges.within(event) if inner["name"] != DESCRIPTION]


def _is_backends_range(event: Event) -> bool:
    return is_on_cpu(event) and BACKENDS_RANGE.match(event["name"]) is not None


class _Works:
    """Gloo works that are not yet assigned to an op; an op's works begin after it, and works of one kind in order."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._waiting: dict[str, deque[Event]] = defaultdict(deque)
        for event in sorted((event for event in events if is_on_cpu(event)), key=begin_of):
            self._waiting[plain_op(event["name"].removeprefix("gloo:"))].append(event)
        self._passed: list[Event] = []

    def take(self, op: str, event: Event, ranks: int) -> list[Event]:
        """Remove and return the works of an op; ops are given in the order of their issue.

        Gloo runs a reduce_scatter as one all_reduce, or as one per rank if the input is a list.
        """
        works = self._take_first(op, event, 1)
        if not works and op == "reduce_scatter":
            works = self._take_first("all_reduce", event, 1 if event["name"].endswith("base_") else ranks)
        return works

    def _take_first(self, op: str, event: Event, count: int) -> list[Event]:
        """Remove and return the first `count` works of a kind that began after an event and have one of its sizes."""
        works = self._waiting[op]
        while works and begin_of(works[0]) < begin_of(event):
            self._passed.append(works.popleft())
        sizes = {elements for elements, _ in _tensors(event)}
        fitting = [work for work in islice(works, 4 * count) if not sizes or op == "barrier" or _is_of(work, sizes)]
        for work in fitting[:count]:
            works.remove(work)
        return fitting[:count]

    def remaining(self) -> list[Event]:
        """Return the works that no op has taken."""
        return [*self._passed, *chain.from_iterable(self._waiting.values())]


def _is_of(work: Event, sizes: Collection[int]) -> bool:
    """Return True if the first tensor of a work has one of these numbers of elements, or the work has no tensors."""
    tensors = _tensors(work)
    return not tensors or tensors[0][0] in sizes


def _end_of(event: Event, base: int) -> int | None:
    """Return the end of an event in ns since the epoch; None if its duration is missing or negative."""
    length = nanoseconds(event.get("dur", -1), 0)
    return nanoseconds(event["ts"], base) + length if length >= 0 else None


def _last(ends: Sequence[int | None]) -> int | None:
    """Return the last of several ends; None if one is unknown, or there are none."""
    known = [end for end in ends if end is not None]
    return max(known) if known and len(known) == len(ends) else None


def _described_once(events: Iterable[Event]) -> list[Event]:
    """Return descriptions of collectives in order of time, without nested ones.

    torch 2.4 and later describe a call twice, in Python's function and in the backend.
    """
    distinct: list[Event] = []
    ends: dict[object, float] = {}
    for event in sorted((event for event in events if is_on_cpu(event)), key=begin_of):
        thread = thread_of(event)
        if begin_of(event) >= ends.get(thread, -math.inf):
            distinct.append(event)
            ends[thread] = end_of(event)
    return distinct


def _work_call(work: Event, base: int) -> ProfilerCall:
    """Return the collective of a gloo work whose op is not in the file."""
    return ProfilerCall(
        op=plain_op(work["name"].removeprefix("gloo:")),
        raw_op=work["name"],
        start=nanoseconds(work["ts"], base),
        end=_end_of(work, base),
        arguments={},
        tensors=_tensors(work),
        thread=thread_of(work),
        issued=begin_of(work),
        tensors_of=work["name"],
    )


def _described(event: Event, ranges: EventRanges, base: int) -> ProfilerCall:
    """Return the collective of a description; its duration is unknown, because the file has only its CPU part."""
    arguments = arguments_of(event)
    ops = [event, *_ranges_in(ranges, event)]
    tensors, of = _first_tensors(ops)
    return ProfilerCall(
        op=_op(str(arguments.get("Collective name") or event["name"]), arguments, ops),
        raw_op=event["name"],
        start=nanoseconds(event["ts"], base),
        end=None,
        arguments=arguments,
        tensors=tensors,
        thread=thread_of(event),
        issued=begin_of(event),
        tensors_of=of,
    )


@cache
def _literal(text: str) -> Any:
    """Return the value of a literal of Python; None for any other text, as of a damaged file."""
    try:
        return ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def communicates(call: ProfilerCall) -> bool:
    """Return True if the call communicates; waits and the ends of coalesced calls are recorded too and do not."""
    return call.op.removeprefix("unknown:").lower() not in _SILENT_OPS


def listed(value: Any) -> tuple[int, ...] | None:
    """Parse numbers from a list or a text, ``"[0, 1]"``; None if the text is cut, ``"[0, 1, ...]"``, or not a list."""
    parsed = _literal(value) if isinstance(value, str) else value
    if not isinstance(parsed, (list, tuple)) or not all(isinstance(number, int) for number in parsed):
        return None
    return tuple(parsed)
