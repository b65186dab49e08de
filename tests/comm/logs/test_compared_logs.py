"""Calls that gloo lets pass though they differ between ranks, and ranks that do not come to compare them."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch

import dsexplore.comm as dist
from dsexplore import run_ranks
from dsexplore._internal.comm.logs import meeting
from dsexplore._internal.comm.logs.compared_logs import CHUNK, chunks_to_compare, digests
from dsexplore._internal.comm.logs.sent_calls import Series, numbered
from dsexplore._internal.errors import MismatchError
from dsexplore._internal.worlds.simulate import simulate
from tests.running_processes import state_of

Ranks = Callable[..., list[Any]]


def checked(which: str) -> str:
    """Return what `check` says after calls that differ between the ranks in one thing."""
    import io

    import torch
    import torch.distributed as td

    import dsexplore.comm as dist

    dist.configure(enabled=True)
    rank = dist.get_rank()
    dist.all_reduce(torch.ones(4))
    if which == "dtype":
        dist.all_reduce(torch.ones(4, dtype=torch.float32 if rank else torch.int32))
    elif which == "reduction":
        dist.all_reduce(torch.ones(4), op=td.ReduceOp.MAX if rank else td.ReduceOp.SUM)
    elif which == "torch's":
        td.all_reduce(torch.ones(4), op=td.ReduceOp.MAX if rank else td.ReduceOp.SUM)
    elif which == "order":
        for dtype in (torch.float32, torch.int32) if rank else (torch.int32, torch.float32):
            dist.all_reduce(torch.ones(4, dtype=dtype))
    dist.barrier()
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        result = dist.log_summary(show_straggler=True, return_dict=True)
    assert result is not None
    try:
        dist.check()
        return ""
    except MismatchError as error:
        told = str(error)
    said = told, told if rank else shown.getvalue()
    return told if all(result["differences"][0] in text for text in said) else f"{result}, {shown.getvalue()}"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("which", "first", "second"),
    [
        ("dtype", "of 16 B int32", "of 16 B float32"),
        ("reduction", "SUM of 16 B float32", "MAX of 16 B float32"),
        ("torch's", "SUM of 16 B float32", "MAX of 16 B float32"),
        ("order", "of 16 B int32", "of 16 B float32"),
    ],
)
def test_what_differs_between_ranks_is_named_with_their_lines(
    ranks: Ranks, which: str, first: str, second: str
) -> None:
    told = ranks(2, checked, which)
    assert told[0] == told[1]
    head, _, rest = told[0].partition(": collective 2 of group 0 differs: ")
    assert head == "the ranks did not make the same calls"
    of_first, of_second = rest.split(", rank 1 ")
    assert of_first.startswith("rank 0 all_reduce ")
    assert f"{first} at " in of_first
    assert f"{second} at " in of_second
    assert of_second.count("test_compared_logs.py:") == 1


def checked_before_the_last_call(by_summary: bool) -> str:
    """Return what a comparison says while rank 0 waits for a call that rank 1 has not made."""
    import torch

    import dsexplore.comm as dist

    dist.configure(enabled=True)
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    handle = dist.all_reduce(tensor, async_op=True) if dist.get_rank() == 0 else None
    said = ""
    if by_summary:
        said = "; ".join(dist.comms_logger.stragglers().tables.info.notes)
    else:
        try:
            dist.check()
        except MismatchError as error:
            said = str(error)
    if handle is None:
        dist.all_reduce(tensor)
    else:
        handle.wait()
    dist.check()
    assert tensor.tolist() == [4.0] * 4
    return said


@pytest.mark.processes
@pytest.mark.parametrize("by_summary", [False, True])
def test_a_call_that_one_rank_has_not_made_is_named_while_the_other_waits(ranks: Ranks, by_summary: bool) -> None:
    told = ranks(2, checked_before_the_last_call, by_summary)
    assert told[0] == told[1]
    _, _, differs = told[0].partition("collective 2 of group 0 differs: rank 0 all_reduce SUM of 16 B float32 at ")
    assert ", rank 1 made no such call" in differs


def checked_after_a_time_out(layer: str) -> str:
    """Return what `check` says after calls of several kinds for which the ranks waited in vain."""
    import torch
    import torch.distributed as td

    import dsexplore.comm as dist
    from dsexplore._internal.capture.record import record

    dist.configure(enabled=True)
    called = dist if layer == "ours" else td
    called.all_reduce(torch.ones(4))
    with record() as trace, contextlib.suppress(RuntimeError):
        if dist.get_rank() == 0:
            called.all_reduce(torch.ones(4))
        else:
            called.broadcast(torch.ones(4), 0)
    assert trace.events["state"].to_list() == ["failed"]
    try:
        dist.check()
    except MismatchError as error:
        return str(error)
    return "no difference"


@pytest.mark.processes
@pytest.mark.parametrize("layer", ["ours", "torch's"])
def test_after_a_time_out_the_calls_that_differ_are_named(layer: str, patience: float) -> None:
    told = run_ranks(checked_after_a_time_out, 2, args=(layer,), timeout=200, group_timeout=patience).values
    assert told[0] == told[1]
    _, _, differs = told[0].partition("collective 2 of group 0 differs: ")
    assert differs.startswith("rank 0 all_reduce SUM of 16 B float32 at ")
    assert ", rank 1 broadcast of 16 B float32 root 0 at " in differs


@pytest.mark.processes
def test_ranks_that_agree_are_left_alone(ranks: Ranks) -> None:
    assert ranks(2, checked, "nothing") == ["", ""]


def test_a_simulated_rank_has_nobody_to_be_compared_with() -> None:
    with simulate(world_size=4, rank=3):
        dist.configure(enabled=True)
        dist.all_reduce(torch.ones(2))
        dist.check()


def test_only_the_first_chunk_that_differs_is_sent() -> None:
    count, odd = 3 * CHUNK, 2 * CHUNK + 5
    sent, series = {}, None
    for rank, dropped in ((0, 0), (1, 0), (2, 700)):  # rank 2 no longer has its first 700
        log = dist.CommsLogger({"comms_logger": {"enabled": True}}, epoch=0)
        for number in range(dropped, count):
            log.append("all_reduce", "all_reduce", 1.0, 32 if rank == 2 and number == odd else 16, group_size=3)
        (series,) = {series for series, _, _ in numbered(log.records, {})}
        earlier: dict[Series, int] = {series: dropped}
        sent[rank] = digests(numbered(log.records, earlier), earlier)
    assert series is not None
    first, end, of_chunks = sent[2][series]
    assert (first, end, sorted(of_chunks)) == (700, count, [1, 2])
    assert chunks_to_compare(sent) == {series: 2}
    del sent[2]
    assert chunks_to_compare(sent) == {}


def stopped_ended_or_late(how: str) -> str:
    import torch

    import dsexplore.comm as dist

    dist.configure(enabled=True)
    dist.all_reduce(torch.ones(1))
    both = dist.new_group([0, 1])
    pids: list[Any] = [None] * 3
    dist.all_gather_object(pids, os.getpid())
    if dist.get_rank() == 2:
        if how == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif how == "ended":
            os._exit(0)
        else:
            dist.recv(torch.ones(1), 0)
        return "went on"
    while state_of(pids[2]) not in {"stopped": "T", "ended": "Z", "late": "S"}[how]:
        threading.Event().wait(0.01)
    dist.barrier(group=both)  # from here on these two need no more than a moment
    try:
        meeting.meet("log_summary(show_straggler=True)", timedelta(seconds=1.5))
    except TimeoutError as error:
        text = str(error).replace(str(pids[2]), "PID")
    dist.barrier(group=both)
    if dist.get_rank() == 0:
        if how == "stopped":
            os.kill(pids[2], signal.SIGCONT)
        elif how == "late":
            dist.send(torch.ones(1), 2)
    return text


@pytest.mark.processes
@pytest.mark.parametrize(
    ("how", "state"),
    [
        ("stopped", "Rank 2 (process PID) is stopped, as by SIGSTOP or Ctrl-Z: `kill -CONT PID` continues it."),
        ("late", "Rank 2 (process PID) runs, and is late or elsewhere in the program."),
        ("ended", "Rank 2 (process PID) has ended: look at its output."),
    ],
)
def test_a_rank_that_does_not_come_is_named_with_how_it_is(how: str, state: str) -> None:
    run = run_ranks(stopped_ended_or_late, 3, args=(how,), timeout=240, group_timeout=120)
    for outcome in run.outcomes[:2]:
        assert outcome.value == (
            "log_summary(show_straggler=True): rank 2 of 3 has not made this call after 1.5 s,"
            f" and every rank of the world must. {state}"
        )


def time_out_beside_a_stopped_rank() -> str:
    import torch

    import dsexplore.comm as dist

    dist.configure(enabled=True)
    pids: list[Any] = [None] * 2
    dist.all_gather_object(pids, os.getpid())
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
        return ""
    try:
        dist.all_reduce(torch.ones(1))
    except RuntimeError as error:
        return str(error).replace(str(pids[1]), "PID")
    finally:
        os.kill(pids[1], signal.SIGCONT)
    return ""


@pytest.mark.processes
def test_a_time_out_says_who_is_stopped_and_what_makes_torch_say_more(patience: float) -> None:
    text = run_ranks(time_out_beside_a_stopped_rank, 2, timeout=200, group_timeout=patience).outcomes[0].value
    assert "TORCH_DISTRIBUTED_DEBUG=DETAIL in the environment" in text
    assert text.endswith("Rank 1 (process PID) is stopped, as by SIGSTOP or Ctrl-Z: `kill -CONT PID` continues it.")


def different_under_detail() -> str:
    import torch

    import dsexplore.comm as dist

    try:
        dist.all_reduce(torch.ones(4 if dist.get_rank() else 8))
    except RuntimeError as error:
        return str(error)
    return ""


@pytest.mark.processes
def test_ranks_are_told_torchs_level_of_detail() -> None:
    run = run_ranks(different_under_detail, 2, environment={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, timeout=240)
    assert all("Detected mismatch between collectives on ranks" in text for text in run.values)
