"""What the always-current file of a rank's calls costs per call, and per op that is not a collective.

Run ``python benchmarks/journal_price.py``. Bounds: 3 µs a call, and nothing for any other op: the file is written where
a recording takes a collective, and nowhere else.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

import dsexplore
from dsexplore._internal.capture.journaled_calls import open_journal
from dsexplore._internal.capture.recorder_in_use import in_use

CALLS, ROUNDS = 2000, 15


def seconds_of(block: Callable[[], None]) -> float:
    """Return the CPU seconds of this thread for one run of `block`."""
    began = time.thread_time()
    block()
    return time.thread_time() - began


def microseconds_per_call(folder: Path) -> float:
    """Return the median over rounds of what writing one call takes, of calls that a real group made."""
    with dsexplore.commtrace():
        for count in (8, 64, 512):
            dist.all_reduce(torch.ones(count))
            dist.broadcast(torch.ones(count), 0)
        issued = list(in_use().recordings[0].issued)
    journal = open_journal(folder, "price", time.time_ns(), 1)
    assert journal is not None, "the folder's file system maps no files"

    def write() -> None:
        for at in range(CALLS):
            journal.add(issued[at % len(issued)])

    write()
    rounds = [seconds_of(write) / CALLS * 1e6 for _ in range(ROUNDS)]
    journal.close(remove=True)
    return statistics.median(rounds)


def nanoseconds_per_op(folder: Path) -> float:
    """Return what an op that is not a collective takes more where the file is written, median of differences."""
    tensor = torch.ones(8)

    def ops() -> None:
        for _ in range(10 * CALLS):
            tensor.add(1)

    differences = []
    for _ in range(ROUNDS):
        with dsexplore.commtrace():
            without = seconds_of(ops)
        with dsexplore.commtrace(save=folder):
            differences.append((seconds_of(ops) - without) / CALLS / 10 * 1e9)
    return statistics.median(differences)


def main() -> None:
    """Print both prices."""
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
        call = microseconds_per_call(Path(folder) / "calls")
        op = nanoseconds_per_op(Path(folder) / "ops")
        dist.destroy_process_group()
    print(f"the always-current file: {call:.2f} µs per call (bound: 3), {op:+.0f} ns per other op (within noise of 0)")


if __name__ == "__main__":
    main()
