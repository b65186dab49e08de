"""Cells on local ranks: start-up, latency of a cell and memory, beside ipyparallel, jupyter-distributed where it is
installed (of which the kernels alone are measured, without the proxy before them), and torch's elastic launcher.

The cell is one all_reduce of four floats. Goals: at most 0.3 s per cell on 4 new ranks, 0.05 s on kept ones, and at
most a third of ipyparallel's memory; where one rank raises while the others wait for it in that all_reduce, its error
is there and all ranks are gone within 0.5 s. Memory is PSS, the share of each process of the pages that it has in
common with others: ours with the server that ranks are forked from, ipyparallel's with the controller that engines
need; after that cell, and after a step of a small model under FSDP2, as our server has imported from the start what
engines import then.
Overlap: two asynchronous all_reduces beside a matmul, traced and untraced in turn, at most 1.03 of the wall time: the
geometric mean over rounds with its 95 % interval, and beside it, of the same rounds, untraced to untraced. Once with
messages of 25 MiB, as DDP's buckets are unless a program says otherwise, and once with small ones of 4 MiB.

Usage: python -m benchmarks.real_ranks [--ranks 2 4 8] [--cells 5] [--rounds 60] [--without-others]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from benchmarks.goals import verdict
from dsexplore import run_ranks
from dsexplore._internal.aio.sweeps.statistics import ratio_interval
from dsexplore._internal.worlds.real.rank_world import RankWorld
from dsexplore._internal.worlds.real.server_handle import close as close_server
from dsexplore._internal.worlds.real.server_handle import server
from tests.worlds.real.cells import STEP, SUM, cell_of

CELL = cell_of(SUM, "x[0].item()")
RAISING = cell_of(SUM.replace("x = ", "if dist.get_rank() == 1:\n    raise ValueError('on purpose')\nx = "))
ELASTIC = SUM.replace("x = ", "dist.init_process_group('gloo')\nx = ") + "dist.destroy_process_group()\n"


def pss(pids: Iterable[int]) -> float:
    """Proportional set size of processes and all below them, in MB."""
    total, waiting = 0, list(pids)
    while waiting:
        pid = waiting.pop()
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            waiting += [
                int(child)
                for task in Path(f"/proc/{pid}/task").glob("*/children")
                for child in task.read_text().split()
            ]
        except OSError:
            continue
        total += next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return total / 1024


def raised(ranks: int, cells: int) -> float:
    """Seconds from the start of a cell in which one rank raises, until its error is there and all ranks are gone."""
    seconds = []
    for _ in range(cells):
        world = RankWorld(ranks)
        world.open()
        began = time.perf_counter()
        report = world.run(RAISING)
        world.close()
        seconds.append(time.perf_counter() - began)
        assert not report.ok
    return statistics.median(seconds)


def ours(ranks: int, cells: int) -> dict[str, float]:
    """Seconds of new and of kept ranks, and the memory of kept ones with their server."""
    server()  # its start is no cell's
    fresh, kept = [], []
    for _ in range(cells):
        began = time.perf_counter()
        world = RankWorld(ranks)
        world.open()
        assert world.run(CELL).ok
        world.close()
        fresh.append(time.perf_counter() - began)
    world = RankWorld(ranks)
    world.open()
    world.run(CELL)
    for _ in range(cells):
        began = time.perf_counter()
        assert world.run(CELL).ok
        kept.append(time.perf_counter() - began)
    memory = pss([server().pid])
    assert world.run(cell_of(STEP)).ok
    after_step = pss([server().pid])
    world.close()
    return {"new": statistics.median(fresh), "kept": statistics.median(kept), "pss": memory, "step": after_step}


def ipyparallel(ranks: int, cells: int) -> dict[str, float]:
    """Seconds until engines answer with torch imported, of a cell on them, and memory."""
    import ipyparallel as ipp

    with tempfile.TemporaryDirectory() as folder:
        os.environ["IPYTHONDIR"] = folder
        began = time.perf_counter()
        cluster = ipp.Cluster(n=ranks, controller_ip="127.0.0.1", log_level=40)
        client = cluster.start_and_connect_sync()
        view = client[:]
        start = "import os, torch, torch.distributed as dist\n"
        start += "dist.init_process_group('gloo', rank=R, world_size=W, init_method=M)"
        view.scatter("R", list(range(ranks)), flatten=True, block=True)
        view.push({"W": ranks, "M": f"file://{folder}/store"}, block=True)
        view.execute(start, block=True)
        started = time.perf_counter() - began
        seconds = []
        for _ in range(cells):
            began = time.perf_counter()
            view.execute(SUM, block=True)
            seconds.append(time.perf_counter() - began)
        processes = [*view.apply_sync(os.getpid), cluster.controller.pid]
        memory = pss(processes)
        view.execute(STEP, block=True)
        after_step = pss(processes)
        cluster.stop_cluster_sync()
        client.close()
    return {"start": started, "cell": statistics.median(seconds), "pss": memory, "step": after_step}


def children() -> set[int]:
    """The processes that this one has started."""
    tasks = Path("/proc/self/task").glob("*/children")
    return {int(child) for task in tasks for child in task.read_text().split()}


async def jupyter_distributed(ranks: int, cells: int) -> dict[str, float]:
    """Seconds until jupyter-distributed's kernels have a process group, of a cell on them, and memory."""
    from jupyter_distributed.kernel_group import DistributedKernelGroup

    before = children()
    began = time.perf_counter()
    group = DistributedKernelGroup(ranks)
    await group.start()
    try:
        await group.execute("import torch, torch.distributed as dist\ndist.init_process_group('gloo')")
        started = time.perf_counter() - began
        seconds = []
        for _ in range(cells):
            began = time.perf_counter()
            ran = await group.execute(SUM)
            seconds.append(time.perf_counter() - began)
            assert ran.status == "ok"
        processes = children() - before
        memory = pss(processes)
        await group.execute(STEP)
        return {"start": started, "cell": statistics.median(seconds), "pss": memory, "step": pss(processes)}
    finally:
        await group.shutdown()


