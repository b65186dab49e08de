"""Profiler traces as traces: old and new ones, NVIDIA's and AMD's, one rank's and several.

Modules: ``trace/importers/profiler_tables.py``, ``trace/importers/profiler_file.py``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dsexplore._internal.cli import main
from dsexplore._internal.errors import TraceFileError
from dsexplore._internal.trace.importers.profiler_calls import calls_of, nanoseconds
from dsexplore._internal.trace.importers.profiler_file import ProfilerFile
from dsexplore._internal.trace.trace import load

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


@pytest.mark.parametrize("is_written_as_torch_does", [True, False])
def test_a_collective_is_exposed_while_nothing_computes(tmp_path: Path, is_written_as_torch_does: bool) -> None:
    collective = event("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", ts=100, dur=50)
    collective["args"] = NEW
    computing = [event("gemm", ts=90, dur=20, tid=7, stream=7), event("gelu", ts=140, dur=5, tid=8, stream=8)]
    events = [*computing, collective, event("aten::mm", "cpu_op", ts=110, dur=40)]
    if not is_written_as_torch_does:
        events = [dict(reversed(one.items())) for one in events]
    trace = load(trace_of(events, tmp_path / "t", 2))
    assert trace.events["waited"].to_list() == [(50 - 10 - 5) * 1_000]


def test_a_collective_of_a_file_without_other_kernels_is_not_known_to_be_exposed(tmp_path: Path) -> None:
    collective = event("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    collective["args"] = NEW
    assert load(trace_of([collective], tmp_path / "t", 2)).events["waited"].to_list() == [None]


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
        ("unknown:ncclDevKernel_Generic_4", None),
    ]
    note = (
        "ncclDevKernel_Generic_4 of RCCL communicates in 1 call, 10 µs together: the file does not say which collective"
    )
    assert note in trace.info.notes


def test_amds_one_kernel_is_named_by_the_op_around_what_launched_it(tmp_path: Path) -> None:
    """torch 2.0 wrote descriptions without names."""
    outer = event("c10d::_reduce_scatter_base_", "cpu_op", ts=80, dur=30, tid=3, External_id=4)
    outer["args"] |= {"Input Dims": [[512], [4096]], "Input type": ["float", "float"]}
    later = event("c10d::allreduce_", "cpu_op", ts=150, dur=30, tid=3, External_id=8)
    launched = event("record_param_comms", "cpu_op", ts=85, dur=20, tid=3, External_id=5)
    kernel = event("ncclDevKernel_Generic(ncclDevComm*, unsigned long, ncclWork*)", ts=200, External_id=5)
    trace = load(trace_of([outer, later, launched, kernel], tmp_path / "t"))
    assert trace.events.select("op", "message_bytes", "dtype").rows() == [("reduce_scatter", 16384, "float32")]


def test_a_kernel_in_an_unnamed_namespace_has_a_name(tmp_path: Path) -> None:
    kernels = [
        event("void c10d::(anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16>(x)"),
        event("void (anonymous namespace)::nvshmem_exchange<8>(x)", ts=200),
        event("void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(x)", ts=300),
    ]
    trace = load(trace_of(kernels, tmp_path / "t"))
    assert trace.events.select("op", "raw_op").rows() == [
        ("all_reduce", "void c10d::multimem_all_reduce_kernel<c10::BFloat16>"),
        ("unknown:void nvshmem_exchange<8>", "void nvshmem_exchange<8>"),
        ("all_reduce", "void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>"),
    ]


def test_a_collective_that_is_described_twice_is_one(tmp_path: Path) -> None:
    """Torch describes it where it is asked for and where the backend takes it up, one in the other; without kernels
    the descriptions are all that the file has."""
    described = []
    for ts, dur, identity in ((100, 50, 1), (105, 20, 2), (220, 12, 3), (232, 12, 4)):
        one = event("record_param_comms", "cpu_op", ts=ts, dur=dur, tid=3, External_id=identity)
        one["args"] |= NEW
        described.append(one)
    elsewhere = {**described[1], "tid": 4}
    trace = load(trace_of([*described, elsewhere], tmp_path / "t"))
    assert trace.events["start"].to_list() == [BASE + 1000 * ts for ts in (100, 105, 220, 232)]
    assert trace.events["end"].null_count() == 4


def test_without_kernels_an_op_has_what_its_description_says(tmp_path: Path) -> None:
    """An op has sizes only if shapes were recorded, and never its group."""
    op = event("c10d::_allgather_base_", "cpu_op", ts=90, dur=50, tid=3, External_id=4)
    described = event("record_param_comms", "cpu_op", ts=100, dur=30, tid=3, External_id=5)
    described["args"] |= NEW
    after = event("c10d::allreduce_", "cpu_op", ts=150, dur=50, tid=3, External_id=6)
    trace = load(trace_of([op, described, after], tmp_path / "t"))
    assert trace.events.select("op", "message_bytes", "group").rows()[0] == ("all_gather", 65536, "5")
    assert trace.events["op"].to_list() == ["all_gather", "all_reduce"]


@pytest.mark.parametrize(
    ("written", "expected"),
    [(7, 7_000), (0.25, 250), (-0.5, -500), (-731166.512, -731_166_512), ("1.5", 1_500), (1.7e9, 1_700_000_000_000)],
)
def test_times_keep_their_nanoseconds(written: object, expected: int) -> None:
    assert nanoseconds(written, 0) == expected
    assert nanoseconds(written, BASE) == BASE + expected


def test_every_op_of_torchs_is_known() -> None:
    names = {name for name in torch._C._dispatch_get_all_op_names() if name.startswith("c10d::")}
    names -= {"c10d::check_for_nan"}  # sends nothing
    assert len(names) > 15
    for name in names:
        trace = ProfilerFile(Path("x"), (event(name, "cpu_op"),), {}, 0)
        assert [call.op for call in calls_of(trace) if call.op.startswith("unknown")] == []
        assert len(calls_of(trace)) == 1, name


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


def test_many_events_are_read(tmp_path: Path) -> None:
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
    assert len(load(tmp_path / "t")) == ranks * count // 40


@pytest.mark.parametrize(
    ("kernel", "op"),
    [
        ("ncclAllReduceRingLLKernel_sum_f32(ncclColl)", "all_reduce"),
        ("ncclReduceScatterRingLLKernel_sum_f16(ncclColl)", "reduce_scatter"),
        ("ncclBroadcastRingLLKernel_copy_i8(ncclColl)", "broadcast"),
        ("ncclReduceRingLLKernel_sum_f32(ncclColl)", "reduce"),
        ("ncclKernel_Reduce_RING_LL_Sum_float(ncclWorkElem)", "reduce"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "reduce"),
        ("ncclSymkDevKernel_AllGather_LL(ncclSymkDevWorkArgs4K)", "all_gather"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "unknown:ncclDevKernel_SendRecv"),
    ],
)
def test_kernels_of_all_versions_of_nccl(tmp_path: Path, kernel: str, op: str) -> None:
    assert load(trace_of([event(kernel)], tmp_path / "t")).events["op"].to_list() == [op]


def test_old_files_have_steps_among_the_ops(tmp_path: Path) -> None:
    events = [
        event("ProfilerStep#3", "Operator", ts=0, dur=200, tid=3),
        event("ProfilerStep#4", "Operator", ts=200, dur=200, tid=3),
        event("Optimizer.step#SGD.step", "Operator", ts=250, dur=50, tid=3),
        event("c10d::allreduce_", "Operator", ts=260, tid=3, External_id=1),
        event("ncclKernel_AllReduce_RING_LL_Sum_float(x)", "Kernel", ts=270, external_id=1),
    ]
    trace = load(trace_of(events, tmp_path / "t"))
    assert trace.events.select("step", "phase").rows() == [(1, "optimizer")]


def test_a_range_of_the_gpu_does_not_say_who_issued_a_kernel(tmp_path: Path) -> None:
    """Kineto writes what the program named once more, on the GPU's stream, with the same number."""
    on_gpu = event("nccl:all_reduce", "gpu_user_annotation", ts=99, dur=20, tid=20, External_id=7)
    module = event("nn.Module: Net_0", "python_function", ts=10, dur=80, tid=3)
    on_cpu = event("nccl:all_reduce", "user_annotation", ts=50, dur=5, tid=3, External_id=7)
    kernel = event("ncclDevKernel_Generic(x)", External_id=7)
    trace = load(trace_of([on_gpu, module, on_cpu, kernel], tmp_path / "t"))
    assert trace.events.select("op", "trigger").rows() == [("all_reduce", "Net_0")]


