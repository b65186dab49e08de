"""`sweep`: measure the collectives of a process group, as nccl-tests does, from torch.

Each round runs all ops and sizes in turn, so that other load on the machine does not affect a single op. Each slice is
warmed up, then called back to back until its time is over, equally often on all ranks. A slice's time is the mean over
the calls and the ranks, as with nccl-tests. The quiet time is the lower quartile of the calls, which other programs
disturb less; on GPUs, where calls wait in a queue, single calls are not timed. On a machine of two cores that ten other
programs used, medians of two rounds differed by 50 %. Results are checked before anything is timed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
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
from dsexplore._internal.progress import track
from dsexplore._internal.signatures import names_arguments
from dsexplore._internal.units import format_bytes, parse_size

SMALLEST, LARGEST = "512", "1GiB"
WARM_UP = 3
LEAST_REPEATS, MOST_REPEATS = 4, 1000
MEMORY_SHARE = 0.5
"""Fraction of the free memory that the ranks of a machine may use together."""
BUFFERS = 4
"""Memory that a rank needs at most, in multiples of the message bytes: input, output, and the library's buffers."""


class CollectiveSlice(NamedTuple):
    """One slice of a sweep, measured in one go."""

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
    """Measure collectives of a group; every rank of it calls this, and every rank gets the same result.

    Args:
        group: a process group; None for the world.
        ops: which, from `SWEPT`.
        message_bytes: sizes to measure; None goes from `smallest` to `largest` by `factor`.
        smallest: message bytes to begin with: a number, or text such as ``"4KiB"``.
        largest: the most message bytes; less where the machine's memory does not suffice, which a remark says.
        factor: from one size to the next.
        in_place: whether to measure in place as well, for the ops that can.
        rounds: how often all is measured.
        seconds: how long one op at one size is called in a round; large messages are called four times at least.
        dtype: of the elements.
        clock: seconds; for tests.

    Raises:
        UsageError: no process group, a simulated one, an unknown op, or sizes that cannot be.
    """
    swept = _swept(group, dtype)
    bytes_wanted = _sizes(message_bytes, smallest, largest, factor)
    _check(ops, rounds)
    where, remarks = _places(swept)
    kept, too_large = _fitting_sizes(bytes_wanted, swept, where[1])
    remarks += too_large
    slices = [
        CollectiveSlice(op, size, place)
        for op in ops
        for size in kept
        if elements(op, size, swept) > 0
        for place in (False, True)
        if not place or (in_place and op in IN_PLACE)
    ]
    started = datetime.now().astimezone().isoformat(timespec="seconds")
    points = _measure(slices, swept, rounds, seconds, clock)
    conditions = SweepConditions(
        *(str(td.get_backend(swept.group)), swept.device.type, *where),
        dtype=str(dtype).removeprefix("torch."),
        software=_software(swept),
        started=started,
        remarks=tuple(remarks),
        processors=len(os.sched_getaffinity(0)),
    )
    return CommSweep(conditions, points)


def _swept(group: Any, dtype: torch.dtype) -> SweptGroup:
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
    return SweptGroup(group, rank, td.get_world_size(group), device, dtype)


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
    try:
        if message_bytes is not None:
            wanted = sorted({parse_size(size) for size in message_bytes})
        else:
            low, high = parse_size(smallest), parse_size(largest)
            if factor < 2:
                raise UsageError(f"factor {factor} does not lead from one size to the next: give 2 or more")
            wanted = [low * factor**step for step in range(200) if low * factor**step <= high] if low else []
    except ValueError as error:
        raise UsageError(str(error)) from None
    if not wanted or wanted[0] <= 0:
        raise UsageError(f"there is no size between {smallest} and {largest}: give message bytes above 0")
    return wanted


def _places(swept: SweptGroup) -> tuple[tuple[int, int], list[str]]:
    """Return the number of nodes and of ranks per node, with a remark if nodes have different numbers of ranks."""
    import socket

    names: list[Any] = [None] * swept.size
    td.all_gather_object(names, socket.gethostname(), group=swept.group)
    counts = [names.count(name) for name in dict.fromkeys(names)]
    remarks = [] if len(set(counts)) == 1 else [f"nodes have different numbers of ranks: {counts}"]
    return (len(counts), max(counts)), remarks


