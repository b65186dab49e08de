"""Where the kernels of a profiler trace were launched: the CPU's ops and ranges around each launch.

A kernel and its launch have the same ``correlation``, and what encloses the launch on its thread describes the kernel:
``record_param_comms`` has the collective's arguments, c10d's op and the backend's range (``nccl:all_reduce``) its kind
and its tensors. Kernels whose launch is not in the file are tied by ``External id``, the number of the op that was
running; old files have the launch's own number there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from dsexplore._internal.trace.importers.event_kinds import Event, is_kernel, is_library_op
from dsexplore._internal.trace.importers.event_ranges import EventRanges, begin_of, thread_of
from dsexplore._internal.trace.importers.profiler_file import ProfilerFile

DESCRIPTION = "record_param_comms"
BACKENDS_RANGE = re.compile(r"(?:[nrxhmsu]ccl|ucc|gloo|mpi):")
"""Start of the name of the range in which a backend of torch.distributed runs a collective."""


class Launch(NamedTuple):
    """The launch of one kernel."""

    thread: object
    """The thread that launched it; None if unknown."""
    when: float | None
    """Time of the launch in the file's microseconds; None if the kernel was queued before the recording began."""
    ops: tuple[Event, ...]
    """What describes the collective on the CPU, innermost first: the description, the backend's range, and ops."""


def arguments_of(event: Event) -> dict[str, Any]:
    """Return the arguments of an event."""
    arguments = event.get("args")
    return arguments if isinstance(arguments, dict) else {}


def is_on_cpu(event: Event) -> bool:
    """Return True if an event was recorded on the CPU; GPU events are kernels and copies of the program's ranges."""
    category = str(event.get("cat", ""))
    return not is_kernel(category) and not category.startswith("gpu_")


def launches_of(trace: ProfilerFile, kernels: Sequence[Event]) -> list[Launch]:
    """Return the launch of each kernel."""
    describing = [event for event in trace.events if is_on_cpu(event) and _describes(event)]
    ranges = EventRanges(describing)
    by_number = {number: event for event in describing if (number := _external_id(event)) is not None}
    numbers = [_number(event, "correlation") for event in kernels]
    launched = trace.launches_of({number for number in numbers if number is not None})
    calls = [launched.get(number) if number is not None else None for number in numbers]
    tied = [call or _find_by_external_id(event, by_number) for event, call in zip(kernels, calls, strict=True)]
    around = ranges.around([(thread_of(event), begin_of(event)) if event else (None, 0.0) for event in tied])
    return [
        _launch(trace, kernel, event, ops, by_number) for kernel, event, ops in zip(kernels, tied, around, strict=True)
    ]


def _launch(
    trace: ProfilerFile, kernel: Event, tied: Event | None, ops: Iterable[Event], by_number: dict[str, Event]
) -> Launch:
    if tied is None:
        return Launch(None, None if trace.launches else begin_of(kernel), ())
    innermost_first = tuple(reversed(tuple(ops)))
    if not innermost_first and (named := _find_by_external_id(kernel, by_number)) is not None:
        innermost_first = (named,)
    return Launch(thread_of(tied), begin_of(tied), innermost_first)


def _describes(event: Event) -> bool:
    name = event["name"]
    return name == DESCRIPTION or BACKENDS_RANGE.match(name) is not None or is_library_op(name)


def _find_by_external_id(kernel: Event, by_number: dict[str, Event]) -> Event | None:
    number = _external_id(kernel)
    if number is None or number == str(arguments_of(kernel).get("correlation")):
        return None
    return by_number.get(number)


def _external_id(event: Event) -> str | None:
    arguments = arguments_of(event)
    number = arguments.get("External id", arguments.get("external id"))
    return None if number is None else str(number)


def _number(event: Event, name: str) -> int | None:
    value = arguments_of(event).get(name)
    return value if isinstance(value, int) else None
