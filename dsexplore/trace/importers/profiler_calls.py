"""The collectives of one rank's profiler trace: GPU kernels and gloo's works, or else the ops that issued them.

What a kernel does is read, in this order, from its own arguments, from the CPU op that launched it (``External id``),
from the c10d op around that one, and from its name. AMD's library has one kernel for all collectives
(``ncclDevKernel_Generic``), whose name says nothing.
"""

from __future__ import annotations

import ast
import math
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, islice
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from dsexplore.trace.importers.op_names import plain_dtype, plain_op
from dsexplore.trace.importers.profiler_file import Event, ProfilerFile, is_kernel

# How long kernels computed on a profiled GPU while something else ran there.
#
# Worked example: kernels compute from 0 to 10 µs and, on another stream, from 5 to 20 µs. A collective from 15 to 30
# µs
# overlaps with 5 µs of computation, and is exposed for the other 10: nothing of the program ran then.

Times = npt.NDArray[np.float64]


class ComputeTime:
    """The computation in one file, by device.

    Args:
        kernels: compute kernels with ``pid`` (the GPU's number, as text), ``ts`` and ``dur`` in microseconds; rows with
            a null are left out.
    """

    def __init__(self, kernels: pl.DataFrame) -> None:
        devices = kernels.drop_nulls().partition_by("pid", as_dict=True, include_key=False)
        self._devices = {device: _covered(of_device.to_numpy()) for (device,), of_device in devices.items()}

    def exposed(self, events: Sequence[Event]) -> list[int | None]:
        """Return for each event the ns in which its GPU computed nothing; None if that GPU has no compute kernels."""
        exposed_ns: list[int | None] = [None] * len(events)
        for device, compute in self._devices.items():
            on_device = [at for at, event in enumerate(events) if str(event.get("pid")) == device and "dur" in event]
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


_KERNELS = (
    (re.compile(r"all_?reduce|cross_device_reduce", re.IGNORECASE), "all_reduce"),  # the second one is vLLM's
    (re.compile(r"all_?gather", re.IGNORECASE), "all_gather"),
    (re.compile(r"reduce_?scatter", re.IGNORECASE), "reduce_scatter"),
    (re.compile(r"all_?to_?all", re.IGNORECASE), "all_to_all"),
    (re.compile(r"Broadcast"), "broadcast"),
    (re.compile(r"[nr]ccl(\w*_)?Reduce(?!_?Scatter)"), "reduce"),  # after all_reduce and reduce_scatter
)
_C10D = re.compile(r"c10d::_?(\w+?)_?$")
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
    """Number of elements and dtype of each input tensor of the launching op; empty if unknown."""
    thread: object
    """The thread that issued the collective; None if the launching op is unknown."""
    issued: float
    """Time of issue, in the file's microseconds."""
    is_kernel: bool = False
    """True if it was measured on a GPU."""
    exposed: int | None = None
    """Nanoseconds of it in which its GPU computed nothing; None if the file has no compute kernels."""


def calls_of(trace: ProfilerFile) -> list[ProfilerCall]:
    """Return the collectives in the order in which they began."""
    launching = _launching(trace.events)
    issuing = _Enclosing(event for event in trace.events if event["name"].startswith("c10d::") and _is_on_cpu(event))
    kernels = [event for event in trace.events if _is_call(event)]
    exposed = ComputeTime(trace.kernels).exposed(kernels)
    on_gpu = [
        _of_kernel(event, alone, launching, issuing, trace.base) for event, alone in zip(kernels, exposed, strict=True)
    ]
    on_cpu = [call for call in _on_cpu(trace) if not on_gpu or call.end is not None]
    calls = [*on_gpu, *on_cpu]
    return sorted(calls, key=lambda call: call.start)


def _is_call(event: Event) -> bool:
    return is_kernel(str(event.get("cat", "")))


def _is_on_cpu(event: Event) -> bool:
    """Return True if an event was recorded on the CPU; GPU events are kernels and copies of the program's ranges."""
    category = str(event.get("cat", ""))
    return not is_kernel(category) and not category.startswith("gpu_")