def test_two_files_of_one_rank_are_named(tmp_path: Path) -> None:
    folder = trace_of([event("ncclDevKernel_AllReduce(x)")], tmp_path / "t", 1)
    (folder / "step_20.json").write_text((folder / "trace.1.json").read_text())
    with pytest.raises(TraceFileError, match=r"step_20\.json and trace\.1\.json are both of rank 1: give one file"):
        load(folder)


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([], "it has no events"),
        ([event("gemm")], "none of its kernels communicates"),
        ([event("gemm"), event("aten::mm", "cpu_op")], "none of its kernels communicates"),
        (
            [event("cudaLaunchKernel", "cuda_runtime", correlation=7), event("aten::mm", "cpu_op")],
            "it has launches of kernels, but not the kernels: the GPU was not recorded",
        ),
        (
            [event("aten::mm", "cpu_op"), event("work", "user_annotation")],
            "it has no kernels and no ops of torch.distributed, only events of the kinds cpu_op, user_annotation",
        ),
    ],
    ids=["nothing", "kernels", "ops and kernels", "launches", "ops"],
)
@pytest.mark.parametrize("is_written_as_torch_does", [True, False])
def test_a_file_without_collectives_says_what_it_has(
    tmp_path: Path, events: list[dict[str, Any]], said: str, is_written_as_torch_does: bool
) -> None:
    written = events if is_written_as_torch_does else [dict(reversed(one.items())) for one in events]
    notes = load(trace_of(written, tmp_path / "t")).info.notes
    assert [note for note in notes if "no collectives" in note] == [f"trace.0.json has no collectives: {said}"]


