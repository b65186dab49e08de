"""`sweep`: measure the collectives of a process group from torch, as nccl-tests does.

Each round measures a *slice* of every op and size in turn, so that other load on the machine affects all of them. A
slice is warmed up, then called back to back until its time is over, equally often on all ranks. Its time is the mean
over the calls and the ranks, as in nccl-tests. Its quiet time is the lower quartile of the calls, which other programs
disturb less. On GPUs, where calls are queued, single calls are not timed. Results are checked before anything is timed.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import torch
import torch.distributed as td

from dsexplore._internal.comm.sweeps.sweep_ops import (
    IN_PARTS,
    IN_PLACE,
    SWEPT,
    Prepared,
    SweptGroup,
    elements,
    prepare,
    wrong_elements,
)
from dsexplore._internal.comm.sweeps.sweep_result import CommSweep, SweepConditions, SweepPoint
from dsexplore._internal.errors import UsageError
from dsexplore._internal.free_memory import free_memory
from dsexplore._internal.progress import track
from dsexplore._internal.signatures import names_arguments
from dsexplore._internal.units import format_bytes, parse_size

SMALLEST, LARGEST = "512", "1GiB"
WARM_UP = 3
LEAST_REPEATS, MOST_REPEATS = 4, 1000
MEMORY_SHARE = 0.5
"""Fraction of the free memory that the ranks of a machine may use together."""
BUFFERS = 4
"""Memory of a rank in multiples of the message bytes: input, output, and the library's buffers."""


class CollectiveSlice(NamedTuple):
    """An op at one size, in place or out of place."""

    op: str
    message_bytes: int
    in_place: bool


@names_arguments
def sweep(
    group: td.ProcessGroup | None = None,
    *,
    ops: Sequence[str] = SWEPT,
    message_bytes: Sequence[int | str] | None = None,
    smallest: int | str = SMALLEST,
    largest: int | str = LARGEST,
    factor: int = 2,
    in_place: bool = True,
    rounds: int = 3,
    seconds: float = 0.05,
    dtype: torch.dtype = torch.float32,
    clock: Callable[[], float] = time.perf_counter,
) -> CommSweep:
    """Measure collectives of a group. Every rank of the group must call this, and gets the same result.

    Args:
        group: a process group; None for the world.
        ops: names of the ops, from `SWEPT`.
        message_bytes: sizes to measure; None goes from `smallest` to `largest` by `factor`.
        smallest: smallest message bytes: a number, or text such as ``"4KiB"``.
        largest: largest message bytes; sizes that do not fit the machine's memory are omitted, with a remark.
        factor: ratio of each size to the one before, 2 or more.
        in_place: also measure the ops in place that can be in place.
        rounds: number of rounds; each measures every op at every size.
        seconds: time to call one op at one size in a round; it is called at least four times.
        dtype: data type of the elements.
        clock: returns seconds; for tests.

    Raises:
        UsageError: no process group, a simulated one, an unknown op, or invalid sizes.
    """
    swept = _swept_group(group, dtype)
    sizes = _sizes(message_bytes, smallest, largest, factor)
    _check(ops, rounds)
    ranks_of_nodes = _ranks_of_nodes(swept)
    remarks = []
    if len(set(ranks_of_nodes)) > 1:
        remarks.append(f"nodes have different numbers of ranks: {ranks_of_nodes}")
    fitting = _fitting_sizes(sizes, swept, max(ranks_of_nodes))
    if len(fitting) < len(sizes):
        remarks.append(f"sizes above {format_bytes(fitting[-1])} do not fit the memory")
    started = datetime.now().astimezone().isoformat(timespec="seconds")
    points = _measure(_slices(ops, fitting, in_place, swept), swept, rounds, seconds, clock)
    conditions = SweepConditions(
        backend=str(td.get_backend(swept.group)),
        device=swept.device.type,
        nodes=len(ranks_of_nodes),
        ranks_per_node=max(ranks_of_nodes),
        dtype=str(dtype).removeprefix("torch."),
        software=_software(swept),
        started=started,
        remarks=tuple(remarks),
        processors=len(os.sched_getaffinity(0)),
    )
    return CommSweep(conditions, points)