def _fitting_sizes(sizes: list[int], swept: SweptGroup, per_node: int) -> tuple[list[int], list[str]]:
    """Return the sizes that fit the memory of every rank, and a remark on the sizes that do not."""
    free = torch.tensor([float(_free_bytes(swept.device))], device=swept.device)
    td.all_reduce(free, op=td.ReduceOp.MIN, group=swept.group)
    shares = per_node if swept.device.type == "cpu" else 1
    most = int(free.item()) * MEMORY_SHARE / shares / BUFFERS
    kept = [size for size in sizes if size <= most]
    if not kept:
        raise UsageError(
            f"{format_bytes(sizes[0])} do not fit the memory: {format_bytes(most)} would; give a smaller size"
        )
    left = [f"sizes above {format_bytes(kept[-1])} do not fit the memory"] if len(kept) < len(sizes) else []
    return kept, left


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    with Path("/proc/meminfo").open(encoding="ascii") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))


def _software(swept: SweptGroup) -> str:
    library = ""
    if swept.device.type == "cuda":
        library = ", NCCL " + ".".join(map(str, torch.cuda.nccl.version()))
    return f"torch {torch.__version__}{library}"


def _measure(
    slices: list[CollectiveSlice], swept: SweptGroup, rounds: int, seconds: float, clock: Callable[[], float]
) -> list[SweepPoint]:
    """Check and time all slices, round by round."""
    times: dict[CollectiveSlice, list[float]] = {piece: [] for piece in slices}
    quartiles: dict[CollectiveSlice, list[float]] = {piece: [] for piece in slices}
    calls = dict.fromkeys(slices, 0)
    wrong = dict.fromkeys(slices, 0)
    with track("measuring collectives", total=rounds * len(slices), unit="slices") as work:
        for number in range(rounds):
            for piece in slices:
                prepared = prepare(*piece, swept)
                if number == 0:
                    wrong[piece] = int(swept.reduced(float(wrong_elements(prepared)), td.ReduceOp.SUM))
                timed = _time_slice(prepared, swept, seconds, clock)
                times[piece].append(swept.reduced(timed.mean, td.ReduceOp.SUM) / swept.size)
                if timed.quartile is not None:
                    quartiles[piece].append(swept.reduced(timed.quartile, td.ReduceOp.SUM) / swept.size)
                calls[piece] += timed.calls
                work.advance(1)
    return [
        SweepPoint(
            op=piece.op,
            message_bytes=_whole_bytes(piece, swept),
            in_place=piece.in_place,
            rounds=tuple(times[piece]),
            calls=calls[piece],
            wrong=wrong[piece],
            quartiles=tuple(quartiles[piece]),
        )
        for piece in slices
    ]


def _whole_bytes(piece: CollectiveSlice, swept: SweptGroup) -> int:
    """Return the message bytes that a slice moves: whole elements for each rank."""
    parts = swept.size if piece.op in IN_PARTS else 1
    return elements(piece.op, piece.message_bytes, swept) * parts * swept.dtype.itemsize


class _Timed(NamedTuple):
    """The calls of one slice on one rank."""

    mean: float
    """Seconds of a call."""
    quartile: float | None
    """Seconds that a quarter of the calls undercut; None if they were not timed one by one."""
    calls: int


def _time_slice(prepared: Prepared, swept: SweptGroup, seconds: float, clock: Callable[[], float]) -> _Timed:
    """Time the calls of a slice on this rank, equally many on all ranks."""
    fastest = min(_timed_together(prepared, swept, 1, clock) for _ in range(WARM_UP))
    estimate = swept.reduced(fastest, td.ReduceOp.MAX)
    count = max(LEAST_REPEATS, min(MOST_REPEATS, int(seconds / max(estimate, 1e-9))))
    td.barrier(group=swept.group)
    swept.synchronize()
    if swept.device.type != "cpu":
        return _Timed(_timed_together(prepared, swept, count, clock), None, count)
    durations = []
    begun = ended = clock()
    for _ in range(count):
        prepared.call()
        now = clock()
        durations.append(now - ended)
        ended = now
    return _Timed((ended - begun) / count, sorted(durations)[count // 4], count)


def _timed_together(prepared: Prepared, swept: SweptGroup, count: int, clock: Callable[[], float]) -> float:
    """Return the mean seconds of `count` calls; on a GPU they wait in one queue."""
    begun = clock()
    for _ in range(count):
        prepared.call()
    swept.synchronize()
    return (clock() - begun) / count