def _arguments(event: Event) -> dict[str, Any]:
    arguments = event.get("args")
    return arguments if isinstance(arguments, dict) else {}


def _launching(events: Iterable[Event]) -> dict[str, Event]:
    """Return {``External id``: the CPU op that describes the collective best}."""
    launching: dict[str, Event] = {}
    for event in events:
        name = event["name"]
        if name != "record_param_comms" and not name.startswith(("c10d::", "nccl:")):
            continue
        identity = _external_id(event) if _is_on_cpu(event) else None
        if identity is not None and (name == "record_param_comms" or identity not in launching):
            launching[identity] = event
    return launching


def _external_id(event: Event) -> str | None:
    arguments = _arguments(event)
    identity = arguments.get("External id", arguments.get("external id"))
    return None if identity is None else str(identity)


class _Enclosing:
    """CPU events by thread, to find the one that encloses another; c10d's ops do not nest."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._events: dict[object, list[Event]] = defaultdict(list)
        for event in sorted(events, key=_when):
            self._events[_thread(event)].append(event)

    def of(self, event: Event) -> Event | None:
        """Return the event of the same thread that was running when `event` began, else None."""
        events = self._events.get(_thread(event), [])
        at = bisect_right(events, _when(event), key=_when) - 1
        return events[at] if at >= 0 and _when(event) <= _end(events[at]) else None

    def within(self, event: Event) -> Event | None:
        """Return the first event of the same thread that began while `event` was running, else None."""
        events = self._events.get(_thread(event), [])
        at = bisect_left(events, _when(event), key=_when)
        return events[at] if at < len(events) and _when(events[at]) <= _end(event) else None


def _of_kernel(
    event: Event, exposed: int | None, launching: Mapping[str, Event], issuing: _Enclosing, base: int
) -> ProfilerCall:
    launch = launching.get(_external_id(event) or "")
    outer = issuing.of(launch) if launch is not None else None
    arguments = _arguments(event)
    if "Collective name" not in arguments and launch is not None and "Collective name" in _arguments(launch):
        arguments = {**_arguments(launch), **arguments}
    start = nanoseconds(event["ts"], base)
    return ProfilerCall(
        op=_op(event["name"], arguments, launch, outer),
        raw_op=_short(event["name"]),
        start=start,
        end=start + nanoseconds(event.get("dur", 0), 0),
        arguments=arguments,
        tensors=_tensors(launch) or _tensors(outer),
        thread=_thread(launch) if launch is not None else None,
        issued=float((launch or event)["ts"]),
        is_kernel=True,
        exposed=exposed,
    )


def _thread(event: Event) -> object:
    return event.get("pid"), event.get("tid")


def nanoseconds(microseconds: Any, base: int) -> int:
    """Convert a time of the file to ns since the epoch; whole and fractional microseconds apart, to stay exact."""
    time = microseconds if isinstance(microseconds, int) else float(microseconds)
    whole = int(time)
    return base + whole * 1_000 + round((time - whole) * 1_000)


def _op(kernel: str, arguments: Mapping[str, Any], *launches: Event | None) -> str:
    names = [str(arguments.get("Collective name") or "")]
    for launch in filter(None, launches):
        names.append(_C10D.sub(r"\1", launch["name"]).removeprefix("nccl:").partition(" ")[0])
    for name in names:
        if name and not (op := plain_op(name)).startswith("unknown:"):
            return op
    for pattern, op in _KERNELS:
        if pattern.search(kernel):
            return op
    return f"unknown:{_short(kernel)}"


def _short(kernel: str) -> str:
    """Return a kernel's name without its parameters and unnamed namespaces."""
    return kernel.replace("(anonymous namespace)::", "").partition("(")[0]


def _tensors(launch: Event | None) -> tuple[tuple[int, str], ...]:
    """Return the number of elements and the dtype of each tensor among an op's inputs."""
    if launch is None:
        return ()
    arguments = _arguments(launch)
    shapes, types = arguments.get("Input Dims") or (), arguments.get("Input type") or ()
    tensors = []
    for shape, kind in zip(shapes, types, strict=False):
        if not isinstance(shape, list) or not shape or kind in ("", "Scalar", "ScalarList"):
            continue
        parts = shape if isinstance(shape[0], list) else [shape]
        if all(isinstance(size, (int, float)) and size >= 0 for part in parts for size in part):
            dtype = "" if kind in ("TensorList", "GenericList") else plain_dtype(str(kind))
            tensors.append((sum(math.prod(map(int, part)) for part in parts), dtype))
    return tuple(tensors)


