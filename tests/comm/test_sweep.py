"""A sweep of collectives measures real ranks, prints rows as nccl-tests does, and reads what it has saved.

Modules: ``comm/sweeps/sweep_run.py``, ``comm/sweeps/sweep_ops.py``, ``comm/sweeps/sweep_result.py``.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as td

import dsexplore
from dsexplore import UsageError
from dsexplore._internal.comm.sweeps.nccl_tests_file import read_nccl_tests
from dsexplore._internal.comm.sweeps.sweep_ops import IN_PLACE, SWEPT, SweptGroup, prepare
from dsexplore._internal.comm.sweeps.sweep_result import CommSweep, SweepConditions, SweepPoint
from tests.damaged import assert_named, damaged

CONDITIONS = SweepConditions("nccl", "cuda", 1, 8, "float32", "torch 2.13", "2026-11-23T10:00:00", ("a remark",))


def small() -> CommSweep:
    """Two ops of 8 ranks at two sizes."""
    points = [
        SweepPoint(op, size, in_place, (seconds, 2 * seconds, 9 * seconds), 60, wrong)
        for op, wrong in (("all_reduce", 0), ("all_gather", None))
        for size, seconds in ((1024, 20e-6), (1 << 30, 4029.4e-6))
        for in_place in (False, True)
    ]
    return CommSweep(CONDITIONS, points)


def on_each_rank(**options: Any) -> dict[str, Any]:
    """Runs in the ranks, by a clock that is a millisecond later at each look."""
    from dsexplore.comm import sweep

    milliseconds = count()
    return sweep(**options, clock=lambda: next(milliseconds) / 1000).to_json()


def with_slow_calls() -> dict[str, Any]:
    """Runs in the ranks: every fourth look at the clock comes nine milliseconds later than the others."""
    from dsexplore.comm import sweep

    looks = count()
    short = {"message_bytes": [1024], "ops": ["all_reduce"], "in_place": False, "rounds": 1, "seconds": 0.0}

    def clock() -> float:
        look = next(looks)
        return (look + 9 * (look // 4)) / 1000

    return sweep(**short, clock=clock).to_json()


def with_a_wrong_result() -> dict[str, Any]:
    """Runs in the ranks: rank 1 adds 1 to one element of its input each time."""
    from dsexplore.comm import sweep

    original = td.all_reduce

    def broken(tensor: Any, **options: Any) -> Any:
        if td.get_rank() == 1 and tensor.numel() == 256:
            tensor[3] += 1
        return original(tensor, **options)

    td.all_reduce = broken
    try:
        return sweep(message_bytes=[1024], ops=["all_reduce"], rounds=1, seconds=0.0).to_json()
    finally:
        td.all_reduce = original


def of_a_subgroup() -> dict[str, Any] | str:
    """Runs in the ranks: ranks 1 and 2 of three are measured."""
    from dsexplore.comm import sweep

    group = td.new_group([1, 2])
    if td.get_rank() == 0:
        try:
            sweep(group)
        except UsageError as error:
            return str(error)
    return sweep(group, message_bytes=["4KiB"], rounds=1, seconds=0.0).to_json()


@pytest.mark.parametrize("size", [2, 3, 8])
def test_the_expected_sum_is_that_of_all_ranks_inputs(size: int) -> None:
    swept = SweptGroup(None, 1, size, torch.device("cpu"), torch.float32)
    prepared = prepare("all_reduce", 4 * 300, True, swept)
    places = torch.arange(300)
    of_ranks = [places % 97 + rank for rank in range(size)]
    assert torch.equal(prepared.expected(places), sum(of_ranks).to(torch.float32))  # type: ignore[union-attr]


@pytest.mark.processes
def test_all_ops_on_real_ranks() -> None:
    run = dsexplore.run_ranks(
        lambda: on_each_rank(message_bytes=[8, "4KiB"], rounds=2, seconds=0.0055), 2, timeout=240
    ).check()
    assert run.values[0] == run.values[1]
    result = CommSweep.from_json(run.values[0])
    assert result.ops == list(SWEPT)
    assert "do not fit" not in str(result)
    assert (result.conditions.backend, result.conditions.ranks) == ("gloo", 2)
    assert {(p.op, p.in_place) for p in result.points if p.in_place} == {(op, True) for op in IN_PLACE}
    for point in result.points:
        assert point.wrong == 0, point
        assert point.rounds == pytest.approx((1e-3, 1e-3))
        assert point.quartiles == pytest.approx((1e-3, 1e-3))
        assert point.calls == 2 * 5  # as many of a millisecond as fit into the time, in each round
    assert [p.message_bytes for p in result.points_of("all_gather")] == [8, 4096]


@pytest.mark.processes
def test_a_call_that_takes_longer_than_its_time_is_made_four_times_in_a_round() -> None:
    short = {"message_bytes": [1024], "ops": ["all_reduce"], "in_place": False, "rounds": 2, "seconds": 0.0}
    run = dsexplore.run_ranks(lambda: on_each_rank(**short), 2, timeout=240).check()
    (point,) = CommSweep.from_json(run.values[0]).points
    assert point.calls == 2 * 4


@pytest.mark.processes
def test_a_wrong_result_is_counted_and_named() -> None:
    result = CommSweep.from_json(dsexplore.run_ranks(with_a_wrong_result, 2, timeout=240).check().values[0])
    assert [point.wrong for point in result.points] == [4, 4]  # one element, seen from both ends, on both ranks
    assert "WRONG RESULTS: all_reduce of 1 KiB" in str(result)


@pytest.mark.processes
def test_a_subgroup_is_measured_by_its_members() -> None:
    values = dsexplore.run_ranks(of_a_subgroup, 3, timeout=240).check().values
    assert "not in the group" in values[0]
    result = CommSweep.from_json(values[1])
    assert result.conditions.ranks == 2
    assert not result.wrong()


def test_without_ranks_it_is_refused() -> None:
    from dsexplore.comm import sweep

    with pytest.raises(UsageError, match="no process group to measure"):
        sweep()
    with dsexplore.simulate(4), pytest.raises(UsageError, match="a simulated group takes no time"):
        sweep()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ops": ["all_sum"]}, "ops .'all_sum'. cannot be swept"),
        ({"ops": []}, "cannot be swept"),
        ({"message_bytes": [0]}, "message bytes above 0"),
        ({"smallest": "1MiB", "largest": "1KiB"}, "no size between 1MiB and 1KiB"),
        ({"largest": "much"}, "'much' is not a number of bytes"),
        ({"factor": 1}, "factor 1 does not lead"),
        ({"rounds": 0}, "rounds 0"),
        ({"message_bytes": [1 << 50]}, "do not fit the memory"),
    ],
)
def test_what_cannot_be_swept_is_refused(
    options: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dsexplore.comm import sweep

    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # torch puts its own in its place and leaves it
    td.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        with pytest.raises(UsageError, match=message):
            sweep(**options)
    finally:
        td.destroy_process_group()


@pytest.mark.parametrize(
    ("rounds", "seconds"),
    [
        ((4.0,), 4.0),
        ((9.0, 1.0, 3.0), 1.0),
        ((9.0, 1.0, 3.0, 8.0, 7.0, 6.0, 5.0), 1.0),
        ((9, 8, 7, 1, 6, 2, 5), 1),
        ((9, 8, 7, 1, 6, 2, 5, 4), 1.5),
    ],
)
def test_the_quiet_time_of_a_point_is_that_of_the_quietest_quarter_of_its_rounds(
    rounds: tuple[float, ...], seconds: float
) -> None:
    point = SweepPoint("send", 8, False, rounds, 3, 0)
    assert point.quiet_seconds == seconds
    assert point.seconds == pytest.approx(sum(rounds) / len(rounds))  # as nccl-tests
    timed_one_by_one = SweepPoint("send", 8, False, tuple(10 * each for each in rounds), 3, 0, rounds)
    assert timed_one_by_one.quiet_seconds == seconds


@pytest.mark.processes
def test_the_mean_of_a_slice_is_that_of_all_its_calls() -> None:
    """One call in four takes ten times as long: the quartile does not see it, the mean does."""
    (point,) = CommSweep.from_json(dsexplore.run_ranks(with_slow_calls, 2, timeout=240).check().values[0]).points
    assert point.calls == 4
    assert point.quartiles == pytest.approx((1e-3,))
    assert point.seconds == pytest.approx(3.25e-3)


def test_the_table_and_the_lines_say_the_spread() -> None:
    point = SweepPoint("all_reduce", 1024, False, (1e-3, 3e-3), 60, 0, (258e-6, 300e-6))
    disturbed = CommSweep(CONDITIONS, [point])
    *_, row = disturbed.to_nccl_tests("all_reduce").splitlines()
    assert row.split()[5] == "2000.00"
    assert row.endswith("  # 258.00 to 3000.00")
    assert "Means are up to 7.8 times the quiet times" in str(disturbed)
    quiet = SweepPoint("all_reduce", 1024, False, (1e-3, 1.1e-3), 60, 0, (0.9e-3, 0.9e-3))
    assert "Means are" not in str(CommSweep(CONDITIONS, [quiet]))


def test_one_wrong_value_is_read_or_refused_by_the_name_of_file_and_key() -> None:
    refused: list[tuple[str, str]] = []
    for where, wrong in damaged(json.loads(json.dumps(small().to_json()))):
        try:
            loaded = CommSweep.from_json(wrong, "sweep.json")
        except UsageError as error:
            refused.append((where, str(error)))
            continue
        str(loaded)
        loaded.to_frame()
    assert_named(refused)
    assert len(refused) > 100


HALF = "316.2  106.12  198.97      0"
ROW = f"33554432  8388608  float  sum  -1  {HALF}  {HALF}"


@pytest.mark.parametrize("wrong", ["", "-1", "1e999", "nan", "x", "9" * 400, "1.2.3"])
def test_a_row_of_nccl_tests_with_a_wrong_field_is_left_out_and_said(tmp_path: Path, wrong: str) -> None:
    """Fields 3 and 4 are the reduction and the root, which other ops have not."""
    rank = "#  Rank  0 Group  0 Pid  1 on  node1 device  0 [0x01] NVIDIA H100"
    for at in (5, 6, 7, 8, 9, 12):
        fields = ROW.split()
        fields[at] = wrong
        (tmp_path / "out.txt").write_text("\n".join([rank, ROW, "  ".join(fields)]), encoding="utf-8")
        found = read_nccl_tests(tmp_path / "out.txt", "all_reduce")
        assert len(found.points) == 2
        assert found.conditions.remarks[0].startswith("1 damaged row left out: 33554432  8388608  float")
        assert CommSweep.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_the_table_is_that_of_nccl_tests() -> None:
    lines = small().to_nccl_tests("all_reduce").splitlines()
    measured = "time algbw busbw #wrong"
    assert " ".join(lines[1].split()) == f"# size count type redop root {measured} {measured} # quiet to slowest round"
    measured = "16118 66.62 116.58 0"
    assert " ".join(lines[-1].split()) == f"1073741824 268435456 float sum -1 {measured} {measured} # 4029.40 to 36265"
    assert {line.index("  # ") for line in lines[3:]} == {lines[1].index("  # ")}
    long, longer = (
        CommSweep(CONDITIONS, [SweepPoint("all_reduce", 8, False, (seconds,), 1, None)]).to_nccl_tests("all_reduce")
        for seconds in (9.99994e-3, 1e-2)
    )
    assert " 9999.94 " in long
    assert " 10000 " in longer
    assert " 33554432 " in small().to_nccl_tests("all_gather")  # elements per rank
    with pytest.raises(UsageError, match="op 'send' was not measured: there is all_reduce, all_gather"):
        small().to_nccl_tests("send")


@pytest.mark.parametrize(
    ("dtype", "name", "elements"),
    [
        (torch.int8, "int8", 1024), (torch.uint8, "uint8", 1024), (torch.float8_e4m3fn, "f8e4m3", 1024),
        (torch.float8_e5m2, "f8e5m2", 1024), (torch.float16, "half", 512), (torch.bfloat16, "bfloat16", 512),
        (torch.int32, "int32", 256), (torch.uint32, "uint32", 256), (torch.float32, "float", 256),
        (torch.int64, "int64", 128), (torch.uint64, "uint64", 128), (torch.float64, "double", 128),
        (torch.complex64, "complex64", "N/A"),
    ],
)  # fmt: skip
def test_the_table_names_types_and_counts_elements_as_nccl_tests(dtype: torch.dtype, name: str, elements: Any) -> None:
    """By torch's names, and by those in a file of nccl-tests."""
    for each in (str(dtype).removeprefix("torch."), name):
        table = CommSweep(replace(CONDITIONS, dtype=each), small().points).to_nccl_tests("all_reduce")
        assert table.splitlines()[3].split()[:3] == ["1024", str(elements), name]