def test_only_collectives_without_kernels_have_no_durations(tmp_path: Path) -> None:
    said = "trace.0.json has neither kernels nor works of its collectives: their durations are unknown"
    computing = event("gemm", ts=300)
    issued = load(trace_of([event("record_param_comms", "cpu_op", **NEW), computing], tmp_path / "issued"))
    assert said in issued.info.notes
    assert not any("has no collectives" in note for note in issued.info.notes)
    timed = load(trace_of([event("ncclDevKernel_AllGather_RING_LL(x)", **NEW)], tmp_path / "timed"))
    assert not any("trace.0.json has n" in note for note in timed.info.notes)


def test_damaged_events_are_said(tmp_path: Path) -> None:
    folder = trace_of([event(f"ncclDevKernel_AllReduce_{i}(x)") for i in range(4)], tmp_path / "t")
    file = folder / "trace.0.json"
    file.write_text(file.read_text().replace('"ncclDevKernel_AllReduce_2(x)"', '"ncclDevKernel_AllReduce_2(x)" "'))
    trace = load(folder)
    assert len(trace) == 3
    assert "trace.0.json: 1 damaged event left out" in trace.info.notes


def test_profiles_named_after_process_and_time_are_numbered(tmp_path: Path) -> None:
    """torch's handler for TensorBoard names the files; old ones do not contain their ranks."""
    for process in (77, 78):
        folder = trace_of([event("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)")], tmp_path / "t", None)
        (folder / "trace.0.json").rename(folder / f"node01_{process}.17123456789012{process}.pt.trace.json")
    trace = load(folder)
    assert (trace.info.ranks, trace.info.world_size) == ((0, 1), 2)
    assert "the files do not say their ranks: they are numbered in the order of their names" in trace.info.notes
    assert load(sorted(folder.iterdir())).events.equals(trace.events)


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("resnet50_workers_4.json", 0),
        ("node01_1234.1712345678901234567.pt.trace.json", 0),
        ("trace_rank3_step10.json", 3),
    ],
)
def test_one_profile_has_the_rank_that_it_says(tmp_path: Path, name: str, rank: int) -> None:
    folder = trace_of([event("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)")], tmp_path / "t", None)
    (folder / "trace.0.json").rename(folder / name)
    trace = load(folder / name)
    assert trace.info.ranks == (rank,)
    assert (f"{name} does not say its rank: it is taken for rank 0" in trace.info.notes) == (rank == 0)


def test_what_is_not_known_of_a_message_is_null_and_is_said(tmp_path: Path) -> None:
    op = event("record_param_comms", "cpu_op", ts=1, External_id=7)
    op["args"] |= {"Input Dims": [[[64, 2]]], "Input type": ["TensorList"]}
    generic = event("c10d::allreduce_", "cpu_op", ts=0.5, dur=3)
    folder = trace_of(
        [generic, op, event("ncclKernel_Generic(x)", External_id=7), event("ncclKernel_Broadcast(x)")], tmp_path / "t"
    )
    trace = load(folder)
    assert trace.events.select("op", "message_bytes", "shape").rows() == [
        ("all_reduce", None, [128]),
        ("broadcast", None, []),
    ]
    for what in ("dtype", "size"):
        assert (
            f"trace.0.json does not say the {what} of 1 of its collectives: sums are without them" in trace.info.notes
        )
