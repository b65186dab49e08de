"""What the log holds, on real ranks with a clock that ticks a microsecond at each look."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import dsexplore.comm as dist
from dsexplore.capture import recorder_in_use
from dsexplore.capture.groups import Group
from dsexplore.capture.issued import Issued, Origin
from dsexplore.capture.recorder import Recorder
from dsexplore.capture.source_lines import file_name
from dsexplore.capture.timing import end_at_completion
from dsexplore.comm.handles import Handle
from dsexplore.comm.log_records import Call, Record
from dsexplore.comm.logger import CommsLogger
from dsexplore.comm.logger_config import CommsLoggerConfig
from dsexplore.comm.spellings import ALL_REDUCE
from dsexplore.comm.verbose_lines import Printer
from dsexplore.errors import UsageError
from tests.comm.every_op import every_op

Ranks = Callable[..., list[Any]]


def ticking() -> Callable[[], int]:
    """A clock that is a microsecond later each time."""
    now = 0

    def tick() -> int:
        nonlocal now
        now += 1000
        return now

    return tick


def log_of_groups() -> list[tuple[Any, ...]]:
    import torch

    import dsexplore.comm as dist

    recorder_in_use.use(Recorder(clock=ticking()))
    dist.configure(enabled=True)
    pair = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(1024))
    if dist.get_rank() < 2:
        dist.all_reduce(torch.ones(1024), group=pair)
    dist.all_gather_into_tensor(torch.empty(12), torch.ones(3))
    table = dist.comms_logger.to_frame()
    return table.select(
        "op", "group_size", "message_bytes", "count", "total_ms", "algbw_gb_per_s", "busbw_gb_per_s"
    ).rows()


@pytest.mark.processes
def test_bandwidths_are_those_of_the_group(ranks: Ranks) -> None:
    first, _, third, _ = ranks(4, log_of_groups)
    world = ("all_reduce", 4, 4096, 1, 1e-3, 4.096, pytest.approx(4.096 * 6 / 4))
    pair = ("all_reduce", 2, 4096, 1, 1e-3, 4.096, pytest.approx(4.096))
    gathered = ("all_gather", 4, 48, 1, 1e-3, 0.048, pytest.approx(0.048 * 3 / 4))
    assert sorted(first) == sorted([world, pair, gathered])
    assert sorted(third) == sorted([world, gathered])


def message_bytes_of_every_op() -> dict[str, tuple[int, ...]]:
    import torch

    import dsexplore.comm as dist

    dist.configure(enabled=True)
    every_op(dist)
    dist.all_reduce_coalesced([torch.ones(5), torch.ones(7)], log_name="coalesced")
    found: dict[str, list[int]] = {}
    for record in dist.comms_logger.records:
        found.setdefault(record.name, []).append(record.bytes)
        assert record.seconds is not None, f"{record.name} was not timed"
    return {name: tuple(sizes) for name, sizes in found.items()}


@pytest.mark.processes
@pytest.mark.parametrize("n", [2, 3])
def test_message_bytes_are_the_whole_buffer(ranks: Ranks, n: int) -> None:
    for rank, sizes in enumerate(ranks(n, message_bytes_of_every_op)):
        tensor, whole = 24, 24 * n
        assert sizes == {
            "all_reduce": (tensor, tensor),
            "broadcast": (tensor, tensor),
            "reduce": (tensor,),
            "all_gather": (whole,),
            "all_gather_single": (whole,),
            "reduce_scatter": (whole,),
            "reduce_scatter_single": (whole,),
            "all_to_all_single": (whole, 4 * max(n * (n + 1) // 2, n * (rank + 1))),
            "all_to_all": (whole,),
            "gather": (whole,),
            "scatter": (whole,),
            "barrier": (0,),
            **{0: {"send": (tensor,)}, 1: {"recv": (tensor,)}}.get(rank, {}),
            "coalesced": (20, 28),
        }


def chosen_ops(**settings: Any) -> list[str]:
    import torch

    import dsexplore.comm as dist

    dist.configure(enabled=True, **settings)
    dist.all_reduce(torch.ones(1))
    dist.all_reduce(torch.ones(1), log_name="gradients")
    dist.broadcast(torch.ones(1), 0, prof=True)
    dist.barrier()
    dist.comms_logger.start_profiling_op(["barrier"])
    dist.barrier()
    dist.comms_logger.stop_profiling_op(["barrier"])
    dist.barrier()
    dist.comms_logger.start_profiling_comms()
    dist.barrier(log_name="last")
    dist.comms_logger.stop_profiling_comms()
    dist.barrier()
    return dist.get_logged_comm_ops()


@pytest.mark.processes
@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"prof_all": False}, ["broadcast", "barrier", "last"]),
        ({"prof_all": False, "prof_ops": ["gradients"]}, ["gradients", "broadcast", "barrier", "last"]),
        ({"prof_all": False, "prof_ops": ["all_reduce"]}, ["all_reduce", "gradients", "broadcast", "barrier", "last"]),
        ({}, ["all_reduce", "gradients", "broadcast", "barrier", "last"]),
    ],
)
def test_what_is_recorded_can_be_chosen(settings: dict[str, Any], wanted: list[str]) -> None:
    from dsexplore import run_ranks

    run = run_ranks(lambda: chosen_ops(**settings), 2)
    assert run.values == [wanted, wanted]


def a_debug_log() -> tuple[list[str], str]:
    import contextlib
    import io

    import torch

    import dsexplore.comm as dist

    def train_step() -> None:
        dist.all_reduce(torch.ones(4))
        dist.broadcast(torch.ones(4), 0, debug="somebody")

    recorder_in_use.use(Recorder(clock=ticking()))
    dist.configure(enabled=True, debug=True, verbose=True)
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        train_step()
    return dist.get_logged_comm_ops(), shown.getvalue()


@pytest.mark.processes
def test_debug_names_the_caller_and_verbose_tells_on_rank_0(ranks: Ranks) -> None:
    (names, shown), (same_names, silent) = ranks(2, a_debug_log)
    assert names == same_names == ["all_reduce | [Caller Func: train_step]", "broadcast | [Caller Func: somebody]"]
    assert silent == ""
    first, second = shown.splitlines()
    assert first.startswith("all_reduce | [Caller Func: train_step] | group 0 | 16 B | 0.001 ms | algbw 16 MB/s")
    assert second.startswith("broadcast")


def a_verbose_log_of_all_layers() -> str:
    import contextlib
    import io

    import torch
    import torch.distributed as td

    import dsexplore.comm as dist

    dist.configure(enabled=True, verbose=True)
    peer = 1 - dist.get_rank()
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        td.all_reduce(torch.ones(4))
        dist.all_reduce(torch.ones(2), async_op=True).wait()
        work = td.broadcast(torch.ones(8), 0, async_op=True)
        handles = dist.batch_isend_irecv(
            [td.P2POp(td.isend, torch.ones(1), peer), td.P2POp(td.irecv, torch.ones(1), peer)]
        )
        for handle in (work, *handles):
            handle.wait()
        with pytest.raises(RuntimeError, match="all_gather_into_tensor"):
            dist.all_gather_into_tensor(torch.empty(5), torch.ones(2))
        td.barrier()
        dist.configure(enabled=False)
        td.all_reduce(torch.ones(4))
    return shown.getvalue()


@pytest.mark.processes
def test_verbose_tells_of_calls_of_every_layer_once_and_no_later_than_the_end(ranks: Ranks) -> None:
    shown, silent = ranks(2, a_verbose_log_of_all_layers)
    assert silent == ""
    lines = sorted(line.split(" | ") for line in shown.splitlines())
    assert [line[:3] for line in lines] == [
        ["all_gather_into_tensor", "group 0", "20 B"],
        ["all_reduce", "group 0", "8 B"],
        ["all_reduce (torch.distributed)", "group 0", "16 B"],
        ["barrier (torch.distributed)", "group 0", "0 B"],
        ["batch_isend_irecv", "group 0", "4 B"],
        ["batch_isend_irecv", "group 0", "4 B"],
        ["broadcast (torch.distributed)", "group 0", "32 B"],
    ]
    failed, *others = lines
    assert failed[3:] == ["failed: RuntimeError"]
    for line in others:
        assert line[3:] == ["–"] if line[0] == "batch_isend_irecv" else line[3].endswith(" ms") and len(line) == 6


def test_a_verbose_line_of_another_layer_comes_with_the_next_call_once_its_end_is_known(
    capsys: pytest.CaptureFixture[str],
) -> None:
    printer = Printer()
    _, first, _ = one_logged("first")
    _, second, _ = one_logged("second")
    printer.follow(first)
    printer.follow(second)
    printer.print_over()
    assert capsys.readouterr().out == ""
    second.end = 2000
    printer.print_over()
    printer.print_over()
    assert capsys.readouterr().out == "second | group 0 | 8 B | 0.002 ms | algbw 4 MB/s | busbw 4 MB/s\n"
    printer.print_rest()
    assert capsys.readouterr().out == "first | group 0 | 8 B | –\n"


def the_two_shapes() -> dict[str, Any]:
    import torch

    import dsexplore.comm as dist

    recorder_in_use.use(Recorder(clock=ticking()))
    dist.configure(enabled=True)
    for size in (250, 250, 500):
        dist.all_reduce(torch.ones(size))
    log = dist.comms_logger
    counts = dist.get_comm_operation_count(), dist.has_comm_data()
    assert log.comms_dict == log.get_raw_data()
    result = {"raw": log.get_raw_data(), "one": log.get_operation_summary("all_reduce"), "counts": counts}
    result["none"] = log.get_operation_summary("nothing")
    result["all"] = dist.log_summary(return_dict=True)
    dist.reset_log()
    result["after"] = dist.get_comm_operation_count(), dist.has_comm_data(), dist.get_logged_comm_ops()
    return result


@pytest.mark.processes
def test_deepspeeds_shapes_hold_the_right_figures(ranks: Ranks) -> None:
    result = ranks(2, the_two_shapes)[0]
    gbit = pytest.approx(1000 / 1e-6 / 1e9 * 8)
    assert result["raw"]["all_reduce"][1000] == [2, [1e-3, 1e-3], [gbit, gbit], [gbit, gbit]]
    assert result["raw"]["all_reduce"][2000][0] == 1
    one = result["one"][1000]
    assert one["count"] == 2
    assert one["total_latency_ms"] == pytest.approx(2e-3)
    assert one["avg_latency_ms"] == pytest.approx(1e-3)
    assert (one["tput_avg_gbps"], one["algbw_avg_gb_per_s"]) == (gbit, pytest.approx(1.0))
    assert (one["msg_size_bytes"], one["msg_size_str"]) == (1000, "1000 B")
    assert one["groups"]["0"]["group_size"] == 2
    assert result["none"] is None
    assert result["counts"] == (3, True)
    assert result["all"]["summary"]["all_reduce"] == result["one"]
    assert result["all"]["straggler_analysis"] is None
    assert (result["all"]["metadata"]["rank"], result["all"]["metadata"]["world_size"]) == (0, 2)
    assert result["after"] == (0, False, [])


def switching_while_ops_run() -> list[Any]:
    import torch

    import dsexplore.comm as dist

    seen = []
    dist.configure(enabled=True)
    on_then_off = dist.all_reduce(torch.ones(8), async_op=True)
    dist.configure(enabled=False)
    off_then_on = dist.all_reduce(torch.ones(8), async_op=True)
    dist.configure(enabled=True)
    on_then_off.wait()
    off_then_on.wait()
    seen.append([record.seconds is not None for record in dist.comms_logger.records])
    forgotten = dist.all_reduce(torch.ones(8), async_op=True)
    dist.reset_log()
    forgotten.wait()
    seen.append(len(dist.comms_logger.records))
    return seen


@pytest.mark.processes
def test_switching_the_log_while_an_op_runs_is_safe(ranks: Ranks) -> None:
    assert ranks(2, switching_while_ops_run) == [[[True], 0]] * 2


def calls_from_threads() -> tuple[int, int, int]:
    import threading

    import torch

    import dsexplore.comm as dist

    dist.configure(enabled=True)
    groups = [dist.new_group() for _ in range(4)]

    def work(group: Any) -> None:
        for _ in range(50):
            dist.all_reduce(torch.ones(2), group=group)
            dist.all_reduce(torch.ones(2), group=group, async_op=True).wait()

    threads = [threading.Thread(target=work, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
    for _ in range(20):
        dist.comms_logger.to_frame()  # reading while others write
    for thread in threads:
        thread.join()
    records = dist.comms_logger.records
    timed = sum(record.seconds is not None for record in records)
    return len(records), timed, len({record.group.name for record in records})


@pytest.mark.processes
def test_threads_may_call_at_the_same_time(ranks: Ranks) -> None:
    assert ranks(2, calls_from_threads) == [(400, 400, 4)] * 2


def two_that_overlap(logged: bool) -> list[Any]:
    """Rank 1 joins B first and A only afterwards, so rank 0 is stuck at A if anything waits for it there."""
    import torch

    import dsexplore.comm as dist

    dist.configure(enabled=logged)
    group_a, group_b = dist.new_group(), dist.new_group()
    a, b = torch.ones(4), torch.ones(4)
    if dist.get_rank() == 0:
        first = dist.all_reduce(a, group=group_a, async_op=True)
        second = dist.all_reduce(b, group=group_b, async_op=True)
        second.wait()
        dist.barrier()
        first.wait()
    else:
        dist.all_reduce(b, group=group_b)
        dist.barrier()
        dist.all_reduce(a, group=group_a)
    times = {record.group.name: record.times for record in dist.comms_logger.records}
    return [a.tolist(), b.tolist(), times.get(group_a.group_name), times.get(group_b.group_name)]


@pytest.mark.processes
@pytest.mark.parametrize("logged", [False, True])
def test_logging_keeps_overlap(ranks: Ranks, logged: bool) -> None:
    first, second = ranks(2, two_that_overlap, logged)
    assert first[:2] == second[:2] == [[2.0] * 4] * 2
    if logged:
        (start_a, end_a), (start_b, end_b) = first[2:]
        assert start_a < start_b < end_b < end_a


def with_and_without_a_future() -> list[list[str]]:
    """Handles of works that say when they are done, and of gloo's that do not, each waited for late."""
    import threading

    import torch
    import torch.distributed as td

    import dsexplore.comm as dist

    dist.configure(enabled=True)
    n, peer = dist.get_world_size(), 1 - dist.get_rank()
    polled = dist.all_reduce(torch.ones(4), async_op=True)
    while not polled.is_completed():
        threading.Event().wait(0)
    for module in (dist, td):
        works = [
            module.isend(torch.ones(4), peer),
            module.irecv(torch.empty(4), peer),
            module.reduce_scatter(torch.empty(4), [torch.ones(4)] * n, async_op=True),
            module.reduce_scatter_single(torch.empty(4), torch.ones(4 * n), async_op=True),
        ]
        dist.barrier()
        for work in works:
            work.wait()
        module.reduce_scatter(torch.empty(4), [torch.ones(4)] * n)
    both = dist.send, dist.recv
    for call in both if dist.get_rank() else both[::-1]:
        call(torch.ones(4), peer)
    records = dist.comms_logger.records
    return [[f"{one.layer} {one.op}" for one in records if bool(one.seconds) == timed] for timed in (True, False)]