def test_saved_and_read_again(tmp_path: Path) -> None:
    path = small().save(tmp_path / "sweep.json")
    assert CommSweep.load(path) == small()
    frame = small().to_frame()
    assert frame.height == 8
    assert frame["busbw"].max() == pytest.approx(466.33 / 4, abs=0.01)
    assert frame["quiet_seconds"].to_list() == pytest.approx([20e-6, 20e-6, 4029.4e-6, 4029.4e-6] * 2)
    path.write_text(path.read_text().replace('"all_gather"', '"<b>"'), encoding="utf-8")
    with pytest.raises(UsageError, match="is not a collective"):
        CommSweep.load(path)
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(UsageError, match="not a saved sweep of collectives"):
        CommSweep.load(path)
    path.write_text(json.dumps({**small().to_json(), "version": 9}), encoding="utf-8")
    with pytest.raises(UsageError, match="newer dsexplore"):
        CommSweep.load(path)
    path.write_text(json.dumps({**small().to_json(), "points": [{"op": "send"}]}), encoding="utf-8")
    with pytest.raises(UsageError, match="damaged"):
        CommSweep.load(path)


def test_its_own_table_can_be_read(tmp_path: Path) -> None:
    ranks = "\n".join(f"#  Rank  {r} Group  0 Pid  1 on  node0 device  {r} [0000:19:00] GPU" for r in range(8))
    path = tmp_path / "out.txt"
    path.write_text(f"{ranks}\n{small().to_nccl_tests('all_reduce')}\n", encoding="utf-8")
    read = read_nccl_tests(path, op="all_reduce")
    assert read.conditions.ranks == 8
    printed = [p.seconds for p in small().points_of("all_reduce")]
    assert [p.seconds for p in read.points_of("all_reduce")] == pytest.approx(printed, rel=1e-4)


