"""How kernels are tied to what launched them, and so to the collective's kind, size, place and step.

Modules: ``trace/importers/kernel_launches.py``, ``trace/importers/profiler_notes.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsexplore._internal.trace.trace import load
from tests.trace.importers.test_profiles import NEW, event, trace_of

SEND_RECV = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)"


def launched(kernel: str, ts: float, number: int, *around: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a kernel as files of torch 2.0 have it, its number the launch's, and the launch with what is around it."""
    launch = event("cudaLaunchKernel", "cuda_runtime", ts=ts, dur=2, tid=3, correlation=number)
    launch["args"]["External id"] = number
    run = event(kernel, ts=ts + 50, dur=20, correlation=number)
    run["args"]["External id"] = number
    return [*around, launch, run]


def described(
    name: str, ts: float, dims: Any = None, kind: str = "float", cat: str = "cpu_op", **arguments: Any
) -> dict[str, Any]:
    op = event(name, cat, ts=ts - 5, dur=30, tid=3, **arguments)
    if dims is not None:
        op["args"] |= {"Input Dims": dims, "Input type": [kind] * len(dims)}
    return op


@pytest.mark.parametrize("is_written_as_torch_does", [True, False])
@pytest.mark.parametrize(
    ("range_name", "dims", "row"),
    [
        ("nccl:all_to_all", [[96, 4]], ("all_to_all", 1536, [384])),
        ("nccl:all_reduce", [[64], [64]], ("all_reduce", 256, [64])),
        ("nccl:_all_gather_base", [[16]], ("all_gather", 8 * 64, [128])),
        ("nccl:_reduce_scatter_base", [[128]], ("reduce_scatter", 512, [128])),
        ("nccl:send 0->1", [[]], ("send", 4, [1])),
        ("nccl:all_reduce", None, ("all_reduce", None, [])),
    ],
)
def test_a_kernel_has_what_the_range_around_its_launch_says(
    tmp_path: Path, is_written_as_torch_does: bool, range_name: str, dims: Any, row: tuple[Any, ...]
) -> None:
    unnamed = event("record_param_comms", "cpu_op", ts=96, dur=20, tid=3, External_id=7)
    elsewhere = {**described("nccl:broadcast", 100, [[5]]), "tid": 4}
    events = launched(SEND_RECV, 100, 900, unnamed, described(range_name, 100, dims, cat="user_annotation"), elsewhere)
    if not is_written_as_torch_does:
        events = [dict(reversed(one.items())) for one in events]
    trace = load(trace_of(events, tmp_path / "t"))
    assert trace.events.select("op", "message_bytes", "shape").row(0) == row
    unsized = "trace.0.json does not say the size of 1 of its collectives: sums are without them"
    assert (unsized in trace.info.notes) == (dims is None)
    assert not any("which collective" in note for note in trace.info.notes)


def test_the_launch_comes_before_a_number_that_another_op_has_by_chance(tmp_path: Path) -> None:
    """In files of torch 2.0 ``External id`` of a kernel is the launch's number, and ops are numbered apart."""
    other = described("nccl:broadcast", 40, [[5]], cat="user_annotation", External_id=900)
    own = described("c10d::allreduce_", 100, [[64]])
    assert load(trace_of([other, *launched(SEND_RECV, 100, 900, own)], tmp_path / "t")).events["op"].to_list() == [
        "all_reduce"
    ]


def test_ranges_that_end_late_do_not_hide_the_one_that_launched(tmp_path: Path) -> None:
    """The range of an async collective ends when its work does."""
    late = event("nccl:all_reduce", "user_annotation", ts=10, dur=500, tid=3)
    own = described("nccl:_all_gather_base", 100, [[16]], cat="user_annotation")
    trace = load(trace_of([late, *launched(SEND_RECV, 100, 900, own)], tmp_path / "t"))
    assert trace.events["op"].to_list() == ["all_gather"]


def test_steps_are_the_profilers_and_what_was_queued_before_them_is_in_none(tmp_path: Path) -> None:
    marks = [event(f"ProfilerStep#{n}", "user_annotation", ts=1000 * n, dur=900, tid=3) for n in (5, 6)]
    copies = [{**mark, "cat": "gpu_user_annotation", "ts": mark["ts"] + 700, "tid": 9} for mark in marks]
    runs = [
        one
        for number, ts in enumerate((4000, 5100, 5890, 5950, 6100, 6950))
        for one in launched(SEND_RECV, ts, number, described("nccl:all_reduce", ts, [[64]], cat="user_annotation"))
    ]
    queued = event("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", ts=5200, correlation=77)
    trace = load(trace_of([*marks, *copies, *runs, queued], tmp_path / "t"))
    rows = {start: (step, phase) for start, step, phase in trace.events.select("start", "step", "phase").rows()}
    assert [rows[key] for key in sorted(rows)] == [
        (0, "start-up"),
        (0, "other"),
        (0, "start-up"),  # queued before
        (0, "other"),
        (0, "between steps"),
        (1, "other"),
        (1, "between steps"),
    ]
    note = "trace.0.json has no launch of 1 collective, queued before the recording began: no step counts them"
    assert note in trace.info.notes
    without = load(trace_of([*marks, *runs], tmp_path / "without"))
    assert not any("queued" in note for note in without.info.notes)
    without_marks = load(trace_of([*runs, queued], tmp_path / "no marks"))
    assert not any("queued" in note for note in without_marks.info.notes)
    assert set(without_marks.events["phase"]) == {"other"}


def test_steps_of_a_file_of_the_gpu_alone_are_its_marks_there(tmp_path: Path) -> None:
    marks = [event(f"ProfilerStep#{n}", "gpu_user_annotation", ts=1000 * n, dur=900) for n in (5, 6)]
    kernels = [event("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", ts=ts, correlation=ts) for ts in (5100, 6100)]
    trace = load(trace_of([*marks, *kernels], tmp_path / "t"))
    assert trace.events["step"].to_list() == [0, 1]


