"""A verbose log prints a line per call; a debug log adds the name of the caller.

Modules: ``comm/logs/log_content.py``, ``comm/issue.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dsexplore.comm as dist
from dsexplore._internal.capture import recorder_in_use
from dsexplore._internal.capture.recorder import Recorder
from dsexplore._internal.comm.logs.log_content import Printer
from tests.comm.single_calls import one_logged, ticking

Ranks = Callable[..., list[Any]]


def a_debug_log() -> tuple[list[str], str]:
    import contextlib
    import io

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

    import torch.distributed as td

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
    printer.print_completed()
    assert capsys.readouterr().out == ""
    second.end = 2000
    printer.print_completed()
    printer.print_completed()
    assert capsys.readouterr().out == "second | group 0 | 8 B | 0.002 ms | algbw 4 MB/s | busbw 4 MB/s\n"
    printer.print_all()
    assert capsys.readouterr().out == "first | group 0 | 8 B | –\n"
