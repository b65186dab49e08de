"""Profiler traces and flight-recorder dumps that real gloo ranks write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsexplore import explain_hang, load, run_ranks

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("rank_server")]


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


@pytest.mark.parametrize("ranks", [2, 4])
def test_clocks_of_real_ranks_that_were_shifted_by_hand(tmp_path: Path, ranks: int) -> None:
    run_ranks(PROFILED, ranks, namespace={"folder": str(tmp_path)}).check()
    shifts = dict(zip(range(ranks), (0, 1_000_000_000, -999_999_000, 123_456_789), strict=False))
    trace = load(tmp_path)
    assert trace.events.filter(op="all_reduce").height == 200 * ranks
    assert trace.events["end"].null_count() == 0
    assert trace.events.filter(op="all_gather")["message_bytes"].to_list() == [16 * ranks] * ranks
    for rank, shift in shifts.items():
        file = tmp_path / f"r{rank}.json"
        content = json.loads(file.read_text())
        content["baseTimeNanoseconds"] += shift
        file.write_text(json.dumps(content))
    again = load(tmp_path)
    before, after = (one.events.select("rank", "seq", "start", "end") for one in (trace, again))
    assert (before["start"] - after["start"]).abs().max() < 10_000_000  # both are on rank 0's clock
    assert any(
        note.startswith("clocks were aligned by the ends of collectives: rank 1 by") for note in again.info.notes
    )
    # Ends of one host differ by how busy it is: benchmarks/imported_files.py prints how well its clocks are known.
    assert all(abs(again.info.clock_offsets[rank] - shift) < 10_000_000 for rank, shift in shifts.items())
    assert all(residual > 0 for residual in again.info.clock_residuals[1:])


HANGS = """
import os, sys, threading, time
import torch, torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace, _dump_fr_trace_json
tp = dist.new_group([0, 1])
x = torch.ones(8)
for _ in range(5):
    dist.all_reduce(x)
    if rank < 2: dist.all_gather([torch.empty(8), torch.empty(8)], x, group=tp)
def leave():
    time.sleep(1.0)
    data = _dump_fr_trace() if rank else _dump_fr_trace_json()
    unfinished = f"{folder}/.of_{rank}"
    open(unfinished, "wb").write(data.encode() if isinstance(data, str) else data)
    os.rename(unfinished, f"{folder}/trace_of_{rank}")
    while len([name for name in os.listdir(folder) if name.startswith("trace_of_")]) < world_size:
        time.sleep(0.01)  # a rank that ends makes the collectives of the others fail, and their records go
    os._exit(0)
threading.Thread(target=leave).start()
"""
GUILTY = {
    "leaves": ("if rank == 1: time.sleep(60)\ndist.all_reduce(x)", "missing"),
    "another op": ("dist.barrier() if rank == 2 else dist.all_reduce(x)", "mismatch"),
    "the other group first": (
        "if rank == 1: dist.all_gather([torch.empty(8), torch.empty(8)], x, group=tp)\ndist.all_reduce(x)",
        "order",
    ),
}


@pytest.mark.parametrize("kind", GUILTY)
def test_dumps_of_ranks_that_hang(tmp_path: Path, kind: str) -> None:
    """Gloo's flight recorder names no group's ranks and no message; its work that failed is let go too."""
    program, reason = GUILTY[kind]
    culprit = {"leaves": 1, "another op": 2, "the other group first": 1}[kind]
    environment = {"TORCH_FR_BUFFER_SIZE": "200"}
    run_ranks(HANGS + program, 3, namespace={"folder": str(tmp_path)}, environment=environment, timeout=30)
    report = explain_hang(tmp_path)
    assert (report.culprits, report.reason) == ((culprit,), reason), report.sentence
