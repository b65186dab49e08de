"""Hangs of real ranks, from what ``commtrace(save=…)`` leaves: how the missing rank ended, and in which attempt.

Modules: ``analysis/hangs/hang_report.py``, ``analysis/hangs/trace_calls.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dsexplore
from dsexplore._internal.analysis.hangs.hang_report import HangReport
from dsexplore._internal.trace.files import rank_file
from tests.analysis.hangs.events import run_three

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("rank_server")]
Job = Callable[..., HangReport]

FAILS = """
exec(events); import sys, json, torch, torch.distributed as dist, dsexplore
def load(step):
    if step == 2:
        mark("last step")
    if rank == 1 and step == 2:
        wait_for("last step", 0, 2)
        {fails}
    return torch.ones(4)
try:
    with dsexplore.commtrace(save=folder, timeout=1.5):
        for step in range(3):
            dist.all_reduce(load(step))
finally:
    if stops and rank != 1:
        mark("over")
        wait_for("over", 0, 2)
        end_run()
"""
FAILING, LAST_CALL = 8, 13
"""The lines on which rank 1 fails, and of its last call."""


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Run a program on three ranks, and return the report on the folder that it saves into."""

    def run(program: str, folder: Path = tmp_path, **options: Any) -> HangReport:
        run_three(program, folder, **options)
        return dsexplore.explain_hang(folder)

    return run


@pytest.mark.parametrize(
    ("fails", "reason", "said"),
    [
        ("raise ValueError('bad sample 17')", "raised", "raised ValueError (bad sample 17) at <rank cell>:8: "),
        ("json.loads('{')", "raised", "raised JSONDecodeError (Expecting property name"),
        ("sys.exit(3)", "ended", "ended with exit code 3 at <rank cell>:8: "),
        ("os.kill(os.getpid(), 9)", "killed", "was killed by SIGKILL: "),
        ("os.kill(os.getpid(), 19)", "stopped", "was stopped (by SIGSTOP or a debugger): "),
    ],
)
def test_how_the_missing_rank_ended_is_said_with_its_line(job: Job, fails: str, reason: str, said: str) -> None:
    """Where rank 1 is stopped, the others wait until the time-out of their group."""
    stops = reason == "stopped"
    found = job(FAILS.format(fails=fails), stops=stops, is_ended=stops, group_timeout=10 if stops else 60)
    line = FAILING if reason in ("raised", "ended") else LAST_CALL  # its last call, where it says no more
    assert (found.culprits, found.reason, found.sources) == ((1,), reason, {1: f"<rank cell>:{line}"})
    assert found.verdict().startswith(f"rank 1 {said}")
    call = f"all_reduce (<rank cell>:{LAST_CALL}, group 0, 16 B), collective 3 of group 0"
    assert found.verdict().endswith(f"ranks 0, 2 waited for it in {call}, which failed")  # the job is over


TAGS = """
import torch, torch.distributed as dist, dsexplore
with dsexplore.commtrace(save=folder, timeout=1.5):
    for step in range(3):
        if rank == 0:
            dist.send(torch.ones(4), 1, tag=step)
        elif rank == 1:
            dist.recv(torch.ones(4), 0, tag=step if step < 2 else 7)
"""


def test_messages_whose_tags_differ_wait_for_each_other(job: Job, tmp_path: Path) -> None:
    found = job(TAGS, group_timeout=10)
    assert (found.culprits, found.suspects, found.reason) == ((), (0, 1), "messages in a circle")
    assert "they waited for each other's message, and these differ by tag" in found.verdict()
    assert str(dsexplore.explain_hang(dsexplore.load(tmp_path))) == found.verdict()


DIES = """
exec(events); import torch, torch.distributed as dist, dsexplore
if dies == "before" and rank == 1: os._exit(1)
with dsexplore.commtrace(save=folder, timeout=1.5):
    for step in range(3):
        mark(f"step {step}")
        if dies == "inside" and rank == 1 and step == 2: wait_for("step 2", 0, 2); os._exit(1)
        dist.all_reduce(torch.ones(8))
"""