@pytest.mark.processes
def test_a_call_whose_end_nobody_saw_has_no_time(ranks: Ranks) -> None:
    for timed, untimed in ranks(2, with_and_without_a_future):
        ours, torchs = "dsexplore.comm", "torch.distributed"
        without = ["send", "recv", "reduce_scatter", "reduce_scatter"]
        assert untimed == [f"{ours} {op}" for op in without] + [f"{torchs} {op}" for op in [*without, "reduce_scatter"]]
        waited_for = ["all_reduce", "barrier", "reduce_scatter", "barrier"]
        assert sorted(timed) == sorted(f"{ours} {op}" for op in [*waited_for, "send", "recv"])


def futures_waited_for(times: int) -> int:
    """The work's own thread may tell the log only later: it has to get the interpreter first."""
    import torch

    import dsexplore.comm as dist

    dist.configure(enabled=True)
    for _ in range(times):
        dist.all_reduce(torch.ones(4), async_op=True).get_future().wait()
        if dist.comms_logger.records[-1].seconds is None:
            return 1
    return 0


@pytest.mark.processes
def test_an_op_is_over_in_the_log_when_its_future_is(ranks: Ranks) -> None:
    assert ranks(2, futures_waited_for, 300) == [0, 0]


def one_logged(name: str = "all_reduce") -> tuple[Call, Issued, Record]:
    """An asynchronous call that was issued at 0, and its line."""
    group = Group("0", 2, (0, 1), "gloo", "", timing="work")
    message = ("all_reduce", 8, None, ())
    issued = Issued("c10d::allreduce_", [message], group, 0, Origin("other", None, None, ()))
    issued.start = 0
    call = Call(ALL_REDUCE, name, is_wanted=True, ends_with_call=False)
    issued.label = call
    call.issued.append(issued)
    return call, issued, Record(issued, call, message)


