"""The collectives of one rank's profiler trace: GPU kernels and gloo's works, or else the ops that issued them.

What a kernel does is read, in this order, from its own arguments, from what encloses its launch on the CPU
(`trace.importers.kernel_launches`), and from its name. AMD's library has one kernel for all collectives
(``ncclDevKernel_Generic``), whose name says nothing.
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
"""Microseconds, since the epoch or of a duration; more are damage."""


class ComputeTime:
    """The compute kernels in one file, by device: how long they ran while something else did.

    Worked example: kernels compute from 0 to 10 µs and, on another stream, from 5 to 20 µs. A collective from 15 to
    30 µs overlaps with 5 µs of computation, and is exposed for the other 10, in which nothing of the program ran.

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
            begin, took = (np.array([float(events[at][name]) for at in on_device]) for name in ("ts", "dur"))
            computed = np.interp(begin + took, *compute) - np.interp(begin, *compute)
            alone = np.rint((took - computed) * 1_000).clip(min=0)
            for at, exposed in zip(on_device, alone.astype(np.int64).tolist(), strict=True):
                exposed_ns[at] = exposed
        return exposed_ns


def _covered(spans: Times) -> tuple[Times, Times]:
    """Return moments, and the total compute time before each; linear between two moments, constant outside.

    Args:
        spans: of shape [kernels, 2], begin and duration.
    """
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    begin, end = spans[:, 0], np.maximum.accumulate(spans.sum(axis=1))
    is_first = np.append(True, begin[1:] > end[:-1])
    begins = begin[is_first]
    ends = end[np.append(is_first[1:], True)]
    long = ends - begins
    total = np.cumsum(long)
    return np.stack([begins, ends], axis=1).ravel(), np.stack([total - long, total], axis=1).ravel()


_C10D = re.compile(r"c10d::_?(\w+?)_?$")
_LISTS = ("TensorList", "GenericList")
_NOT_A_CALL = frozenset({"wait", "init", "destroy", "split", "startcoalescing", "endcoalescing", "coalesced"})


@dataclass(frozen=True, slots=True)
class ProfilerCall:
    """One collective of a profiled rank."""

    op: str
    """Plain name; ``unknown:<kernel>`` for an unknown kernel that communicates."""
    raw_op: str
    start: int
    """Nanoseconds since the epoch."""
    end: int | None
    """None if the file has no measurement of it."""
    arguments: Mapping[str, Any]
    """``Collective name``, ``In msg nelems``, … of the kernel, else of the op that launched it; empty in old files."""
    tensors: tuple[tuple[int, str], ...]
    """Number of elements and dtype of each input tensor of the op in `tensors_of`; empty if unknown."""
    thread: object
    """The thread that issued the collective; None if its launch is unknown."""
    issued: float | None
    """Time of issue, in the file's microseconds; None if it was queued before the recording began."""
    tensors_of: str = ""
    """Name of the op or range that has the tensors: ``c10d::allreduce_``, ``nccl:all_reduce``."""
    is_kernel: bool = False
    """True if it was measured on a GPU."""
    exposed: int | None = None
    """Nanoseconds of it in which its GPU computed nothing; None if the file has no compute kernels."""


def calls_of(trace: ProfilerFile) -> list[ProfilerCall]:
    """Return the collectives in the order in which they began."""
    kernels = [event for event in trace.events if _is_call(event)]
    exposed = ComputeTime(trace.kernels).exposed(kernels)
    launches = launches_of(trace, kernels)
    on_gpu = [
        _kernel_call(event, alone, launch, trace.base)
        for event, alone, launch in zip(kernels, exposed, launches, strict=True)
    ]
    on_cpu = [call for call in _cpu_calls(trace) if not on_gpu or call.end is not None]
    calls = [*on_gpu, *on_cpu]
    return sorted(calls, key=lambda call: call.start)


def _is_timed(event: Event) -> bool:
    return abs(float(event["ts"])) < _MOST_US and 0 <= float(event.get("dur", -1)) < _MOST_US


def _is_call(event: Event) -> bool:
    return is_kernel(str(event.get("cat", "")))


