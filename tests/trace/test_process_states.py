"""Processes run, are stopped, or are gone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from dsexplore._internal.trace.process_states import end_of_process, host_clock, start_ticks


def test_this_process_runs() -> None:
    assert start_ticks(os.getpid()) > 0
    assert end_of_process(os.getpid(), start_ticks(os.getpid())) == ""
    assert host_clock() == host_clock() != ""


def test_another_process_of_the_number_is_not_taken_for_it() -> None:
    assert end_of_process(os.getpid(), start_ticks(os.getpid()) - 1).startswith("ended without saving its trace")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import os; os._exit(3)", "ended with exit code 3, without saving its trace"),
        ("import os; os.abort()", "was killed by SIGABRT"),
    ],
)
def test_a_process_that_nobody_has_waited_for_says_how_it_ended(code: str, said: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    started = start_ticks(process.pid)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert end_of_process(process.pid, started) == said
    process.wait()
    assert end_of_process(process.pid, started).startswith("ended without saving its trace")
    assert start_ticks(process.pid) == 0
