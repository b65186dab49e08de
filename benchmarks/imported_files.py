"""How long files of other tools take to open, and how well the clocks in them are put onto one.

Run it from the repository's root: ``python -m benchmarks.imported_files``. The files are made first, in a temporary
folder, and take 0.4 GB. Goals, printed beside what was measured: 64 profiler traces of 20,000 events each open within
5 s; 16 flight-recorder dumps of 2,000 collectives each are analysed within 1 s; and for profiler traces of 2 and of 4
gloo ranks of this machine, whose clocks are then shifted by up to a second, the offsets are found with a residual of at
most 10 µs. As these ranks share one clock, by how much each offset is wrong is known, too. The time of the check of a
large pickled dump, which is made before it is unpickled, is printed beside plain unpickling, and beside listing its
opcodes with `pickletools.genops`; ``--only scan`` prints that alone.
"""

from __future__ import annotations

import argparse
import json
import pickle
import pickletools
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import dsexplore
from dsexplore import run_ranks
from dsexplore._internal.paused_collector import no_collection
from dsexplore._internal.trace.importers.plain_pickle import load_plain

OPEN_GOAL_S = 5.0
HANG_GOAL_S = 1.0
EPOCH = 1_700_000_000_000_000_000
RESIDUAL_GOAL_US = 10.0
SHIFTS_NS = (0, 1_000_000_000, -999_999_000, 123_456_789)
PROFILED = """
import torch, torch.distributed as dist
from torch.profiler import ProfilerActivity, profile
x = torch.ones(256)
for _ in range(50): dist.all_reduce(x)
with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
    for _ in range(1000): dist.all_reduce(x)
profiler.export_chrome_trace(f"{folder}/r{rank}.json")
"""
STEP_US = 100.0
"""Between two collectives of a profiled rank."""