NEW = """# nccl-tests version 2.17.9 nccl-headers=22602 nccl-library=22602
# Collective test starting: reduce_scatter_perf
#  Rank  0 Group  0 Pid 1584280 on gpu-a device  0 [0000:29:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid 1584280 on gpu-b device  0 [0000:2f:00] NVIDIA H100 80GB HBM3
           0             0     float     sum      -1     0.89    0.00    0.00       0     1.27    0.00    0.00       0
         128             4     float     sum      -1    41.94    0.00    0.00       0    34.65    0.00    0.00       0
  8589934592     268435456     float     sum      -1  20695.6  415.06  363.18       0  20641.5  416.15  364.13       2
"""
OLD = """[1,0]<stdout>:# nThread 1 nGpus 8 minBytes 1 maxBytes 8589934592 step: 2(factor)
[1,0]<stdout>:#   Rank  0 Pid 167261 on localhost device  0 [0x00] A100-SXM4-40GB
[1,0]<stdout>:#   Rank  1 Pid 167261 on localhost device  1 [0x00] A100-SXM4-40GB
[1,0]<stdout>:  4194304         131072   float            96.44   43.49   38.05    N/A    99.62   42.10   36.84    N/A
[1,0]<stdout>:  8388608        2097152   float     sum   162.0   51.79   90.63  5e-07    160.0   52.44   91.77  3e-01
"""


def test_output_of_nccl_tests_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text(NEW, encoding="utf-8")
    read = read_nccl_tests(path)
    assert (read.ops, read.conditions.nodes, read.conditions.ranks_per_node) == (["reduce_scatter"], 2, 1)
    assert [(p.message_bytes, p.in_place, p.wrong) for p in read.points] == [
        (128, False, 0),
        (128, True, 0),
        (8589934592, False, 0),
        (8589934592, True, 2),
    ]
    assert read.points[-1].seconds == pytest.approx(20641.5e-6)
    assert "22602" in read.conditions.software
    path.write_text(OLD, encoding="utf-8")
    with pytest.raises(UsageError, match="does not say which collective it is: give op="):
        read_nccl_tests(path)
    old = read_nccl_tests(path, op="all_to_all")
    assert [p.wrong for p in old.points] == [None, None, 0, 1]
    assert old.conditions.ranks == 2


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text("hello\n", encoding="utf-8")
    with pytest.raises(UsageError, match="lists no ranks"):
        read_nccl_tests(path)
    path.write_text(NEW.split("         128")[0].split("           0")[0], encoding="utf-8")
    with pytest.raises(UsageError, match="has no rows"):
        read_nccl_tests(path)