@pytest.mark.parametrize(
    ("kernel", "op", "library"),
    [
        ("void deep_ep::intranode::dispatch<8, 768, 8192>(int4*)", "all_to_all", "DeepEP"),
        ("void deep_ep::internode_ll::combine<true, 7168, 9>(void*)", "all_to_all", "DeepEP"),
        ("void deep_ep::intranode::notify_dispatch<8>(int const*)", "", "DeepEP"),
        ("nvshmemi_barrier_kernel(int)", "barrier", "NVSHMEM"),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(x)", "all_reduce", "vLLM"),
        ("void sglang::cross_device_reduce_2stage<half, 8>(x)", "all_reduce", "SGLang"),
        ("void tensorrt_llm::kernels::twoShotAllReduceKernel<__nv_bfloat16, 8>(x)", "all_reduce", "TensorRT-LLM"),
        ("void quickreduce::allreduce_prototype_twoshot<x>(y)", "all_reduce", "quickreduce"),
        ("void (anonymous namespace)::two_shot_all_reduce_kernel<c10::BFloat16>(x)", "all_reduce", "torch's symmetric"),
        ("ncclDevKernel_Generic_2(ncclDevKernelArgsStorage<4096ul>)", "", "RCCL"),
        ("ncclDevKernelDebug_Generic(ncclDevKernelArgsStorage<4096ul>)", "", "RCCL"),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", "", "NCCL or RCCL"),
        ("void mylib_nccl_like<3>(x)", "", ""),
    ],
)
def test_kernels_of_libraries_are_named_with_their_time(tmp_path: Path, kernel: str, op: str, library: str) -> None:
    trace = load(trace_of([event(kernel, ts=ts, dur=500) for ts in (100, 900)], tmp_path / "t"))
    raw = str(trace.events["raw_op"][0])
    assert trace.events["op"].to_list() == [op or f"unknown:{raw}"] * 2
    (note,) = [note for note in trace.info.notes if "communicates" in note]
    what = op or "the file does not say which collective"
    assert note.startswith(f"{raw} of {library}" if library else f"{raw} communicates")
    assert note.endswith(f"communicates in 2 calls, 1 ms together: {what}")
    assert ("nothing" in str(trace.headline())) == (op == "barrier")


def test_kernels_of_nccl_and_those_that_compute_are_not_listed(tmp_path: Path) -> None:
    kernels = [
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)",
        "void deep_ep::layout::get_dispatch_layout<256>(x)",
        "gemm",
    ]
    trace = load(trace_of([event(kernel, ts=100 * i) for i, kernel in enumerate(kernels)], tmp_path / "t"))
    assert trace.events["op"].to_list() == ["all_reduce"]
    assert not any("communicates" in note for note in trace.info.notes)


def test_kernels_beyond_the_first_are_counted_with_their_time(tmp_path: Path) -> None:
    kernels = [event(f"nvshmem_{i}(x)", ts=100 * i, dur=10 + i) for i in range(10)]
    notes = load(trace_of(kernels, tmp_path / "t")).info.notes
    assert sum("of NVSHMEM communicates" in note for note in notes) == 8
    assert "2 further kernels of such kinds: 2 calls, 21 µs together" in notes


def test_a_librarys_op_on_the_cpu_has_the_size_of_its_kernel(tmp_path: Path) -> None:
    kernel = "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(x)"
    op = described("symm_mem::multimem_all_reduce_", 100, [[2048], [], []], "c10::BFloat16")
    op["args"]["Input type"] = ["c10::BFloat16", "", ""]
    outer = described("vllm::all_reduce", 98, [[64, 32], []], "c10::BFloat16")
    trace = load(trace_of(launched(kernel, 100, 900, outer, op), tmp_path / "t"))
    assert trace.events.select("op", "message_bytes", "dtype").rows() == [("all_reduce", 4096, "bfloat16")]


def test_a_group_of_unknown_ranks_is_no_group_that_sends_nothing(tmp_path: Path) -> None:
    listed = [{"pg_name": "0", "ranks": [0, 1]}, {"pg_name": "1", "ranks": [0]}]
    info = {"distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2, "pg_config": listed}}
    known = {key: value for key, value in NEW.items() if not key.startswith(("Process", "Group"))}
    kernel = event("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)")
    kernel["args"] = {**known, "Collective name": "allreduce"}
    headline = str(load(trace_of([kernel], tmp_path / "t", None, **info)).headline())
    assert "What the program sends is not known: how many ranks share 1 of its 1 collective is unknown" in headline
    alone = {**kernel, "args": {**kernel["args"], "Process Group Name": "1", "Group size": 1}}
    assert "puts nothing on the wire" in str(load(trace_of([alone], tmp_path / "one", None, **info)).headline())


def test_an_unknown_dtype_or_size_is_not_nothing_sent(tmp_path: Path) -> None:
    kernel = event("ncclDevKernel_AllGather_RING_LL(x)")
    kernel["args"] = {**NEW, "dtype": ""}
    headline = str(load(trace_of([kernel], tmp_path / "t")).headline())
    assert "What the program sends is not known: the sizes of its collectives are unknown" in headline
    both = [kernel, {**kernel, "ts": 300, "args": NEW}]
    headline = str(load(trace_of(both, tmp_path / "both")).headline())
    assert "The program sends at least 56 KiB" in headline
    assert "All that is known of it is for" in headline
    known = str(load(trace_of(both[1:], tmp_path / "known")).headline())
    assert "at least" not in known
    assert "All of it is for" in known
