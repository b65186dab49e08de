"""What `dsexplore.comm.all_reduce` costs beside `torch.distributed.all_reduce`: two gloo processes, one run.

The three ways (torch, logging off, logging on) take turns block by block of calls, in each of their six orders, so
that the machine's moods meet all of them, and none comes always after the same other one. Each turn gives a ratio, of
blocks that ran right after each other. The median of 30 turns is one measurement; printed are the mean of all of them
and its 95 % interval, as `aio_vs_fio` does: a goal is met by the mean, tied if only the interval reaches it, or missed.
Run from the project's root, with nothing else running:

    python -m benchmarks.comm_overhead [--turns 300] [--repeat 3]

Before that: what a log of 300,000 calls takes in memory, and to become a table and a trace (goal: a second of CPU); and
what each function costs with the log off, without torch's; and what a recording adds to torch's own `all_reduce`: the
least of many blocks, which hardly depends on the load.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from statistics import median

from benchmarks.goals import verdict
from dsexplore import run_ranks
from dsexplore._internal.aio.sweeps.statistics import ratio_interval
from dsexplore._internal.units import format_bytes

BLOCKS = {8: 50, 64 * 1024: 25, 4 * 1024 * 1024: 2}
"""Message sizes in bytes, and how many calls make a block."""
GOAL_OFF = 1.02
GOALS_ON = {8: 1.25, 64 * 1024: 1.15, 4 * 1024 * 1024: 1.15}
"""By message size in bytes: what one more Python function costs weighs most in the shortest call."""
WAYS = ("torch", "off", "on")
WARM_UP = 10
PART = 30
"""Turns of which the median is one measurement: each order of the ways comes five times."""
SETTLE = 5
"""Calls before each block: the first ones after the log was turned on or off find its caches empty."""
CALLS = 300_000
GOAL_TRACE = 1.0
"""Seconds of CPU time, of a trace of so many calls."""


def measure(size: int, turns: int, block: int) -> dict[str, list[int]]:
    """On a rank: the nanoseconds of each block of calls, by way."""
    import torch
    import torch.distributed as td

    import dsexplore.comm as dist

    tensor = torch.ones(size // 4)
    functions = {"torch": td.all_reduce, "off": dist.all_reduce, "on": dist.all_reduce}
    taken: dict[str, list[int]] = {way: [] for way in WAYS}
    clock = time.perf_counter_ns
    orders = list(permutations(WAYS))
    for turn in range(turns + WARM_UP):
        for way in orders[turn % len(orders)]:
            function = functions[way]
            dist.comms_logger.enabled = way == "on"
            for _ in range(SETTLE):
                function(tensor)
            td.barrier()
            start = clock()
            for _ in range(block):
                function(tensor)
            taken[way].append(clock() - start)
    dist.comms_logger.enabled = False
    logged = (turns + WARM_UP) * (SETTLE + block + 1)  # with the barrier before each block
    assert dist.get_comm_operation_count() == logged, "the log does not hold each call once"
    return {way: times[WARM_UP:] for way, times in taken.items()}


def long_log() -> dict[str, float]:
    """On one rank: bytes per logged call, and seconds of CPU time of the trace and of the table of `CALLS` of them."""
    import tracemalloc

    import torch
    import torch.distributed as td

    import dsexplore.comm as dist

    tensors = [torch.ones(2**power) for power in range(4)]
    dist.configure(enabled=True)
    log = dist.comms_logger
    log.most = CALLS
    tracemalloc.start()
    for number in range(2_000):
        (dist if number % 2 else td).all_reduce(tensors[number % 4])
    bytes_per_call = tracemalloc.get_traced_memory()[0] / 2_000
    tracemalloc.stop()
    while len(log._recording.issued) < CALLS:
        (dist if len(log._recording.issued) % 2 else td).all_reduce(tensors[0])
    taken = {}
    for name, make in (("trace", log.trace), ("table", log.to_frame)):
        begun = time.process_time()
        make()
        taken[name] = time.process_time() - begun
    dist.configure(enabled=False)
    return {"bytes": bytes_per_call, **taken}


def added() -> dict[str, float]:
    """On one rank: nanoseconds of a call of each function, log off, in the place of torch's one that does nothing."""
    import torch

    import dsexplore.comm as dist
    from dsexplore._internal.comm import spellings

    def nothing(*_: object) -> None:
        return None

    one = torch.ones(1)
    calls = {"all_reduce": (one,), "broadcast": (one, 0), "all_gather_into_tensor": (one, one)}
    calls |= {"reduce_scatter_tensor": (one, one), "barrier": ()}
    costs = {}
    for name, args in calls.items():
        spelling = getattr(spellings, name.upper())
        setattr(spellings, name.upper(), replace(spelling, call=nothing))
        costs[name] = fastest(getattr(dist, name), args) - fastest(nothing, args)
        setattr(spellings, name.upper(), spelling)
    return costs