def _slices(ops: Sequence[str], sizes: Sequence[int], in_place: bool, swept: SweptGroup) -> list[CollectiveSlice]:
    """Return the slices of a round; sizes of less than one element per rank are omitted."""
    slices = []
    for op in ops:
        for size in sizes:
            if elements(op, size, swept) > 0:
                slices.append(CollectiveSlice(op, size, in_place=False))
                if in_place and op in IN_PLACE:
                    slices.append(CollectiveSlice(op, size, in_place=True))
    return slices


def _swept_group(group: Any, dtype: torch.dtype) -> SweptGroup:
    """Return the group to measure; raise UsageError without a real process group that this rank is in."""
    if not td.is_available() or not td.is_initialized():
        raise UsageError("there is no process group to measure: run this under torchrun, or dsexplore comm --real 4")
    group = group or td.group.WORLD
    rank = td.get_rank(group)
    if rank < 0:
        raise UsageError("this rank is not in the group that is to be measured: call sweep on its members only")
    backend = str(td.get_backend(group))
    if backend == "fake":
        raise UsageError("a simulated group takes no time: measure a real one, as with dsexplore comm --real 4")
    device = torch.device("cuda", torch.cuda.current_device()) if "nccl" in backend else torch.device("cpu")
    return SweptGroup(group, rank, size=td.get_world_size(group), device=device, dtype=dtype)


def _check(ops: Sequence[str], rounds: int) -> None:
    """Raise UsageError for unknown ops or an invalid number of rounds."""
    unknown = [op for op in ops if op not in SWEPT]
    if unknown or not ops:
        raise UsageError(f"ops {unknown or list(ops)} cannot be swept: name some of {', '.join(SWEPT)}")
    if rounds < 1:
        raise UsageError(f"rounds {rounds} is not a number of rounds: give 1 or more")


def _sizes(
    message_bytes: Sequence[int | str] | None, smallest: int | str, largest: int | str, factor: int
) -> list[int]:
    """Return the message bytes to measure, in ascending order; raise UsageError if there are none."""
    try:
        if message_bytes is not None:
            sizes = sorted({parse_size(size) for size in message_bytes})
        else:
            size, end = parse_size(smallest), parse_size(largest)
            if factor < 2:
                raise UsageError(f"factor {factor} does not lead from one size to the next: give 2 or more")
            sizes = []
            while 0 < size <= end:
                sizes.append(size)
                size *= factor
    except ValueError as error:
        raise UsageError(str(error)) from None
    if not sizes or sizes[0] <= 0:
        raise UsageError(f"there is no size between {smallest} and {largest}: give message bytes above 0")
    return sizes


def _ranks_of_nodes(swept: SweptGroup) -> list[int]:
    """Return the number of ranks on each node; every rank of the group must make this call."""
    names: list[Any] = [None] * swept.size
    td.all_gather_object(names, socket.gethostname(), group=swept.group)
    return list(Counter(names).values())


def _fitting_sizes(sizes: list[int], swept: SweptGroup, ranks_per_node: int) -> list[int]:
    """Return the sizes that fit the memory of every rank; raise UsageError if none does."""
    free = swept.reduced(_free_bytes(swept.device), td.ReduceOp.MIN)
    sharing_ranks = ranks_per_node if swept.device.type == "cpu" else 1
    limit = free * MEMORY_SHARE / sharing_ranks / BUFFERS
    fitting = [size for size in sizes if size <= limit]
    if not fitting:
        raise UsageError(
            f"{format_bytes(sizes[0])} do not fit the memory: {format_bytes(limit)} would; give a smaller size"
        )
    return fitting


