"""Reading profiler traces: as torch writes them, as others write them, and broken ones."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from dsexplore._internal.errors import TraceFileError
from dsexplore._internal.trace.importers.communication_kernels import is_communication
from dsexplore._internal.trace.importers.profiler_file import ProfilerFile, read_profiler_file

EVENTS: list[dict[str, Any]] = [
    {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "ts": 1, "args": {"name": "python"}},
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1.5, "dur": 2, "args": {"External id":
    1}}, {"ph": "X", "cat": "python_function", "name": "nn.Module: Net_0", "pid": 1, "tid": 1, "ts": 0, "dur": 90,
    "args": {}}, {"ph": "X", "cat": "kernel", "name": "gemm{3}, \"ph\": 'x'", "pid": 0, "tid": 7, "ts": 2, "dur": 3,
    "args": {}}, {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", "pid": 0, "tid": 9,
    "ts": 4, "dur": 5, "args": {"Collective name": "allreduce", "grid": [1, 2, {"a": 1}]}},
    {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 12, "dur": 3, "args": {}},
]  # fmt: skip
COLLECTIVE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"
KEPT = ["nn.Module: Net_0", COLLECTIVE]
WHOLE = {
    "schemaVersion": 1,
    "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8, "pg_config": [{"pg_name": "0", "ranks": [0]}]},
    "traceEvents": EVENTS,
    "traceName": "x.json",
    "baseTimeNanoseconds": 1_700_000_000_000_000_000,
}


def written(path: Path, content: Any, *, sort: bool = False) -> Path:
    data = json.dumps(content, indent=1, sort_keys=sort).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def read_names(read: ProfilerFile) -> list[str]:
    """Return the names of all that is kept: the ranges first, those of a file of another form among the events."""
    return [event["name"] for event in (*read.ranges_on({(1, 1)})[0], *read.events)]


@pytest.mark.parametrize("name", ["trace.json", "trace.pt.trace.json.gz"])
@pytest.mark.parametrize("sort", [False, True])
def test_any_order_of_keys_is_read(tmp_path: Path, name: str, sort: bool) -> None:
    read = read_profiler_file(written(tmp_path / name, WHOLE, sort=sort))
    assert read_names(read) == KEPT
    assert read.distributed["rank"] == 3
    assert read.base == 1_700_000_000_000_000_000
    assert read.events[-1]["args"] == {"Collective name": "allreduce", "grid": [1, 2, {"a": 1}]}


@pytest.mark.parametrize("sort", [False, True])
def test_of_kernels_that_compute_place_and_time_are_read(tmp_path: Path, sort: bool) -> None:
    more = {**EVENTS[5], "tid": 8, "ts": 20.5}
    read = read_profiler_file(written(tmp_path / "trace.json", {**WHOLE, "traceEvents": [more, *EVENTS]}, sort=sort))
    assert read.kernels.rows()[:2] == [("0", 20.5, 3), ("0", 2, 3)]


@pytest.mark.parametrize("sort", [False, True])
def test_a_kernel_whose_time_is_no_number_costs_nobody_elses(tmp_path: Path, sort: bool) -> None:
    odd = {**EVENTS[5], "ts": "soon"}
    read = read_profiler_file(written(tmp_path / "trace.json", {**WHOLE, "traceEvents": [odd, *EVENTS]}, sort=sort))
    assert read.kernels.drop_nulls().rows() == [("0", 2, 3), ("0", 12, 3)]
    assert read_names(read) == KEPT


def test_ranges_are_read_of_threads_that_are_asked_for(tmp_path: Path) -> None:
    other = {**EVENTS[2], "tid": 2, "name": "nn.Module: Other_0"}
    damaged = {**EVENTS[2], "tid": 3, "args": {"a": "torn"}}
    file = written(tmp_path / "trace.json", {**WHOLE, "traceEvents": [other, damaged, *EVENTS]})
    file.write_text(file.read_text().replace('"torn"', '"to"rn"'))
    read = read_profiler_file(file)
    assert [event["name"] for event in read.ranges_on({(1, 2)})[0]] == ["nn.Module: Other_0"]
    assert read.ranges_on({(1, 3)}) == ([], 1)
    assert read.ranges_on({(1, 4), None}) == ([], 0)


def test_names_of_processes_among_the_events_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kineto writes them with the name first, before the events since 2026, and after them before that; and a list of
    log messages at the end, whose quotes it does not escape."""
    whole = "dsexplore._internal.trace.importers.profiler_file._parsed_whole"
    monkeypatch.setattr(whole, lambda file: pytest.fail("all of the file was parsed"))
    name = {"name": "process_name", "ph": "M", "ts": 1.5, "pid": 1, "tid": 0, "args": {"name": "python"}}
    mark = {"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": 99}
    events = [name, name, *EVENTS[1:], EVENTS[4], name, mark]
    file = written(tmp_path / "trace.json", {**WHOLE, "traceEvents": events, "INFO": ["it said this"]})
    file.write_text(file.read_text().replace("it said this", 'it said "this"'))
    read = read_profiler_file(file)
    assert read_names(read) == [*KEPT, COLLECTIVE]
    assert read.kernels.rows() == [("0", 2, 3), ("0", 12, 3)]


