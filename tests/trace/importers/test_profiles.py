"""Profiler traces as traces: old and new ones, NVIDIA's and AMD's, one rank's and several."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from dsexplore.cli import main
from dsexplore.errors import TraceFileError
from dsexplore.trace.trace import load

BASE = 1_700_000_000_000_000_000


def event(
    name: str, cat: str = "kernel", ts: float = 100, dur: float = 10, tid: int = 9, **arguments: Any
) -> dict[str, Any]:
    named = {key.replace("_", " "): value for key, value in arguments.items()}
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": named}


NEW = {
    "Collective name": "_allgather_base",
    "In msg nelems": 4096,
    "Out msg nelems": 32768,
    "Group size": 8,
    "dtype": "BFloat16",
    "Process Group Name": "5",
    "Process Group Description": "mesh_dp",
    "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]",
}


def trace_of(events: list[dict[str, Any]], folder: Path, rank: int | None = 0, **more: Any) -> Path:
    folder.mkdir(exist_ok=True)
    info = {} if rank is None else {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 8}}
    content = {**info, "traceEvents": events, "baseTimeNanoseconds": BASE, **more}
    file = folder / f"trace.{0 if rank is None else rank}.json"
    file.write_text(json.dumps(content))
    return folder


def test_a_new_trace_says_all_of_a_collective(tmp_path: Path) -> None:
    name = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    kernel = event(name, ts=100.25, dur=7.5)
    kernel["args"] = NEW
    trace = load(trace_of([kernel], tmp_path / "t", 2))
    (row,) = trace.events.iter_rows(named=True)
    assert (row["rank"], row["op"], row["raw_op"]) == (2, "all_gather", "ncclDevKernel_AllGather_RING_LL")
    assert (row["message_bytes"], row["wire_bytes"], row["dtype"]) == (65536, 57344, "bfloat16")
    assert (row["group"], row["axis"], row["group_size"]) == ("5", "dp", 8)
    assert (row["start"], row["end"], row["state"]) == (BASE + 100_250, BASE + 107_750, "completed")
    assert trace.groups.select("ranks", "timing").row(0) == (list(range(8)), "cuda")
    assert trace.info.world_size == 8


def test_an_old_trace_says_it_in_the_kernels_name(tmp_path: Path) -> None:
    events = [
        event(f"{kernel}(ncclWorkElem)", "Kernel", ts=100 * i, external_id=i)
        for i, kernel in enumerate(
            (
                "ncclKernel_AllReduce_RING_LL_Sum_float",
                "ncclKernel_ReduceScatter_RING_LL_Sum_half",
                "ncclKernel_SendRecv",
            )
        )
    ]
    launched = event("nccl:all_to_all", "user_annotation", ts=190, tid=3, External_id=2)
    sized = event("c10d::allreduce_", "cpu_op", ts=0, tid=3, External_id=0)
    sized["args"] |= {"Input Dims": [[[256, 4]], []], "Input type": ["TensorList", ""]}
    trace = load(trace_of([*events, launched, sized], tmp_path / "t", None))
    assert trace.events["op"].to_list() == ["all_reduce", "reduce_scatter", "all_to_all"]
    assert trace.events["shape"].to_list() == [[1024], [], []]


def test_amds_one_kernel_is_named_by_what_launched_it(tmp_path: Path) -> None:
    kernel = "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)"
    launched = event("record_param_comms", "cpu_op", ts=90, tid=3, External_id=5)
    launched["args"] |= NEW
    events = [event(kernel, External_id=5), event(kernel, ts=200, External_id=6), launched]
    trace = load(trace_of(events, tmp_path / "t"))
    assert trace.events.select("op", "message_bytes").rows() == [
        ("all_gather", 65536),
        ("unknown:ncclDevKernel_Generic_4", 0),
    ]
    note = "ncclDevKernel_Generic_4 communicates, but the trace does not say what: 1 calls of unknown kind and size"
    assert note in trace.info.notes


def test_modules_steps_phases_and_fsdp(tmp_path: Path) -> None:
    def launch(ts: float, identity: int) -> list[dict[str, Any]]:
        cpu = event("record_param_comms", "cpu_op", ts=ts, dur=2, tid=3, External_id=identity)
        cpu["args"] |= NEW
        return [cpu, event("ncclDevKernel_AllGather_RING_LL(x)", ts=ts + 5, External_id=identity)]

    events = [
        event("ProfilerStep#7", "user_annotation", ts=0, dur=500, tid=3),
        event("ProfilerStep#8", "user_annotation", ts=500, dur=500, tid=3),
        event("nn.Module: Net_0", "python_function", ts=10, dur=100, tid=3),
        event("nn.Module: Linear_4", "python_function", ts=20, dur=50, tid=3),
        event("FSDP::all_gather (layers.1)", "user_annotation", ts=25, dur=20, tid=3),
        event("nn.Module: Other_0", "python_function", ts=10, dur=100, tid=4),
        event("autograd::engine::evaluate_function: MmBackward0", "cpu_op", ts=200, dur=50, tid=3),
        event("Optimizer.step#AdamW.step", "user_annotation", ts=600, dur=50, tid=3),
        *launch(30, 1),
        *launch(220, 2),
        *launch(620, 3),
    ]
    trace = load(trace_of(events, tmp_path / "t"))
    assert trace.events.select("step", "phase", "trigger", "owner", "cause").rows() == [
        (0, "forward", "Net_0.Linear_4", "layers.1", "FSDP all_gather"),
        (0, "backward", "", "", ""),
        (1, "optimizer", "", "", ""),
    ]
    assert {"Net_0", "Net_0.Linear_4", "layers.1"} == set(trace.modules["module"])


def test_record_function_names_modules_where_no_stack_does(tmp_path: Path) -> None:
    cpu = event("record_param_comms", "cpu_op", ts=30, dur=2, tid=3, External_id=1)
    named = event("block 3", "user_annotation", ts=20, dur=50, tid=3)
    trace = load(trace_of([named, cpu, event("ncclDevKernel_AllReduce(x)", External_id=1)], tmp_path / "t"))
    assert trace.events["trigger"].to_list() == ["block 3"]


def test_a_file_that_cannot_be_read_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    for rank in range(3):
        folder = trace_of([event("ncclDevKernel_AllReduce(x)")], tmp_path / "t", rank)
    cut = folder / "trace.1.json"
    cut.write_text(cut.read_text()[:-30])
    with pytest.warns(RuntimeWarning, match=r"trace\.1\.json cannot be read"):
        trace = load(folder)
    assert trace.info.ranks == (0, 2)
    assert any("trace.1.json cannot be read" in note for note in trace.info.notes)


def test_a_profile_says_nothing_of_a_hang(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = trace_of([event("ncclDevKernel_AllReduce(x)")], tmp_path / "t")
    assert main(["hang", str(folder)]) == 2
    assert "is a profiler trace, which is written after all has ended" in capsys.readouterr().err
    assert main(["show", str(folder)]) == 0
    assert "Trace: 1 collective of rank 0 of 8" in capsys.readouterr().out


def test_nothing_readable_is_an_error(tmp_path: Path) -> None:
    folder = trace_of([], tmp_path / "t")
    (folder / "trace.0.json").write_text('{"traceEvents": [{"ph": "X"')
    with pytest.raises(TraceFileError, match=r"trace\.0\.json cannot be read"):
        load(folder)


def test_many_events_are_read_fast(tmp_path: Path) -> None:
    """Synthetic ranks of 20,000 events each; 64 of them are to open within 5 s."""
    ranks, count = 4, 20_000
    for rank in range(ranks):
        events = []
        for i in range(count // 4):
            events.append(
                event("aten::mm", "cpu_op", ts=100.5 * i, External_id=i, Input_Dims=[[2048, 4096], [4096, 4096]])
            )
            events.append(event("cudaLaunchKernel", "cuda_runtime", ts=100.5 * i, External_id=i, correlation=i))
            events.append(event(f"nn.Module: Linear_{i % 50}", "python_function", ts=100.5 * i, tid=3))
            name = "gemm" if i % 10 else "ncclDevKernel_AllGather(x)"
            events.append({**event(name, ts=100.5 * i), **({} if i % 10 else {"args": NEW})})
        trace_of(events, tmp_path / "t", rank)
    begin = time.process_time()
    assert len(load(tmp_path / "t")) == ranks * count // 40
    assert time.process_time() - begin < 5.0 * ranks / 64 * 2  # twice the bound, for machines that are busy