def _free_bytes(device: torch.device) -> float:
    """Return the bytes of free memory of a GPU, or of the machine; infinity if the system does not report them."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    free = free_memory()
    return math.inf if free is None else float(free)


def _software(swept: SweptGroup) -> str:
    """Return the versions of torch and, on GPUs, of NCCL."""
    library = ""
    if swept.device.type == "cuda":
        library = ", NCCL " + ".".join(map(str, torch.cuda.nccl.version()))
    return f"torch {torch.__version__}{library}"


def _measure(
    slices: list[CollectiveSlice], swept: SweptGroup, rounds: int, seconds: float, clock: Callable[[], float]
) -> list[SweepPoint]:
    """Check and time all slices, round by round."""
    timed: dict[CollectiveSlice, list[_Timed]] = {swept_slice: [] for swept_slice in slices}
    wrong = dict.fromkeys(slices, 0)
    with track("measuring collectives", total=rounds * len(slices), unit="slices") as work:
        for number in range(rounds):
            for swept_slice in slices:
                prepared = prepare(swept_slice.op, swept_slice.message_bytes, swept_slice.in_place, swept)
                if number == 0:
                    wrong[swept_slice] = int(swept.reduced(float(wrong_elements(prepared)), td.ReduceOp.SUM))
                timed[swept_slice].append(_over_ranks(_time_slice(prepared, swept, seconds, clock), swept))
                work.advance(1)
    return [
        SweepPoint(
            op=swept_slice.op,
            message_bytes=_whole_bytes(swept_slice, swept),
            in_place=swept_slice.in_place,
            rounds=tuple(times.mean for times in timed[swept_slice]),
            calls=sum(times.calls for times in timed[swept_slice]),
            wrong=wrong[swept_slice],
            quartiles=tuple(times.quartile for times in timed[swept_slice] if times.quartile is not None),
        )
        for swept_slice in slices
    ]


def _whole_bytes(swept_slice: CollectiveSlice, swept: SweptGroup) -> int:
    """Return the message bytes that a slice moves: whole elements per rank."""
    parts = swept.size if swept_slice.op in IN_PARTS else 1
    return elements(swept_slice.op, swept_slice.message_bytes, swept) * parts * swept.dtype.itemsize


class _Timed(NamedTuple):
    """Times of the calls of one slice on one rank, or their means over all ranks."""

    mean: float
    """Mean seconds of a call."""
    quartile: float | None
    """Lower quartile of the calls' seconds; None if calls were not timed one by one."""
    calls: int
    """Number of timed calls."""


def _time_slice(prepared: Prepared, swept: SweptGroup, seconds: float, clock: Callable[[], float]) -> _Timed:
    """Time the calls of a slice on this rank; every rank makes the same number of calls."""
    fastest = min(_mean_seconds(prepared, swept, 1, clock) for _ in range(WARM_UP))
    estimate = swept.reduced(fastest, td.ReduceOp.MAX)
    count = max(LEAST_REPEATS, min(MOST_REPEATS, int(seconds / max(estimate, 1e-9))))
    td.barrier(group=swept.group)
    swept.synchronize()
    if swept.device.type != "cpu":
        return _Timed(_mean_seconds(prepared, swept, count, clock), quartile=None, calls=count)
    durations = []
    begun = ended = clock()
    for _ in range(count):
        prepared.call()
        now = clock()
        durations.append(now - ended)
        ended = now
    return _Timed((ended - begun) / count, quartile=sorted(durations)[count // 4], calls=count)


def _over_ranks(timed: _Timed, swept: SweptGroup) -> _Timed:
    """Return the mean times over all ranks, each of which must make this call."""
    mean = swept.reduced(timed.mean, td.ReduceOp.SUM) / swept.size
    if timed.quartile is None:
        return timed._replace(mean=mean)
    return timed._replace(mean=mean, quartile=swept.reduced(timed.quartile, td.ReduceOp.SUM) / swept.size)


def _mean_seconds(prepared: Prepared, swept: SweptGroup, count: int, clock: Callable[[], float]) -> float:
    """Return the mean seconds of `count` calls, timed together."""
    begun = clock()
    for _ in range(count):
        prepared.call()
    swept.synchronize()
    return (clock() - begun) / count
