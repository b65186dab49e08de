"""What `dsexplore.comm.all_reduce` costs beside `torch.distributed.all_reduce`: two gloo processes, one run.

The three ways (torch, logging off, logging on) take turns call by call, so that the machine's moods meet all of
them; each ratio is that of the medians over all turns. Run from the project's root:

    python -m benchmarks.comm_overhead [--calls 3000] [--repeat 3]
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import Any

from dsexplore.units import format_bytes
from dsexplore.worlds.processes import run_ranks

SIZES = (8, 64 * 1024, 4 * 1024 * 1024)
GOALS = {"off": 1.02, "on": 1.15}
WAYS = ("torch", "off", "on")
_FEWEST_CALLS = 200


def measure(size: int, calls: int) -> dict[str, float]:
    """On a rank: the median cost of a call in microseconds, for each way."""
    import torch
    import torch.distributed as td

    import dsexplore.comm as dist

    tensor = torch.ones(size // 4)
    functions = {"torch": td.all_reduce, "off": dist.all_reduce, "on": dist.all_reduce}
    taken: dict[str, list[int]] = {way: [] for way in WAYS}
    clock = time.perf_counter_ns
    for turn in range(calls + 20):
        # Who goes first changes, so that no way always runs on what another left behind.
        for way in WAYS[turn % 3 :] + WAYS[: turn % 3]:
            function = functions[way]
            dist.comms_logger.enabled = way == "on"
            td.barrier()
            start = clock()
            function(tensor)
            stop = clock()
            if turn >= 20:
                taken[way].append(stop - start)
    dist.comms_logger.enabled = False
    assert dist.get_comm_operation_count() == calls + 20, "the log does not hold each logged call once"
    return {way: median(times) / 1e3 for way, times in taken.items()}


def ratios(size: int, calls: int) -> dict[str, float]:
    """Of one run: microseconds of torch's call, and the ratios of the others to it; means over both ranks."""
    run = run_ranks(measure, 2, args=(size, calls), timeout=600)
    costs: list[dict[str, Any]] = run.values
    torch_us = sum(cost["torch"] for cost in costs) / len(costs)
    return {"torch": torch_us, **{way: sum(c[way] / c["torch"] for c in costs) / len(costs) for way in GOALS}}


def main() -> None:
    """Print a line for each size, and whether the goals are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=3000, help="measured calls of each way for the smallest size")
    parser.add_argument("--repeat", type=int, default=3, help="runs for each size; the median ratio counts")
    options = parser.parse_args()
    print(f"all_reduce, 2 gloo processes; goals: off ≤ {GOALS['off']}, on ≤ {GOALS['on']}")
    for size in SIZES:
        calls = max(_FEWEST_CALLS, options.calls // (1 + size // (256 * 1024)))
        runs = [ratios(size, calls) for _ in range(options.repeat)]
        torch_us, off, on = (median(run[way] for run in runs) for way in WAYS)
        met = "met" if off <= GOALS["off"] and on <= GOALS["on"] else "missed"
        print(f"{format_bytes(size):>8}: torch {torch_us:8.1f} µs   off × {off:.3f}   on × {on:.3f}   goals {met}")


if __name__ == "__main__":
    main()