def test_events_that_have_their_name_first_are_read(tmp_path: Path) -> None:
    first = [{"name": event["name"], **event} for event in EVENTS]
    assert read_names(read_profiler_file(written(tmp_path / "trace.json", {**WHOLE, "traceEvents": first}))) == KEPT


@pytest.mark.parametrize(
    "first", [("ph", "pid"), ("ph", "args", "ts"), ("pid", "ph"), ("ph", "tid", "name"), ("args",)]
)
def test_keys_of_events_have_any_order(tmp_path: Path, first: tuple[str, ...]) -> None:
    """The mark that begins an event in torch's files is ``ph``, and category and name are before ``pid``."""
    events = [{**{key: event[key] for key in first if key in event}, **event} for event in EVENTS]
    read = read_profiler_file(written(tmp_path / "trace.json", {**WHOLE, "traceEvents": events}))
    assert read_names(read) == KEPT
    assert read.kernels.drop_nulls().rows() == [("0", 2, 3), ("0", 12, 3)]


def test_a_plain_list_of_events_is_read(tmp_path: Path) -> None:
    read = read_profiler_file(written(tmp_path / "old.json", EVENTS))
    assert read_names(read) == KEPT
    assert (read.distributed, read.base) == ({}, 0)


def test_events_that_stand_across_two_blocks_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path / "trace.json", WHOLE)
    for size in (7, 64, 300):
        monkeypatch.setattr("dsexplore._internal.trace.importers.packed._BLOCK", size)
        assert read_names(read_profiler_file(file)) == KEPT


@pytest.mark.parametrize("order", [1, -1], ids=["first", "last"])
def test_a_launch_and_a_kernel_count_wherever_they_stand(tmp_path: Path, order: int) -> None:
    mark = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1, "ts": 1, "dur": 9}
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 2, "dur": 1}
    launch["args"] = {"correlation": 7, "grid": [{"a": 1}]}
    kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 3, "dur": 2, "args": {}}
    launched = read_profiler_file(written(tmp_path / "launch.json", {**WHOLE, "traceEvents": [launch, mark][::order]}))
    assert launched.launches_of({7})[7]["ts"] == 2
    ran = read_profiler_file(written(tmp_path / "kernel.json", {**WHOLE, "traceEvents": [kernel, mark][::order]}))
    assert ran.kernels.rows() == [("0", 3.0, 2.0)]
    assert [event["name"] for event in (*launched.events, *ran.events)] == ["ProfilerStep#1"] * 2


def test_a_file_that_is_cut_off_is_named(tmp_path: Path) -> None:
    for name, cut in (("plain.json", lambda data: data[:-300]), ("packed.json.gz", lambda data: data[:-20])):
        file = written(tmp_path / name, WHOLE)
        file.write_bytes(cut(file.read_bytes()))
        with pytest.raises(TraceFileError, match=f"{name} cannot be read"):
            read_profiler_file(file)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceFileError, match=r"none\.json has no traceEvents"):
        read_profiler_file(written(tmp_path / "none.json", {"schemaVersion": 1, "ph": 1}))
    without = [{key: value for key, value in EVENTS[4].items() if key != "ts"}, EVENTS[5]]
    with pytest.raises(TraceFileError, match=r"when\.json has an event without ts"):
        read_profiler_file(written(tmp_path / "when.json", {"traceEvents": without}))