@pytest.mark.parametrize("ask", [True, False])
def test_an_op_whose_future_failed_is_no_measurement(ask: bool) -> None:
    work: torch.futures.Future[None] = torch.futures.Future()
    call, issued, record = one_logged()
    end_at_completion(issued, work, ticking())
    handle = Handle(work, "all_reduce", None, call)
    successor = handle.get_future() if ask else None
    work.set_exception(ValueError("on purpose"))
    if successor is not None:
        with pytest.raises((RuntimeError, ValueError), match="on purpose"):
            successor.wait()
    assert (record.failed, record.cause, record.seconds) == (True, "failed: ValueError", None)


@pytest.mark.parametrize(("is_custom", "verbose", "ends"), [(True, False, True), (False, True, True), (False,) * 3])
def test_the_lines_that_end_with_their_work_though_nobody_waits(is_custom: bool, verbose: bool, ends: bool) -> None:
    """Custom ops, whose collectives end lines of their own if any; and those that are printed once they are over."""
    work: torch.futures.Future[None] = torch.futures.Future()
    call, issued, _ = one_logged()
    call.spelling = replace(call.spelling, is_custom=is_custom)
    dist.configure(enabled=True, verbose=verbose)
    Handle(work, "all_reduce", None, call)
    work.set_result(None)
    assert (issued.end is not None) == ends
    dist.configure(enabled=False, verbose=False)


