"""The collectives of one rank's profiler trace: GPU kernels and gloo's works; without either, the ops that issued them.

What a kernel does is read, in this order, off its own arguments, off the CPU op that launched it (``External id``), and
off its name. AMD's library has one kernel for all of it (``ncclDevKernel_Generic``), so only the first two say it.
"""

from __future__ import annotations

import ast
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from dsexplore.trace.importers.op_names import plain_dtype, plain_op
from dsexplore.trace.importers.profiler_file import Event, ProfilerFile, is_kernel

_KERNELS = (
    (re.compile(r"all_?reduce", re.IGNORECASE), "all_reduce"),
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
    """Plain name; ``unknown:<kernel>`` for a kernel that communicates in a way that nobody described."""
    raw_op: str
    start: int
    """Nanoseconds since the epoch."""
    end: int | None
    """None where the file has no measurement of it."""
    arguments: Mapping[str, Any]
    """``Collective name``, ``In msg nelems``, … of the kernel, else of the op that launched it; empty in old files."""
    tensors: tuple[tuple[int, str], ...]
    """Elements and dtype of each tensor that the launching op was given; empty where that is not known."""
    thread: object
    """Which thread issued it; None where the launching op is not known."""
    issued: float
    """When that was, in the file's microseconds."""
    is_kernel: bool = False
    """Whether it was measured on a GPU."""


def calls_of(trace: ProfilerFile) -> list[ProfilerCall]:
    """The collectives in the order in which they began."""
    launching = _launching(trace.events)
    on_gpu = [_of_kernel(event, launching, trace.base) for event in trace.events if _is_call(event)]
    on_cpu = [call for call in _on_cpu(trace) if not on_gpu or call.end is not None]
    calls = [*on_gpu, *on_cpu]
    return sorted(calls, key=lambda call: call.start)


def _is_call(event: Event) -> bool:
    return is_kernel(str(event.get("cat", "")))


def _is_on_cpu(event: Event) -> bool:
    """Whether an event was recorded on the CPU; the GPU has kernels, and the program's ranges once more."""
    category = str(event.get("cat", ""))
    return not is_kernel(category) and not category.startswith("gpu_")


def _arguments(event: Event) -> dict[str, Any]:
    arguments = event.get("args")
    return arguments if isinstance(arguments, dict) else {}


def _launching(events: Iterable[Event]) -> dict[str, Event]:
    """By ``External id``: the CPU op that describes a collective best."""
    found: dict[str, Event] = {}
    for event in events:
        name = event["name"]
        if name != "record_param_comms" and not name.startswith(("c10d::", "nccl:")):
            continue
        identity = _external_id(event) if _is_on_cpu(event) else None
        if identity is not None and (name == "record_param_comms" or identity not in found):
            found[identity] = event
    return found


def _external_id(event: Event) -> str | None:
    arguments = _arguments(event)
    identity = arguments.get("External id", arguments.get("external id"))
    return None if identity is None else str(identity)


def _of_kernel(event: Event, launching: Mapping[str, Event], base: int) -> ProfilerCall:
    launch = launching.get(_external_id(event) or "")
    arguments = _arguments(event)
    if "Collective name" not in arguments and launch is not None and "Collective name" in _arguments(launch):
        arguments = {**_arguments(launch), **arguments}
    start = nanoseconds(event["ts"], base)
    return ProfilerCall(
        op=_op(event["name"], arguments, launch),
        raw_op=event["name"].partition("(")[0],
        start=start,
        end=start + nanoseconds(event.get("dur", 0), 0),
        arguments=arguments,
        tensors=_tensors(launch),
        thread=_thread(launch) if launch is not None else None,
        issued=float((launch or event)["ts"]),
        is_kernel=True,
    )


def _thread(event: Event) -> object:
    return event.get("pid"), event.get("tid")


def nanoseconds(microseconds: Any, base: int) -> int:
    """A time of the file in nanoseconds since the epoch; whole microseconds and the rest apart, to lose nothing."""
    whole, _, rest = str(microseconds).partition(".")
    if "e" in rest or "e" in whole:
        return base + round(float(microseconds) * 1_000)
    return base + int(whole or 0) * 1_000 + int((rest + "000")[:3])


def _op(kernel: str, arguments: Mapping[str, Any], launch: Event | None) -> str:
    names = [str(arguments.get("Collective name") or "")]
    if launch is not None:
        names.append(_C10D.sub(r"\1", launch["name"]).removeprefix("nccl:").partition(" ")[0])
    for name in names:
        if name and not (op := plain_op(name)).startswith("unknown:"):
            return op
    for pattern, op in _KERNELS:
        if pattern.search(kernel):
            return op
    return f"unknown:{kernel.partition('(')[0]}"


def _tensors(launch: Event | None) -> tuple[tuple[int, str], ...]:
    """Elements and dtype of the tensors among an op's inputs."""
    if launch is None:
        return ()
    arguments = _arguments(launch)
    shapes, types = arguments.get("Input Dims") or (), arguments.get("Input type") or ()
    found = []
    for shape, kind in zip(shapes, types, strict=False):
        if not isinstance(shape, list) or not shape or kind in ("", "Scalar", "ScalarList"):
            continue
        parts = shape if isinstance(shape[0], list) else [shape]
        if all(isinstance(size, (int, float)) for part in parts for size in part):
            dtype = "" if kind in ("TensorList", "GenericList") else plain_dtype(str(kind))
            found.append((sum(math.prod(map(int, part)) for part in parts), dtype))
    return tuple(found)


def _on_cpu(trace: ProfilerFile) -> Iterable[ProfilerCall]:
    """The collectives on the CPU: c10d's ops, each ended by gloo's work of the same op and shape, and gloo's other
    works, which old files have without an op."""
    issued = sorted((event for event in trace.events if event["name"].startswith("c10d::")), key=_when)
    described = _launching(event for event in trace.events if event["name"] == "record_param_comms")
    works: dict[object, list[Event]] = defaultdict(list)
    for event in sorted(
        (event for event in trace.events if event["name"].startswith("gloo:")), key=_when, reverse=True
    ):
        works[plain_op(event["name"].removeprefix("gloo:")), _shape(event)].append(event)
    for event in issued:
        op = plain_op(_C10D.sub(r"\1", event["name"]))
        if op.startswith("unknown:"):
            continue
        tensors = _tensors(event)
        waiting = works.get((op, _shape(event))) or works.get((op, 0)) or []
        work = waiting.pop() if waiting else None
        dtype = _tensors(work)[0][1] if work is not None and _tensors(work) else ""
        yield ProfilerCall(
            op=op,
            raw_op=event["name"],
            start=nanoseconds(event["ts"], trace.base),
            end=nanoseconds(work["ts"], trace.base) + nanoseconds(work.get("dur", 0), 0) if work is not None else None,
            arguments={},
            tensors=tuple((elements, known or dtype) for elements, known in tensors),
            thread=_thread(event),
            issued=float(event["ts"]),
        )
    left = [work for waiting in works.values() for work in waiting]
    yield from (_of_work(work, trace.base) for work in left)
    if not issued and not left:
        yield from (_described(event, trace.base) for event in described.values())


def _of_work(event: Event, base: int) -> ProfilerCall:
    """A work of gloo's that nothing is known to have issued."""
    start = nanoseconds(event["ts"], base)
    end = start + nanoseconds(event.get("dur", 0), 0)
    op = plain_op(event["name"].removeprefix("gloo:"))
    return ProfilerCall(op, event["name"], start, end, {}, _tensors(event), _thread(event), float(event["ts"]))


def _described(event: Event, base: int) -> ProfilerCall:
    """A collective of which only the CPU's part is in the file: it has no duration."""
    arguments = _arguments(event)
    op = plain_op(str(arguments.get("Collective name", "")))
    start = nanoseconds(event["ts"], base)
    tensors = _tensors(event)
    return ProfilerCall(op, event["name"], start, None, arguments, tensors, _thread(event), float(event["ts"]))


def _when(event: Event) -> float:
    return float(event["ts"])


def _shape(event: Event) -> int:
    """Elements of the tensor that a gloo work and the op that issued it both name; 0 for none."""
    tensors = _tensors(event)
    return tensors[0][0] if tensors and not event["name"].endswith("barrier") else 0


@cache
def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return None


def is_a_call(call: ProfilerCall) -> bool:
    """Whether it communicates: a wait and the ends of a coalesced call are recorded too."""
    return call.op.removeprefix("unknown:").lower() not in _NOT_A_CALL


def listed(value: Any) -> tuple[int, ...] | None:
    """Numbers from text such as ``"[0, 1]"``; None where it is cut, ``"[0, 1, ...]"``, or is no list."""
    found = _literal(value) if isinstance(value, str) else value
    if not isinstance(found, (list, tuple)) or not all(isinstance(number, int) for number in found):
        return None
    return tuple(found)