@pytest.mark.parametrize(
    ("kernel", "communicates"),
    [
        ("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", True),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", True),
        ("void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>", True),
        ("void deep_ep::intranode::dispatch<8, 768, 8192>", True),
        ("void multimem_all_reduce_kernel<c10::BFloat16>", True),
        ("ncclAllReduceRingLLKernel_sum_f32(ncclColl)", True),
        ("mscclKernel_Sum_half_Simple_false(x)", True),
        ("void transformer_engine::userbuffers_fp16_sum_inplace_gpu_rr_rs<8>", True),
        ("void c10d::symmetric_memory::(anonymous namespace)::one_shot_all_reduce_kernel<float, 16>(...)", True),
        ("triton_poi_fused_occlusion_0", False),
        ("triton_red_fused_all_gather_into_tensor_mean_wait_tensor_3", False),  # computes on what was gathered
        ("void at::native::reduce_kernel<512, 1>", False),
        ("nvjet_tst_128x256_64x4", False),
        ("void at::native::vectorized_elementwise_kernel<4, include>", False),
        ("_scatter_gather_elementwise_kernel", False),
    ],
)
def test_kernels_that_communicate(kernel: str, communicates: bool) -> None:
    assert is_communication(kernel) == communicates


@pytest.mark.parametrize("sort", [False, True])
def test_numbers_that_are_none_are_read(tmp_path: Path, sort: bool) -> None:
    """Kineto divides by the number of multiprocessors, which is 0 for a device that it does not know."""
    file = written(tmp_path / "trace.json", WHOLE, sort=sort)
    file.write_text(file.read_text().replace('"a": 1', '"a": inf, "b": -nan'))
    read = read_profiler_file(file)
    assert read_names(read) == KEPT
    assert (read.events[-1]["args"]["grid"][2], read.damaged) == ({"a": None, "b": None}, 0)


@pytest.mark.parametrize("sort", [False, True])
def test_a_key_without_a_value_is_read(tmp_path: Path, sort: bool) -> None:
    """Files of torch have no value for a process group without a description."""
    group = {"pg_name": "0", "pg_desc": "gone", "ranks": [0]}
    described = {
        **EVENTS[4],
        "args": {"Collective name": "allreduce", "Process Group Description": "gone", "dtype": ""},
    }
    content = {**WHOLE, "distributedInfo": {"rank": 3, "pg_config": [group]}, "traceEvents": [described] * 3 + EVENTS}
    file = written(tmp_path / "trace.json", content, sort=sort)
    file.write_text(file.read_text().replace(' "gone"', " "))
    read = read_profiler_file(file)
    assert (sorted(read_names(read)), read.damaged) == (sorted([KEPT[0], *[COLLECTIVE] * 4]), 0)
    arguments = [event["args"] for event in read.events if event["name"] == COLLECTIVE]
    assert [one.get("Process Group Description", "") for one in arguments] == [None] * 3 + [""]
    assert read.distributed["pg_config"][0]["pg_desc"] is None


def test_an_event_that_is_damaged_is_left_out_and_counted(tmp_path: Path) -> None:
    more = [{**EVENTS[4], "name": f"ncclKernel_{i}(x)"} for i in range(3)]
    file = written(tmp_path / "trace.json", {**WHOLE, "traceEvents": [*more, *EVENTS]})
    file.write_text(file.read_text().replace('"ncclKernel_1(x)"', '"ncclKernel_1(x)" "'))
    read = read_profiler_file(file)
    assert read_names(read) == [KEPT[0], "ncclKernel_0(x)", "ncclKernel_2(x)", COLLECTIVE]
    assert read.damaged == 1


def test_a_kernel_with_a_name_of_no_library_is_kept_where_it_describes_a_collective(tmp_path: Path) -> None:
    own = {**EVENTS[3], "name": "void house::exchange<4>(x)"}
    described = {**own, "args": {"Collective name": "all_to_allv"}}
    file = written(tmp_path / "trace.json", {**WHOLE, "traceEvents": [own, described, own, *EVENTS]})
    read = read_profiler_file(file)
    assert read_names(read) == [KEPT[0], own["name"], COLLECTIVE]
    assert len(read.kernels) == 4  # the two that are not described, and both gemms


def test_text_that_is_no_utf8_is_read(tmp_path: Path) -> None:
    for name, sort in (("torch.json", False), ("other.json", True)):
        file = written(tmp_path / name, WHOLE, sort=sort)
        file.write_bytes(file.read_bytes().replace(b"Net_0", b"N\xe9t_0\t"))
        assert read_names(read_profiler_file(file)) == ["nn.Module: N�t_0\t", KEPT[1]]


def test_a_list_of_events_without_its_end_is_cut_off(tmp_path: Path) -> None:
    file = tmp_path / "cut.json"
    text = json.dumps({"traceEvents": EVENTS})
    file.write_text(text[: text.rindex("]")])  # behind the last event
    with pytest.raises(TraceFileError, match=r"cut\.json cannot be read"):
        read_profiler_file(file)
