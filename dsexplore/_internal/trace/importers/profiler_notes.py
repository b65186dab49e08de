"""Notes for the reader on what a profiler trace lacks: durations, sizes, launches, and the names of collectives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import polars as pl

from dsexplore._internal.trace.importers.communication_kernels import library_of_kernel
from dsexplore._internal.trace.importers.event_kinds import is_kernel
from dsexplore._internal.trace.importers.profiler_calls import ProfilerCall
from dsexplore._internal.trace.importers.profiler_file import ProfilerFile
from dsexplore._internal.trace.unknown_sizes import HAS_UNKNOWN_DTYPE, IS_UNSIZED
from dsexplore._internal.units import format_count, format_seconds

_MOST_KERNELS = 8
"""Number of kernels that have a note each."""
_OF_TORCH = ("NCCL", "RCCL", "NCCL or RCCL")
"""Libraries that torch.distributed uses."""


def notes_of(calls: Sequence[ProfilerCall], trace: ProfilerFile, damaged: int) -> Iterable[str]:
    """Yield notes on the kernels, times and damaged events of one file.

    Args:
        calls: collectives that were read from the file.
        trace: the file.
        damaged: number of its events that were omitted.
    """
    yield from _kernel_notes(calls)
    name = trace.file.name
    if not calls:
        yield f"{name} has no collectives: {_content(trace)}"
    elif trace.has_times and all(call.end is None for call in calls):
        yield f"{name} has neither kernels nor works of its collectives: their durations are unknown"
    if damaged:
        yield f"{name}: {format_count(damaged, 'damaged event')} left out"


def _kernel_notes(calls: Iterable[ProfilerCall]) -> Iterable[str]:
    """Yield a note on each kernel whose collective is unknown, or whose library torch.distributed does not use."""
    by_kernel: dict[tuple[str, str], list[ProfilerCall]] = defaultdict(list)
    for call in calls:
        is_unknown = call.op.startswith("unknown:")
        if is_unknown or (call.is_kernel and library_of_kernel(call.raw_op) not in ("", *_OF_TORCH)):
            by_kernel[call.raw_op, "" if is_unknown else call.op].append(call)
    ranked = sorted(by_kernel.items(), key=lambda item: -_seconds(item[1]))
    for (kernel, op), calls_of_kernel in ranked[:_MOST_KERNELS]:
        library = library_of_kernel(kernel)
        name = f"{kernel} of {library}" if library else kernel
        what = op or "the file does not say which collective"
        yield f"{name} communicates in {_counted(calls_of_kernel)}: {what}"
    if others := [call for _, calls_of_kernel in ranked[_MOST_KERNELS:] for call in calls_of_kernel]:
        yield f"{format_count(len(ranked) - _MOST_KERNELS, 'further kernel')} of such kinds: {_counted(others)}"


def _counted(calls: Sequence[ProfilerCall]) -> str:
    """Return number and duration of calls: ``3 calls, 1.2 ms together``; only the number if durations are unknown."""
    many = format_count(len(calls), "call")
    return f"{many}, {format_seconds(_seconds(calls))} together" if any(call.end for call in calls) else many


def _seconds(calls: Iterable[ProfilerCall]) -> float:
    return sum(call.end - call.start for call in calls if call.end is not None) / 1e9


def _content(trace: ProfilerFile) -> str:
    """Return a clause on what a file without collectives has instead."""
    if not trace.categories:
        return "it has no events"
    if any(map(is_kernel, trace.categories)):
        return "none of its kernels communicates"
    if trace.launches:
        return "it has launches of kernels, but not the kernels: the GPU was not recorded"
    kinds = ", ".join(sorted(trace.categories)[:_MOST_KERNELS])
    return f"it has no kernels and no ops of torch.distributed, only events of the kinds {kinds}"


def notes_on_steps(calls: Iterable[ProfilerCall], name: str) -> Iterable[str]:
    """Yield a note on collectives that no step counts, for a file with steps.

    Args:
        calls: collectives of the file.
        name: name of the file.
    """
    before = sum(call.issued is None for call in calls)
    if before:
        queued = format_count(before, "collective")
        yield f"{name} has no launch of {queued}, queued before the recording began: no step counts them"


def notes_on_sizes(events: pl.DataFrame, name: str) -> Iterable[str]:
    """Yield notes on collectives whose size or dtype is unknown.

    Args:
        events: events table of the file.
        name: name of the file.
    """
    for is_unknown, what in ((IS_UNSIZED, "size"), (HAS_UNKNOWN_DTYPE, "dtype")):
        count = events.filter(is_unknown).height
        if count:
            yield f"{name} does not say the {what} of {count:,} of its collectives: sums are without them"