def fastest(function: Callable[..., object], args: tuple[object, ...], blocks: int = 300, block: int = 1000) -> float:
    """Nanoseconds of a call in the fastest of many blocks of calls."""
    clock = time.perf_counter_ns
    taken = []
    for _ in range(blocks):
        start = clock()
        for _ in range(block):
            function(*args)
        taken.append(clock() - start)
    return min(taken) / block


def recorded() -> dict[str, float]:
    """What recording adds to an all_reduce of 8 B on one rank: microseconds of the program's thread, the least of many
    blocks, where the method of the group is observed and where only the op's kernel is."""
    import torch
    import torch.distributed as td

    from dsexplore import commtrace
    from dsexplore._internal.capture.collectives.group_methods import GroupMethods

    x = torch.ones(2)

    def block(calls: int = 500) -> float:
        began = time.thread_time_ns()
        for _ in range(calls):
            td.all_reduce(x)
        return (time.thread_time_ns() - began) / calls / 1e3

    def traced() -> float:
        with commtrace():
            return block()

    install = GroupMethods.install
    times: dict[str, list[float]] = {"untraced": [], "method": [], "kernel": []}
    for _ in range(30):
        times["untraced"].append(block())
        times["method"].append(traced())
        GroupMethods.install = lambda *_: None  # type: ignore[assignment,method-assign]
        try:
            times["kernel"].append(traced())
        finally:
            GroupMethods.install = install  # type: ignore[method-assign]
    return {way: min(values) - min(times["untraced"]) for way, values in times.items() if way != "untraced"}


def one_run(size: int, turns: int, block: int) -> dict[str, list[float]]:
    """The microseconds of torch's call, and the ratio of each other way to it: the medians of every 30 turns, of which
    each is the time of both ranks together."""
    ranks: list[dict[str, list[int]]] = run_ranks(measure, 2, args=(size, turns, block), timeout=600).values
    times = {way: [sum(pair) for pair in zip(*(rank[way] for rank in ranks), strict=True)] for way in WAYS}
    calls = {"torch": [both / len(ranks) / block / 1e3 for both in times["torch"]]}
    ratios = {way: [a / b for a, b in zip(times[way], times["torch"], strict=True)] for way in WAYS[1:]}
    parts = [slice(at, at + PART) for at in range(0, turns - PART + 1, PART)]
    return {way: [median(values[part]) for part in parts] for way, values in (calls | ratios).items()}


def main() -> None:
    """Print a line for each size, and whether the goals are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=300, help=f"blocks of each way, {PART} or more")
    parser.add_argument("--repeat", type=int, default=3, help="runs for each size")
    options = parser.parse_args()
    if options.turns < PART:
        parser.error(f"--turns {options.turns} is not enough for one measurement: give {PART} or more")
    (long,) = run_ranks(long_log, 1, timeout=600).values
    met = "met" if long["trace"] <= GOAL_TRACE else "MISSED"
    print(f"log of {CALLS:,} calls: {long['bytes']:.0f} B a call, table in {long['table']:.2f} s")
    print(f"  trace in {long['trace']:.2f} s of CPU time, goal ≤ {GOAL_TRACE:g} {met}")
    (costs,) = run_ranks(added, 1, timeout=600).values
    print(f"log off, beside torch's function: {', '.join(f'{name} {cost:.0f} ns' for name, cost in costs.items())}")
    (adds,) = run_ranks(recorded, 1, timeout=600).values
    method, kernel = adds["method"], adds["kernel"]
    print(f"recording an all_reduce adds {method:.0f} µs by its group's method, {kernel:.0f} µs by its op's kernel")
    goals = ", ".join(f"≤ {goal} at {format_bytes(size)}" for size, goal in GOALS_ON.items())
    print(f"all_reduce, 2 gloo processes; goals: off ≤ {GOAL_OFF}; on {goals}")
    for size, block in BLOCKS.items():
        runs = [one_run(size, options.turns, block) for _ in range(options.repeat)]
        torch_us, off, on = ([value for run in runs for value in run[way]] for way in WAYS)
        said = [f"{format_bytes(size):>8}: torch {median(torch_us):8.1f} µs"]
        for way, ratios, goal in (("off", off, GOAL_OFF), ("on", on, GOALS_ON[size])):
            ratio = ratio_interval(ratios)
            said.append(f"{way} × {ratio} {verdict(ratio, most=goal)}")
        print("   ".join(said), flush=True)


if __name__ == "__main__":
    main()