def profile(rank: int, ranks: int, count: int, draw: random.Random) -> dict[str, Any]:
    """A profiler trace of one rank: ops, launches, modules, compute kernels, and one collective in forty events."""
    events: list[dict[str, Any]] = []
    shift = draw.uniform(-1e6, 1e6)  # this rank's clock, in µs
    group = {"Process Group Name": "0", "Process Group Description": "default_pg", "Group size": ranks}
    message = {"Collective name": "_allgather_base", "In msg nelems": 4096, "Out msg nelems": 4096 * ranks}
    for i in range(count // 4):
        at = STEP_US * i + shift
        common = {"pid": 1, "tid": 3, "ts": at, "dur": 40.5}
        shapes = {"External id": i, "Input Dims": [[2048, 4096], [4096, 4096]], "Input type": ["float", "float"]}
        events.append({"ph": "X", "cat": "cpu_op", "name": "aten::mm", **common, "args": shapes})
        launch = {"External id": i, "correlation": i}
        events.append({"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", **common, "args": launch})
        module = f"nn.Module: Linear_{i % 50}"
        events.append({"ph": "X", "cat": "python_function", "name": module, **common, "args": {"Python id": i}})
        on_gpu = {"pid": 0, "tid": 7, "ts": at + 5, "dur": 30.25}
        name, told = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas", {"stream": 7}
        if i % 10 == 0:
            name, told = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", {**message, **group}
        events.append({"ph": "X", "cat": "kernel", "name": name, **on_gpu, "args": {**told, "correlation": i}})
    info = {"backend": "nccl", "rank": rank, "world_size": ranks}
    return {"schemaVersion": 1, "distributedInfo": info, "traceEvents": events, "baseTimeNanoseconds": EPOCH}


def dumps(ranks: int, count: int) -> Iterator[dict[str, Any]]:
    """Dumps of a job with tensor and data parallelism, in which rank 5 stops before its last step."""
    width = 4
    tp = {str(1 + i): list(range(i * width, (i + 1) * width)) for i in range(ranks // width)}
    dp = {str(1 + ranks // width + i): list(range(i, ranks, width)) for i in range(width)}
    groups = {"0": ("default_pg", list(range(ranks)))}
    groups |= {name: ("mesh_tp", of) for name, of in tp.items()} | {name: ("mesh_dp", of) for name, of in dp.items()}
    for rank in range(ranks):
        own = [name for name, (_, of) in groups.items() if rank in of][1:]
        entries: list[dict[str, Any]] = []
        numbers = dict.fromkeys(own, 0)
        while len(entries) < count - (4 if rank == 5 else 0):
            name = own[len(entries) % 4 == 3]
            numbers[name] += 1
            is_last = len(entries) >= count - 4
            entries.append(entry(len(entries), name, groups[name][0], numbers[name], is_pending=is_last))
            if is_last:
                break
        described = {name: {"name": name, "desc": groups[name][0], "ranks": str(groups[name][1])} for name in groups}
        yield {"version": "2.10", "comm_lib_version": "2.27.5", "pg_config": described, "entries": entries}


def entry(record: int, group: str, description: str, number: int, *, is_pending: bool) -> dict[str, Any]:
    """One collective of a dump, with a stack of ten frames."""
    frames = [
        {"name": "all_reduce", "filename": f"/usr/lib/torch/distributed/c10d_{i}.py", "line": i} for i in range(9)
    ]
    return {
        "record_id": record,
        "pg_id": int(group),
        "process_group": [group, description],
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": EPOCH + record * 1_000_000,
        "input_sizes": [[4096, 4096]],
        "input_dtypes": ["BFloat16"],
        "output_sizes": [[4096, 4096]],
        "output_dtypes": ["BFloat16"],
        "state": "scheduled" if is_pending else "completed",
        "time_discovered_completed_ns": None if is_pending else EPOCH + record * 1_000_000 + 500_000,
        "is_p2p": False,
        "frames": [*frames, {"name": "step", "filename": "/job/train.py", "line": 10 + record % 4}],
    }


def clocks(ranks: int, folder: Path) -> tuple[float, float]:
    """The largest residual of the offsets of clocks shifted by hand, and by how much the worst is wrong, in µs."""
    folder.mkdir()
    run_ranks(PROFILED, ranks, namespace={"folder": str(folder)}, timeout=300).check()
    for rank, shift in enumerate(SHIFTS_NS[:ranks]):
        file = folder / f"r{rank}.json"
        content = json.loads(file.read_text())
        content["baseTimeNanoseconds"] += shift
        file.write_text(json.dumps(content))
    info = dsexplore.load(folder).info
    wrong = [abs(found - shift) for found, shift in zip(info.clock_offsets, SHIFTS_NS, strict=False)]
    return max(info.clock_residuals) / 1e3, max(wrong) / 1e3


def scan(megabytes: float) -> str:
    """How long a dump of that size takes to unpickle with and without the check of what it asks for.

    Also how long `pickletools.genops` takes, on which the check could be built; of a part of the dump, as it is slow.
    """
    one = json.dumps(entry(0, "0", "default_pg", 1, is_pending=False))
    count = round(megabytes * 1e6 / len(pickle.dumps(json.loads(one), 2)))
    data, part = (
        pickle.dumps({"version": "2.10", "entries": [json.loads(one) for _ in range(entries)]}, 2)
        for entries in (count, count // 20)
    )
    with no_collection():
        (_, listed), _ = seconds(lambda: sum(1 for _ in pickletools.genops(part)), 1)
        (_, plain), _ = seconds(lambda: len(pickle.loads(data)["entries"]), 1)
        (_, checked), _ = seconds(lambda: len(load_plain(data)["entries"]), 1)
    more = checked - plain
    return (
        f"unpickle a dump of {len(data) / 1e6:.0f} MB, {count:,} collectives: {plain:.2f} s of the processor, "
        f"{checked:.2f} s with its check, which takes {more:.2f} s, {more / len(data) * 1e9:.0f} ns per byte; "
        f"plain unpickling {plain / len(data) * 1e9:.0f}, pickletools.genops {listed / len(part) * 1e9:.0f}"
    )


def seconds(call: Callable[[], Any], repeats: int) -> tuple[tuple[float, float], Any]:
    """The median of several runs, by the clock and of the processor; and what the last one returned."""
    runs, used = [], []
    for _ in range(repeats):
        begin, begin_used = time.perf_counter(), time.process_time()
        result = call()
        runs.append(time.perf_counter() - begin)
        used.append(time.process_time() - begin_used)
    return (statistics.median(runs), statistics.median(used)), result


def line(what: str, taken: tuple[float, float], goal: float) -> str:
    """One figure, its goal, and whether it was missed."""
    text = f"{what:50} {taken[0]:6.2f} s, of the processor {taken[1]:5.2f} s; goal ≤ {goal} s"
    return text + ("   MISSED" if taken[0] > goal else "")


def main() -> None:
    """Print each figure beside its goal, and fail where one is missed."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--ranks", type=int, default=64)
    arguments.add_argument("--events", type=int, default=20_000)
    arguments.add_argument("--dumps", type=int, default=16)
    arguments.add_argument("--collectives", type=int, default=2_000)
    arguments.add_argument("--repeats", type=int, default=3)
    arguments.add_argument("--megabytes", type=float, default=100.0, help="of the dump whose check is measured")
    arguments.add_argument("--only", choices=["scan"])
    given = arguments.parse_args()
    print(scan(given.megabytes), flush=True)
    if given.only:
        return
    with tempfile.TemporaryDirectory(prefix="dsexplore-imported-") as scratch:
        draw = random.Random(1)
        profiles, hang = Path(scratch, "profiles"), Path(scratch, "dumps")
        profiles.mkdir()
        hang.mkdir()
        for rank in range(given.ranks):
            content = profile(rank, given.ranks, given.events, draw)
            (profiles / f"rank{rank}.json").write_text(json.dumps(content))
        for rank, dump in enumerate(dumps(given.dumps, given.collectives)):
            (hang / f"nccl_trace_rank_{rank}").write_text(json.dumps(dump))
        print(f"torch {torch.__version__}, {torch.get_num_threads()} threads", flush=True)
        opened, trace = seconds(lambda: dsexplore.load(profiles), given.repeats)
        events = given.ranks * given.events
        lines = [line(f"open {given.ranks} profiler traces, {events:,} events", opened, OPEN_GOAL_S)]
        explained, report = seconds(lambda: dsexplore.explain_hang(hang), given.repeats)
        calls = given.dumps * given.collectives
        lines.append(line(f"explain {given.dumps} dumps, {calls:,} collectives", explained, HANG_GOAL_S))
        for ranks in (2, 4):
            residual, wrong = clocks(ranks, Path(scratch, f"gloo-{ranks}"))
            missed = "   MISSED" if residual > RESIDUAL_GOAL_US else ""
            text = f"clocks of {ranks} gloo ranks, 1,000 all_reduces: residual {residual:.1f} µs"
            lines.append(f"{text}, wrong by {wrong:.1f} µs; goal ≤ {RESIDUAL_GOAL_US} µs{missed}")
    print("\n".join(lines))
    print(f"{len(trace):,} collectives, residual of clocks at most {max(trace.info.clock_residuals):,} ns")
    print(report.verdict())
    if any("MISSED" in each for each in lines):
        raise SystemExit("a goal was missed")


if __name__ == "__main__":
    main()
