"""A log has the calls of real ranks, with times of a clock that advances by a microsecond at each look.

Modules: ``comm/logs/logger.py``, ``comm/logs/log_records.py``, ``comm/logs/log_content.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dsexplore.comm as dist
from dsexplore._internal.capture import recorder_in_use
from dsexplore._internal.capture.recorder import Recorder
from dsexplore._internal.capture.stack.source_lines import file_name
from dsexplore._internal.comm.logs.logger import CommsLogger
from dsexplore._internal.comm.logs.logger_config import CommsLoggerConfig
from tests.comm.every_op import GLOO_SWAPS_LISTS, every_op
from tests.comm.single_calls import ticking

Ranks = Callable[..., list[Any]]


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
            "all_gather_into_tensor": (whole,),
            "reduce_scatter": (whole,),
            "reduce_scatter_tensor": (whole,),
            "all_to_all_single": (whole, 4 * max(n * (n + 1) // 2, n * (rank + 1))),
            **({"all_to_all": (whole,)} if GLOO_SWAPS_LISTS else {}),
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


def test_the_log_as_text_writes_units_and_groups(capsys: pytest.CaptureFixture[str]) -> None:
    log = CommsLogger(CommsLoggerConfig(enabled=True), clock=ticking(), epoch=0)
    for _ in range(2):
        log.append("all_gather", "all_gather", latency=0.5, msg_size=1_000_000, group_size=4)
    log.log_all()
    assert capsys.readouterr().out.splitlines() == [
        "op          layer           group    ranks    message  count  total ms  mean ms   algbw     busbw",
        "all_gather  dsexplore.comm  4 ranks      4  976.6 KiB      2     1.000    0.500  2 GB/s  1.5 GB/s",
    ]
    assert str(CommsLogger().summary()) == CommsLogger().summary().table_text() == "Nothing was logged."


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
    from dsexplore._internal.trace import schema

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


def labels_of_calls_alike() -> int:
    """Return how many labels a rank's log keeps of fifty equal calls and one with another name."""
    import gc

    from dsexplore._internal.comm.logs.log_records import LoggedCall

    dist.configure(enabled=True)
    for _ in range(50):
        dist.all_reduce(torch.ones(2))
    dist.all_reduce(torch.ones(2), log_name="loss")
    assert len(dist.comms_logger.records) == 51
    return sum(isinstance(each, LoggedCall) for each in gc.get_objects())


@pytest.mark.processes
def test_calls_that_are_alike_share_a_label(ranks: Ranks) -> None:
    """A log keeps 300,000 calls."""
    assert ranks(1, labels_of_calls_alike) == [2]