def test_the_first_to_say_that_an_op_is_over_counts_and_alone_tells(capsys: pytest.CaptureFixture[str]) -> None:
    """The thread of the work says so, and the one that waits for it."""
    call, _, record = one_logged()
    readings = iter([2000, 1000])

    def clock() -> int:
        now = next(readings)
        if now == 2000:
            log.end(call)  # the other thread, meanwhile
        return now

    recorder_in_use.use(Recorder(clock=clock))
    log = CommsLogger(CommsLoggerConfig(enabled=True, verbose=True))
    log.end(call)
    recorder_in_use.use(Recorder())
    assert record.times == (0, 1000)
    assert capsys.readouterr().out.count("all_reduce | group 0") == 1


def custom_ops() -> tuple[list[tuple[str, int]], list[float]]:
    import torch
    import torch.distributed as td

    import dsexplore.comm as dist

    @dist.timed_op
    def ring_sum(tensor: torch.Tensor, group: Any = None, async_op: bool = False) -> Any:
        return td.all_reduce(tensor, group=group, async_op=async_op)

    dist.configure(enabled=True)
    tensor = torch.ones(16)
    ring_sum(tensor)
    ring_sum(tensor, async_op=True, log_name="ring twice").wait()
    logged = [(record.name, record.bytes) for record in dist.comms_logger.records if record.seconds]
    return logged, tensor.tolist()[:1]


