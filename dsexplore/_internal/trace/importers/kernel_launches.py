"""Find the launch of each kernel in a profiler trace, and the ops and ranges of the CPU around it.

A kernel and its launch have the same ``correlation``. The events that enclose the launch on its thread describe the
kernel: ``record_param_comms`` has the collective's arguments, and c10d's op and the backend's range
(``nccl:all_reduce``) have its name and its tensors. If the launch is not in the file, the op that was running is found
by ``External id``, its number; old files have the number of the launch itself there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from dsexplore._internal.trace.importers.event_kinds import Event, is_kernel, is_library_op
from dsexplore._internal.trace.importers.event_ranges import EventRanges, begin_of, thread_of
from dsexplore._internal.trace.importers.profiler_file import ProfilerFile

DESCRIPTION = "record_param_comms"
"""Name of the event that has the arguments of a collective."""
BACKENDS_RANGE = re.compile(r"(?:[nrxhmsu]ccl|ucc|gloo|mpi):")
"""Start of the name of the range in which a backend of torch.distributed runs a collective."""


class Launch(NamedTuple):
    """The launch of one kernel."""

    thread: object
    """The thread that launched it; None if unknown."""
    when: float | None
    """Time of the launch in the file's microseconds; None if the kernel was queued before the recording began."""
    ops: tuple[Event, ...]
    """Events on the CPU that describe the collective, innermost first: description, backend's range, and ops."""


def arguments_of(event: Event) -> dict[str, Any]:
    """Return the arguments of an event; empty if it has none."""
    arguments = event.get("args")
    return arguments if isinstance(arguments, dict) else {}


def is_on_cpu(event: Event) -> bool:
    """Return True unless an event is a kernel, or one of Kineto's copies of CPU ranges for the GPU."""
    category = str(event.get("cat", ""))
    return not is_kernel(category) and not category.startswith("gpu_")


def launches_of(trace: ProfilerFile, kernels: Sequence[Event]) -> list[Launch]:
    """Return the launch of each kernel, in the order of `kernels`."""
    describing = [event for event in trace.events if is_on_cpu(event) and _describes(event)]
    ranges = EventRanges(describing)
    by_id = {number: event for event in describing if (number := _external_id(event)) is not None}
    correlations = [_correlation(kernel) for kernel in kernels]
    launched = trace.launches_of({number for number in correlations if number is not None})
    origins: list[Event | None] = []
    for kernel, correlation in zip(kernels, correlations, strict=True):
        launch = launched.get(correlation) if correlation is not None else None
        origins.append(launch or _find_by_external_id(kernel, by_id))
    around = ranges.around([(thread_of(event), begin_of(event)) if event else (None, 0.0) for event in origins])
    launches = []
    for kernel, origin, outermost_first in zip(kernels, origins, around, strict=True):
        if origin is None:
            launches.append(Launch(thread=None, when=None if trace.launches else begin_of(kernel), ops=()))
            continue
        ops = outermost_first[::-1]
        if not ops and (named := _find_by_external_id(kernel, by_id)) is not None:
            ops = (named,)
        launches.append(Launch(thread=thread_of(origin), when=begin_of(origin), ops=ops))
    return launches


def _describes(event: Event) -> bool:
    name = event["name"]
    return name == DESCRIPTION or BACKENDS_RANGE.match(name) is not None or is_library_op(name)


def _find_by_external_id(kernel: Event, by_id: dict[str, Event]) -> Event | None:
    """Return the event with the kernel's ``External id``; None if none has it, or if it is the launch's own number."""
    number = _external_id(kernel)
    if number is None or number == str(arguments_of(kernel).get("correlation")):
        return None
    return by_id.get(number)


def _external_id(event: Event) -> str | None:
    arguments = arguments_of(event)
    number = arguments.get("External id", arguments.get("external id"))
    return None if number is None else str(number)


def _correlation(kernel: Event) -> int | None:
    number = arguments_of(kernel).get("correlation")
    return number if isinstance(number, int) else None
