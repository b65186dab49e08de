"""When an asynchronous call is over, and what the log says until then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import dsexplore.comm as dist
from dsexplore._internal.capture import recorder_in_use
from dsexplore._internal.capture.recorder import Recorder
from dsexplore._internal.capture.timing.work_timing import end_at_completion
from dsexplore._internal.comm.handles import Handle
from dsexplore._internal.comm.logs.logger import CommsLogger
from dsexplore._internal.comm.logs.logger_config import CommsLoggerConfig
from tests.comm.single_calls import one_logged, ticking

Ranks = Callable[..., list[Any]]


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
            module.reduce_scatter_tensor(torch.empty(4), torch.ones(4 * n), async_op=True),
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
    """Return the work's own thread may tell the log only later: it has to get the interpreter first."""
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
    """Both the thread of the work and the one that waits for it report the end."""
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