def elastic(ranks: int) -> float:
    """Seconds of torchrun for the same program."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "cell.py")
        script.write_text(ELASTIC)
        began = time.perf_counter()
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={ranks}",
            str(script),
        ]
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        return time.perf_counter() - began


OVERLAPS = {"25 MiB": (25 << 18, 1400, 4), "4 MiB": (1 << 20, 600, 10)}
"""By the size of a message: its float32 elements, the rows of a square matrix, and steps in a turn."""


def _overlap(rounds: int, elements: int, side: int, steps: int) -> tuple[list[float], list[float]]:
    """On a rank: by round the ratio of wall times, traced to untraced, and of untraced to untraced."""
    import torch
    import torch.distributed as dist

    from dsexplore import commtrace

    left, big = torch.ones(side, side), [torch.ones(elements) for _ in range(2)]

    def step() -> None:
        works = [dist.all_reduce(each, async_op=True) for each in big]
        torch.mm(left, left)
        for work in works:
            assert work is not None
            work.wait()

    def timed() -> float:
        dist.barrier()
        began = time.perf_counter()
        for _ in range(steps):
            step()
        return time.perf_counter() - began

    def traced() -> float:
        with commtrace():
            return timed()

    timed()
    ways = [timed, traced, timed]
    seconds: list[list[float]] = [[], [], []]
    for number in range(rounds):
        for way in ((0, 1, 2), (2, 0, 1), (1, 2, 0), (2, 1, 0), (0, 2, 1), (1, 0, 2))[number % 6]:
            seconds[way].append(ways[way]())
    ours = [with_it / ((first + second) / 2) for first, with_it, second in zip(*seconds, strict=True)]
    return ours, [second / first for first, _, second in zip(*seconds, strict=True)]


def print_overlap(rounds: int) -> None:
    """Print the ratios of two ranks with their intervals, and beside them those of the same program to itself."""
    for size, (elements, side, steps) in OVERLAPS.items():
        run = run_ranks(_overlap, 2, args=(rounds, elements, side, steps), timeout=900)
        for rank, (ours, itself) in enumerate(run.values):
            ratio, noise = ratio_interval(ours), ratio_interval(itself)
            print(
                f"overlap, messages of {size}, rank {rank}, traced to untraced: {ratio}: "
                f"{verdict(ratio, most=1.03)} (goal 1.03); untraced to untraced: {noise}",
                flush=True,
            )


def print_beside(name: str, mine: dict[str, float], theirs: dict[str, float]) -> None:
    """Print what another library's ranks take, and the memory of ours as a part of theirs."""
    seconds = f"start {theirs['start']:.1f} s, cell {theirs['cell']:.3f} s (untraced)"
    print(f"         {name}: {seconds}, PSS {theirs['pss']:.0f} MB, {theirs['step']:.0f} MB after a step")
    less = f"{mine['pss'] / theirs['pss']:.2f}, after a step {mine['step'] / theirs['step']:.2f}"
    print(f"         memory, dsexplore to {name}: {less}; goal 0.33 of ipyparallel's", flush=True)


def main() -> None:
    """Print a line per number of ranks and launcher."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--cells", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=60, help="of the comparison of overlap")
    parser.add_argument("--without-others", action="store_true", help="leave out ipyparallel and torchrun")
    options = parser.parse_args()
    began = time.perf_counter()
    server()
    load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs"
    print(f"the rank server, once per kernel: {time.perf_counter() - began:.2f} s; {load}")
    for ranks in options.ranks:
        mine = ours(ranks, options.cells)
        seconds = f"new {mine['new']:.3f} s, kept {mine['kept']:.3f} s"
        print(
            f"{ranks} ranks  dsexplore: {seconds}, PSS {mine['pss']:.0f} MB, {mine['step']:.0f} MB after a step",
            flush=True,
        )
        print(f"         a rank that raises: {raised(ranks, options.cells):.3f} s", flush=True)
        if options.without_others:
            continue
        close_server()  # others would share pages of torch's libraries with it, and seem the smaller
        print_beside("ipyparallel", mine, ipyparallel(ranks, options.cells))
        if find_spec("jupyter_distributed") is None:
            print("         jupyter-distributed: not installed")
        else:
            print_beside("jupyter-distributed", mine, asyncio.run(jupyter_distributed(ranks, options.cells)))
        print(f"         torchrun: {elastic(ranks):.1f} s", flush=True)
    print_overlap(options.rounds)


if __name__ == "__main__":
    main()