@pytest.mark.processes
def test_an_op_of_the_users_own_is_logged_under_its_name(ranks: Ranks) -> None:
    assert ranks(2, custom_ops) == [([("ring_sum", 64), ("ring twice", 64)], [4.0])] * 2


def test_a_measurement_under_an_unknown_name_is_kept() -> None:
    log = CommsLogger(CommsLoggerConfig(enabled=True), clock=ticking(), epoch=0)
    log.append("warp_drive", "my warp", latency=2.0, msg_size=4_000_000, group_size=8)
    log.append("all_reduce", "all_reduce", latency=2.0, msg_size=4_000_000, group_size=8)
    first, second = log.summary().lines
    assert (first.name, first.op, first.rates) == ("my warp", "warp_drive", (2.0, 2.0))
    assert second.rates == pytest.approx((2.0, 3.5))
    assert log.trace().events["op"].to_list() == ["warp_drive", "all_reduce"]


def test_a_profiled_op_may_be_named_without_a_list() -> None:
    log = CommsLogger()
    log.start_profiling_op("all_reduce")
    log.start_profiling_op(["all_reduce", "barrier"])
    assert log.prof_ops == ["all_reduce", "barrier"]
    log.stop_profiling_op("all_reduce")
    assert log.prof_ops == ["barrier"]


