"""Profiler traces and flight-recorder dumps of real gloo ranks are read.

Modules: ``trace/importers/``, ``worlds/real/``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from dsexplore import explain_hang, load, run_ranks
from dsexplore._internal.trace.clocks import clock_offsets

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("rank_server")]


ROUNDING = 2_000
"""Nanoseconds: files have microseconds, and an offset is a median of differences of two of them."""
PROFILED = """
import json, sys, torch, torch.distributed as dist
from torch.profiler import ProfilerActivity, profile
x = torch.ones(256)
for _ in range(20): dist.all_reduce(x)
with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
    for i in range(200):
        dist.all_reduce(x)
    dist.all_gather([torch.empty(4) for _ in range(world_size)], torch.ones(4))
profiler.export_chrome_trace(f"{folder}/r{rank}.json")
"""


def shift_files(folder: Path, shifts: Mapping[int, int]) -> None:
    """Move the clock of each rank's file forward by the given nanoseconds."""
    for rank, shift in shifts.items():
        file = folder / f"r{rank}.json"
        content = json.loads(file.read_text())
        content["baseTimeNanoseconds"] += shift
        file.write_text(json.dumps(content))


@pytest.mark.parametrize("ranks", [2, 4])
def test_clocks_of_real_ranks_that_were_shifted_by_hand(tmp_path: Path, ranks: int) -> None:
    run_ranks(PROFILED, ranks, namespace={"folder": str(tmp_path)}, timeout=240, group_timeout=120).check()
    shifts = dict(zip(range(ranks), (0, 10_000_000_000, -9_999_999_000, 1_234_567_890), strict=False))
    trace = load(tmp_path)
    assert trace.events.filter(op="all_reduce").height == 200 * ranks
    assert trace.events["end"].null_count() == 0
    assert trace.events.filter(op="all_gather")["message_bytes"].to_list() == [16 * ranks] * ranks
    shift_files(tmp_path, shifts)
    again = load(tmp_path)
    shift_files(tmp_path, shifts)
    twice = load(tmp_path)
    assert any(
        note.startswith("clocks were aligned by the ends of collectives: rank 1 by") for note in again.info.notes
    )
    # Ends of one host differ by how busy it is: benchmarks/imported_files.py prints how well its clocks are known.
    left = clock_offsets(again.events, again.groups)
    for rank, shift in shifts.items():
        assert abs(again.info.clock_offsets[rank] - shift) <= abs(left[rank].offset) + (left[rank].limit or 0)
        assert abs(twice.info.clock_offsets[rank] - again.info.clock_offsets[rank] - shift) <= ROUNDING
        before, after = (one.where(rank=rank).events["start"] + one.info.clock_offsets[rank] for one in (trace, again))
        assert (after - before - shift).abs().max() <= ROUNDING  # each is moved by its rank's offset, and by no more
    assert all(residual > 0 for residual in again.info.clock_residuals[1:])


HANGS = """
import json, os, sys, threading, time
issued = threading.Event()
import torch, torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace, _dump_fr_trace_json
tp = dist.new_group([0, 1])
x = torch.ones(8)
for _ in range(5):
    dist.all_reduce(x)
    if rank < 2: dist.all_gather([torch.empty(8), torch.empty(8)], x, group=tp)
def is_settled():
    return all(entry["retired"] for entry in json.loads(_dump_fr_trace_json())["entries"])
while not is_settled():
    time.sleep(0.01)  # a collective's end comes into the record after the program has seen it
def leave():
    issued.wait()
    data = _dump_fr_trace() if rank else _dump_fr_trace_json()
    unfinished = f"{folder}/.of_{rank}"
    open(unfinished, "wb").write(data.encode() if isinstance(data, str) else data)
    os.rename(unfinished, f"{folder}/trace_of_{rank}")
    while len([name for name in os.listdir(folder) if name.startswith("trace_of_")]) < world_size:
        time.sleep(0.01)  # a rank that ends makes the collectives of the others fail, and their records go
    os._exit(0)
threading.Thread(target=leave).start()
def hang(work):
    issued.set()  # what this rank waits for is in its record
    work.wait()
"""
GUILTY = {
    "leaves": (
        "if rank == 1:\n    issued.set()\n    time.sleep(1000)\nhang(dist.all_reduce(x, async_op=True))",
        "did not come",
    ),
    "another op": (
        "hang(dist.barrier(async_op=True) if rank == 2 else dist.all_reduce(x, async_op=True))",
        "other collective",
    ),
    "the other group first": (
        "y = [torch.empty(8), torch.empty(8)]\nif rank == 1: hang(dist.all_gather(y, x, group=tp, async_op=True))\n"
        "hang(dist.all_reduce(x, async_op=True))",
        "other group order",
    ),
}


@pytest.mark.parametrize("kind", GUILTY)
def test_dumps_of_ranks_that_hang(tmp_path: Path, kind: str) -> None:
    """Gloo's flight recorder has no ranks of groups and no messages, and drops work that failed."""
    program, reason = GUILTY[kind]
    culprit = {"leaves": 1, "another op": 2, "the other group first": 1}[kind]
    environment = {"TORCH_FR_BUFFER_SIZE": "200"}
    run_ranks(
        HANGS + program, 3, namespace={"folder": str(tmp_path)}, environment=environment, timeout=240, group_timeout=200
    )
    report = explain_hang(tmp_path)
    assert (report.culprits, report.reason) == ((culprit,), reason), report.verdict()