def _on_cpu(trace: ProfilerFile) -> Iterable[ProfilerCall]:
    """Yield the collectives on the CPU: c10d's ops with the end of their gloo works, and gloo works without an op.

    Files of old versions have works without an op.
    """
    issued = sorted((event for event in trace.events if event["name"].startswith("c10d::")), key=_when)
    described = _described_once(event for event in trace.events if event["name"] == "record_param_comms")
    describing = _Enclosing(described)
    works = _Works(event for event in trace.events if event["name"].startswith("gloo:"))
    ranks = int(trace.distributed.get("world_size") or 1)
    for event in issued:
        op = plain_op(_C10D.sub(r"\1", event["name"]))
        if op.startswith("unknown:"):
            continue
        tensors = _tensors(event)
        mine = works.of(op, event, ranks)
        dtype = next((kind for work in mine for _, kind in _tensors(work) if kind), "")
        description = describing.within(event)
        yield ProfilerCall(
            op=op,
            raw_op=event["name"],
            start=nanoseconds(event["ts"], trace.base),
            end=max((_end_of(work, trace.base) for work in mine), default=None),
            arguments=_arguments(description) if description is not None else {},
            tensors=tuple((elements, known or dtype) for elements, known in tensors),
            thread=_thread(event),
            issued=float(event["ts"]),
        )
    remaining = works.left()
    yield from (_of_work(work, trace.base) for work in remaining)
    if not issued and not remaining:
        yield from (_described(event, trace.base) for event in described)


class _Works:
    """Gloo works not yet assigned to an op: an op's works begin after it, and works of one kind begin in order."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._waiting: dict[str, deque[Event]] = defaultdict(deque)
        for event in sorted((event for event in events if _is_on_cpu(event)), key=_when):
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
        while works and _when(works[0]) < _when(event):
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


def _end_of(event: Event, base: int) -> int:
    return nanoseconds(event["ts"], base) + nanoseconds(event.get("dur", 0), 0)


def _described_once(events: Iterable[Event]) -> list[Event]:
    """Return descriptions of collectives in order of time, without nested ones.

    torch 2.4 and later describe a call twice, in Python's function and in the backend.
    """
    distinct: list[Event] = []
    ends: dict[object, float] = {}
    for event in sorted((event for event in events if _is_on_cpu(event)), key=_when):
        thread = _thread(event)
        if _when(event) >= ends.get(thread, -math.inf):
            distinct.append(event)
            ends[thread] = _end(event)
    return distinct


def _of_work(event: Event, base: int) -> ProfilerCall:
    """Return the call for a gloo work without a known op."""
    start = nanoseconds(event["ts"], base)
    op = plain_op(event["name"].removeprefix("gloo:"))
    return ProfilerCall(
        op, event["name"], start, _end_of(event, base), {}, _tensors(event), _thread(event), float(event["ts"])
    )


def _described(event: Event, base: int) -> ProfilerCall:
    """Return the call for a collective of which the file has only the CPU's part: it has no duration."""
    arguments = _arguments(event)
    op = plain_op(str(arguments.get("Collective name", "")))
    start = nanoseconds(event["ts"], base)
    tensors = _tensors(event)
    return ProfilerCall(op, event["name"], start, None, arguments, tensors, _thread(event), float(event["ts"]))


def _when(event: Event) -> float:
    return float(event["ts"])


def _end(event: Event) -> float:
    return _when(event) + float(event.get("dur", 0))


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
    """Parse numbers from text such as ``"[0, 1]"``; None if it is cut, ``"[0, 1, ...]"``, or is no list."""
    parsed = _literal(value) if isinstance(value, str) else value
    if not isinstance(parsed, (list, tuple)) or not all(isinstance(number, int) for number in parsed):
        return None
    return tuple(parsed)