def a_batch() -> list[tuple[Any, ...]]:
    recorder_in_use.use(Recorder(clock=ticking()))
    dist.configure(enabled=True)
    dist.all_reduce_coalesced([torch.ones(25), torch.ones(75)])
    return [(record.seconds, record.times, record.batch) for record in dist.comms_logger.records]


@pytest.mark.processes
def test_members_of_a_batch_share_its_time(ranks: Ranks) -> None:
    for first, second in ranks(2, a_batch):
        assert (first[0], second[0]) == (pytest.approx(0.25e-6), pytest.approx(0.75e-6))
        assert first[1:] == second[1:]
        assert first[2] == 1


def test_a_long_log_keeps_the_last_calls_and_the_sums_of_all() -> None:
    whole, bounded = (
        CommsLogger(CommsLoggerConfig(enabled=True), clock=ticking(), epoch=0, most=m) for m in (9999, 50)
    )
    for number in range(3000):
        for log in (whole, bounded):
            name, size = ("odd", 64) if number % 2 else ("even", 1024)
            log.append("all_reduce", name, latency=1.0 + number / 1000, msg_size=size, group_size=4)
    assert (
        whole.to_frame()
        .drop("total_ms", "mean_ms", "algbw_gb_per_s", "busbw_gb_per_s")
        .equals(bounded.to_frame().drop("total_ms", "mean_ms", "algbw_gb_per_s", "busbw_gb_per_s"))
    )
    assert bounded.to_frame()["total_ms"].to_list() == pytest.approx(whole.to_frame()["total_ms"].to_list())
    assert len(bounded.records) == 50 + (3000 - 50) % 1024
    assert bounded.get_total_operations() == whole.get_total_operations() == 3000
    assert bounded.get_operation_names() == ["even", "odd"]
    assert [(size, data[0]) for name in ("even", "odd") for size, data in bounded.comms_dict[name].items()] == [
        (1024, 1500),
        (64, 1500),
    ]
    mine, full = (log.get_operation_summary("odd") for log in (bounded, whole))
    assert mine is not None
    assert full is not None
    assert mine[64]["count"] == mine[64]["groups"]["4 ranks"]["count"] == 1500
    assert mine[64]["total_latency_ms"] == pytest.approx(full[64]["total_latency_ms"])
    trace = bounded.trace()
    assert len(trace) == len(bounded.records)
    assert trace.info.notes[-1] == f"The {3000 - len(trace):,} calls before these are in the log's summary alone."
    last = {record.issued.end for record in whole.records[-len(trace) :]}
    assert {record.issued.end for record in bounded.records} == last
    bounded.reset_data()
    assert not bounded.has_data()
    assert bounded.get_total_operations() == 0
    with pytest.raises(UsageError, match="most=0 keeps no call"):
        bounded.most = 0


def test_a_call_under_way_keeps_its_place_in_a_long_log() -> None:
    log = CommsLogger(CommsLoggerConfig(enabled=True), clock=ticking(), epoch=0, most=1)
    call, pending, _ = one_logged("pending")
    call.is_wanted = True
    log._recording.add(pending)
    for _ in range(3000):
        log.append("all_reduce", "all_reduce", latency=1.0, msg_size=64)
    assert log.records[0].name == "pending"
    pending.end = 5000
    for _ in range(1024):
        log.append("all_reduce", "all_reduce", latency=1.0, msg_size=64)
    assert "pending" not in {record.name for record in log.records}
    (line,) = (line for line in log.summary().lines if line.name == "pending")
    assert (line.count, line.total) == (1, 5e-6)