@pytest.mark.parametrize("dies", ["before", "inside"])
def test_the_file_of_an_earlier_attempt_does_not_count(job: Job, tmp_path: Path, dies: str) -> None:
    assert job(DIES, dies="").reason == "none"
    assert dsexplore.load(tmp_path).info.ends == ("ended its block",) * 3
    alone = job(DIES, tmp_path / "alone", dies=dies)
    again = job(DIES, dies=dies)
    assert (again.culprits, again.verdict()) == (alone.culprits, alone.verdict()) == ((1,), alone.verdict())
    is_left = (tmp_path / rank_file(1)).exists()
    assert is_left == (dies == "before")
    told = "the file of rank 1 is of an earlier attempt of the job, and left out"
    assert (told in again.notes) == is_left
    assert dsexplore.load(tmp_path).info.ranks == (0, 2)


BLOCKS = """
exec(events); import torch, torch.distributed as dist, dsexplore
for block in range(2):
    mark(f"block {block}")
    if rank == 1 and block == 1: wait_for("block 1", 0, 2); os._exit(1)
    with dsexplore.commtrace(save=folder, timeout=1.5):
        dist.all_reduce(torch.ones(8))
"""


def test_the_file_of_an_earlier_block_does_not_count_for_a_later_one(job: Job) -> None:
    found = job(BLOCKS)
    assert found.culprits == (1,)
    assert "the file of rank 1 is of an earlier block that was saved there, and left out" in found.notes


OUTSIDE = """
exec(events); import torch, torch.distributed as dist, dsexplore
with dsexplore.commtrace(save=folder, timeout=1.5):
    dist.all_reduce(torch.ones(8))
    mark("all_reduce")
    if rank == 1:
        end_once_saved({0: 10, 1: 8, 2: 10}, "all_reduce", 0, 2)
        dist.new_group([1, 2])
    else:
        dist.new_group([0, 1, 2])
"""


def test_ranks_that_make_their_groups_in_another_order_hang_outside_all_collectives(job: Job) -> None:
    found = job(OUTSIDE, is_ended=True)
    assert (found.culprits, found.reason, found.sources) == ((1,), "outside a collective", {1: "<rank cell>:8"})
    assert "rank 1 in new_group (<rank cell>:8), ranks 0, 2 in new_group (<rank cell>:10)" in found.verdict()


IN_RECV = """
exec(events); import sys, torch, torch.distributed as dist, dsexplore
def is_in_recv(main=threading.main_thread().ident):
    code = sys._current_frames()[main].f_code
    return code.co_name == "wait" and code.co_filename != threading.__file__  # where start() waits for its thread
def die_in_recv():
    wait_for("all_reduce", 0, 2)
    wait_until(is_in_recv)
    os.kill(os.getpid(), 9)
with dsexplore.commtrace(save=folder, timeout=1.5):
    dist.all_reduce(torch.ones(8))
    mark("all_reduce")
    if rank == 1:
        threading.Thread(target=die_in_recv, daemon=True).start()
        dist.recv(torch.ones(8), 0)
    if rank == 0:
        wait_for("gone", 2)
    while True:
        try:
            dist.send(torch.ones(8), 1)
        except RuntimeError:
            mark("gone")
            raise
"""


def test_a_rank_whose_send_finds_no_peer_any_more_is_not_to_blame(job: Job) -> None:
    """Rank 2 finds out that rank 1 is gone; rank 0 sends to it no earlier."""
    found = job(IN_RECV)
    assert (found.culprits, found.reason, found.sources) == ((1,), "killed", {1: "<rank cell>:15"})
    assert [note.partition(" (")[0] for note in found.notes if "raised" in note] == [
        "rank 0 raised RuntimeError",
        "rank 2 raised RuntimeError",
    ]