def _kernel_call(event: Event, exposed: int | None, launch: Launch, base: int) -> ProfilerCall:
    arguments = arguments_of(event)
    if "Collective name" not in arguments:
        of_ops = (arguments_of(op) for op in launch.ops)
        arguments = {**next((found for found in of_ops if "Collective name" in found), {}), **arguments}
    start = nanoseconds(event["ts"], base)
    tensors, of = _first_tensors(launch.ops)
    return ProfilerCall(
        op=_op(event["name"], arguments, launch.ops),
        raw_op=short_name(event["name"]),
        start=start,
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
    """Convert a time of the file to ns since the epoch; whole and fractional microseconds apart, to stay exact."""
    time = microseconds if isinstance(microseconds, int) else float(microseconds)
    whole = int(time)
    return base + whole * 1_000 + round((time - whole) * 1_000)


def _op(kernel: str, arguments: Mapping[str, Any], ops: Iterable[Event]) -> str:
    names = [str(arguments.get("Collective name") or arguments.get("func") or "")]
    names += [_op_name(event) for event in ops]
    for name in names:
        if name and not (op := plain_op(name)).startswith("unknown:"):
            return op
    kind = kind_of_kernel(kernel) or next((kind for event in ops if (kind := kind_of_kernel(event["name"]))), "")
    return kind or f"unknown:{short_name(kernel)}"


def _op_name(event: Event) -> str:
    """Return the name of the collective in the name of c10d's op or of a backend's range."""
    name = event["name"]
    return BACKENDS_RANGE.sub("", _C10D.sub(r"\1", name)).partition(" ")[0]


def _first_tensors(ops: Iterable[Event], works: Iterable[Event] = ()) -> tuple[tuple[tuple[int, str], ...], str]:
    """Return the tensors of the op that has them in full, and its name: of c10d's or a library's op, else of another.

    A description and a backend's range have only the inputs, but also dtypes of lists.

    Args:
        ops: that describe one collective.
        works: that implement it; only a dtype is read from them.
    """
    inputs = [(tensors, event["name"]) for event in ops if (tensors := _tensors(event))]
    if not inputs:
        return (), ""
    tensors, of = next(((shapes, name) for shapes, name in inputs if "::" in name), inputs[0])
    dtypes = chain((shapes for shapes, _ in inputs), map(_tensors, works))
    dtype = next((kind for shapes in dtypes for _, kind in shapes if kind), "")
    return tuple((elements, kind or dtype) for elements, kind in tensors), of


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
        mine = works.of(op, event, ranks)
        within = inside.within(event)
        tensors, of = _first_tensors([event, *within], mine)
        yield ProfilerCall(
            op=op,
            raw_op=event["name"],
            start=nanoseconds(event["ts"], trace.base),
            end=_last([_end_of(work, trace.base) for work in mine]),
            arguments=next((arguments_of(inner) for inner in within if inner["name"] == DESCRIPTION), {}),
            tensors=tensors,
            thread=thread_of(event),
            issued=begin_of(event),
            tensors_of=of,
        )
    remaining = works.left()
    yield from (_work_call(work, trace.base) for work in remaining)
    if not issued and not remaining:
        named = [event for event in described if "Collective name" in arguments_of(event) or _ranges_in(inside, event)]
        yield from (_described(event, inside, trace.base) for event in named or described)


def _ranges_in(ranges: EventRanges, event: Event) -> list[Event]:
    return [inner for inner in ranges.within(event) if inner["name"] != DESCRIPTION]


def _is_backends_range(event: Event) -> bool:
    return is_on_cpu(event) and BACKENDS_RANGE.match(event["name"]) is not None


class _Works:
    """Gloo works not yet assigned to an op: an op's works begin after it, and works of one kind begin in order."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._waiting: dict[str, deque[Event]] = defaultdict(deque)
        for event in sorted((event for event in events if is_on_cpu(event)), key=begin_of):
            self._waiting[plain_op(event["name"].removeprefix("gloo:"))].append(event)
        self._passed: list[Event] = []

    def of(self, op: str, event: Event, ranks: int) -> list[Event]:
        """Take the works of an op, which was issued after those asked for before.

        Gloo implements reduce_scatter by all_reduce: one, or one per rank if the input is a list.
        """
        works = self._take(op, event, 1)
        if not works and op == "reduce_scatter":
            works = self._take("all_reduce", event, 1 if event["name"].endswith("base_") else ranks)
        return works

    def _take(self, op: str, event: Event, count: int) -> list[Event]:
        works = self._waiting[op]
        while works and begin_of(works[0]) < begin_of(event):
            self._passed.append(works.popleft())
        sizes = {elements for elements, _ in _tensors(event)}
        fitting = [work for work in islice(works, 4 * count) if not sizes or op == "barrier" or _is_of(work, sizes)]
        for work in fitting[:count]:
            works.remove(work)
        return fitting[:count]

    def left(self) -> list[Event]:
        """Return the works that no op took."""
        return [*self._passed, *chain.from_iterable(self._waiting.values())]


def _is_of(work: Event, sizes: Collection[int]) -> bool:
    tensors = _tensors(work)
    return not tensors or tensors[0][0] in sizes


def _end_of(event: Event, base: int) -> int | None:
    """Return the end of an event in ns since the epoch; None if its duration is missing or negative."""
    took = nanoseconds(event.get("dur", -1), 0)
    return nanoseconds(event["ts"], base) + took if took >= 0 else None


def _last(ends: Sequence[int | None]) -> int | None:
    """Return the last of several ends; None if one is unknown, or there are none."""
    return max((end for end in ends if end is not None), default=None) if None not in ends else None


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
    """Return the call for a gloo work without a known op."""
    start = nanoseconds(work["ts"], base)
    op = plain_op(work["name"].removeprefix("gloo:"))
    return ProfilerCall(
        *(op, work["name"], start, _end_of(work, base), {}, _tensors(work), thread_of(work), begin_of(work)),
        tensors_of=work["name"],
    )


def _described(event: Event, ranges: EventRanges, base: int) -> ProfilerCall:
    """Return the call for a collective with nothing but its CPU part in the file: it has no duration."""
    arguments = arguments_of(event)
    ops = [event, *_ranges_in(ranges, event)]
    tensors, of = _first_tensors(ops)
    start = nanoseconds(event["ts"], base)
    op = _op(str(arguments.get("Collective name") or event["name"]), arguments, ops)
    return ProfilerCall(
        op,
        raw_op=event["name"],
        start=start,
        end=None,
        arguments=arguments,
        tensors=tensors,
        thread=thread_of(event),
        issued=begin_of(event),
        tensors_of=of,
    )


@cache
def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return None


def is_a_call(call: ProfilerCall) -> bool:
    """Return True if the call communicates: waits and the ends of coalesced calls are recorded too."""
    return call.op.removeprefix("unknown:").lower() not in _NOT_A_CALL


def listed(value: Any) -> tuple[int, ...] | None:
    """Parse numbers from text such as ``"[0, 1]"``; None if it is cut, ``"[0, 1, ...]"``, or is not a list."""
    parsed = _literal(value) if isinstance(value, str) else value
    if not isinstance(parsed, (list, tuple)) or not all(isinstance(number, int) for number in parsed):
        return None
    return tuple(parsed)