def test_the_log_as_text_writes_units_and_groups(capsys: pytest.CaptureFixture[str]) -> None:
    log = CommsLogger(CommsLoggerConfig(enabled=True), clock=ticking(), epoch=0)
    for _ in range(2):
        log.append("all_gather", "all_gather", latency=0.5, msg_size=1_000_000, group_size=4)
    log.log_all()
    assert capsys.readouterr().out.splitlines() == [
        "op          layer           group    ranks    message  count  total ms  mean ms   algbw     busbw",
        "all_gather  dsexplore.comm  4 ranks      4  976.6 KiB      2     1.000    0.500  2 GB/s  1.5 GB/s",
    ]
    assert CommsLogger().summary().text() == "nothing was logged"


def the_trace() -> Any:
    import torch

    import dsexplore.comm as dist

    dist.configure(enabled=True)
    model = torch.nn.Linear(4, 4, bias=False)
    model.weight.register_post_accumulate_grad_hook(lambda weight: dist.all_reduce(weight.grad))
    model(torch.ones(2, 4)).sum().backward()
    dist.all_gather_object([None, None], 1)
    dist.all_reduce_coalesced([torch.ones(5), torch.ones(3)])
    dist.broadcast(torch.ones(2, dtype=torch.bfloat16), 0, async_op=True, log_name="weights").wait()
    trace = dist.comms_logger.trace()
    columns = (
        "seq",
        "op",
        "phase",
        "group",
        "group_size",
        "message_bytes",
        "wire_bytes",
        "dtype",
        "is_async",
        "is_object",
    )
    rows = trace.events.select(*columns, "batch", "cause").rows()
    timed = trace.events.select("start", "end").rows()
    schemas = {name: getattr(trace, name).schema for name in ("events", "groups")}
    sources = trace.events["source"].to_list()
    return rows, timed, schemas, trace.groups.rows(named=True), trace.info, sources


@pytest.mark.processes
def test_a_logged_run_is_a_trace(ranks: Ranks) -> None:
    from dsexplore.trace import schema

    for rank, (rows, timed, schemas, groups, info, sources) in enumerate(ranks(2, the_trace)):
        assert rows == [
            (0, "all_reduce", "backward", "0", 2, 64, 64, "float32", False, False, None, ""),
            (1, "all_gather", "other", "0", 2, rows[1][5], -(-rows[1][5] // 2), "uint8", False, True, None, ""),
            (2, "all_reduce", "other", "0", 2, 20, 20, "float32", False, False, 1, ""),
            (3, "all_reduce", "other", "0", 2, 12, 12, "float32", False, False, 1, ""),
            (4, "broadcast", "other", "0", 2, 4, 4, "bfloat16", True, False, None, "weights"),
        ]
        assert all(start < end for start, end in timed)
        assert timed == sorted(timed)
        assert all(source.startswith(f"{file_name(__file__)}:") for source in sources)
        assert len(set(sources)) == 4  # the coalesced two are of one line
        assert timed[0][0] > 1_700_000_000 * 10**9  # since the epoch, not since the machine started
        assert {name: dict(found) for name, found in schemas.items()} == {
            "events": schema.EVENTS,
            "groups": schema.GROUPS,
        }
        assert [(g["group"], g["ranks"], g["backend"], g["timing"]) for g in groups] == [("0", [0, 1], "gloo", "work")]
        assert (info.world_size, info.ranks, info.simulated) == (2, (rank,), False)


def test_the_name_of_the_module_is_all_a_program_needs() -> None:
    import torch.distributed as td

    assert dist.ReduceOp is td.ReduceOp
    assert dist.ProcessGroup is td.ProcessGroup
    assert dist.group is td.group
    with pytest.raises(AttributeError, match=r"neither dsexplore\.comm nor torch\.distributed has 'all_redcue'"):
        _ = dist.all_redcue
