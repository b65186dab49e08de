"""Hangs of real ranks, from what ``commtrace(save=…)`` leaves: how the missing rank ended, and in which attempt.

Modules: ``analysis/hangs/hang_report.py``, ``analysis/hangs/trace_calls.py``.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import dsexplore
from dsexplore._internal.analysis.hangs.hang_report import HangReport
from dsexplore._internal.trace.files import rank_file, stack_file

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("rank_server")]
Job = Callable[..., HangReport]

FAILS = """
import os, sys, json, torch, torch.distributed as dist, dsexplore
def load(step):
    if rank == 1 and step == 2:
        {fails}
    return torch.ones(4)
with dsexplore.commtrace(save=folder, timeout=1.5):
    for step in range(3):
        dist.all_reduce(load(step))
"""


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Run a program on three ranks, and return the report on the folder that it saves into."""

    def run(
        program: str, folder: Path = tmp_path, on_line: Callable[[int, str], None] | None = None, **names: object
    ) -> HangReport:
        namespace = {"folder": str(folder), **names}
        dsexplore.run_ranks(program, 3, namespace=namespace, timeout=30, group_timeout=4, on_line=on_line)
        return dsexplore.explain_hang(folder)

    return run


@pytest.mark.parametrize(
    ("fails", "reason", "said"),
    [
        ("raise ValueError('bad sample 17')", "raised", "raised ValueError (bad sample 17) at <rank cell>:5: "),
        ("json.loads('{')", "raised", "raised JSONDecodeError (Expecting property name"),
        ("sys.exit(3)", "ended", "ended with exit code 3 at <rank cell>:5: "),
        ("os.kill(os.getpid(), 9)", "killed", "was killed by SIGKILL: "),
        ("os.kill(os.getpid(), 19)", "stopped", "was stopped (by SIGSTOP or a debugger): "),
    ],
)
def test_how_the_missing_rank_ended_is_said_with_its_line(job: Job, fails: str, reason: str, said: str) -> None:
    found = job(FAILS.format(fails=fails))
    line = "<rank cell>:5" if reason in ("raised", "ended") else "<rank cell>:9"  # its last call, where it says no more
    assert (found.culprits, found.reason, found.sources) == ((1,), reason, {1: line})
    assert found.verdict().startswith(f"rank 1 {said}")
    waited = "ranks 0, 2 waited for it in all_reduce (<rank cell>:9, group 0, 16 B), collective 3 of group 0"
    assert found.verdict().endswith(f"{waited}, which failed")  # the job is over: nobody waits any longer


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
    found = job(TAGS)
    assert (found.culprits, found.suspects, found.reason) == ((), (0, 1), "messages in a circle")
    assert "they waited for each other's message, and these differ by tag" in found.verdict()
    assert str(dsexplore.explain_hang(dsexplore.load(tmp_path))) == found.verdict()


DIES = """
import os, torch, torch.distributed as dist, dsexplore
if dies == "before" and rank == 1: os._exit(1)
with dsexplore.commtrace(save=folder, timeout=1.5):
    for step in range(3):
        if dies == "inside" and rank == 1 and step == 2: os._exit(1)
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
import os, torch, torch.distributed as dist, dsexplore
for block in range(2):
    if rank == 1 and block == 1: os._exit(1)
    with dsexplore.commtrace(save=folder, timeout=1.5):
        dist.all_reduce(torch.ones(8))
"""


def test_the_file_of_an_earlier_block_does_not_count_for_a_later_one(job: Job) -> None:
    found = job(BLOCKS)
    assert found.culprits == (1,)
    assert "the file of rank 1 is of an earlier block that was saved there, and left out" in found.notes


OUTSIDE = """
import os, threading, time, torch, torch.distributed as dist, dsexplore
def watch():
    while not all(map(os.path.exists, files)):
        time.sleep(0.01)
    print("saved", flush=True)
threading.Thread(target=watch, daemon=True).start()
with dsexplore.commtrace(save=folder, timeout=1.5):
    dist.all_reduce(torch.ones(8))
    if rank == 1:
        dist.new_group([1, 2])
    else:
        dist.new_group([0, 1, 2])
"""


def test_ranks_that_make_their_groups_in_another_order_hang_outside_all_collectives(job: Job, tmp_path: Path) -> None:
    """They hang until they are interrupted, which they are once each has saved what it did."""

    def interrupt(rank: int, line: str) -> None:
        if line == "saved":
            signal.raise_signal(signal.SIGINT)

    files = [str(tmp_path / file_of(rank)) for rank in range(3) for file_of in (rank_file, stack_file)]
    with pytest.raises(KeyboardInterrupt):
        job(OUTSIDE, files=files, on_line=interrupt)
    found = dsexplore.explain_hang(tmp_path)
    assert (found.culprits, found.reason, found.sources) == ((1,), "outside a collective", {1: "<rank cell>:11"})
    assert "rank 1 in new_group (<rank cell>:11), ranks 0, 2 in new_group (<rank cell>:13)" in found.verdict()


IN_RECV = """
import os, threading, time, torch, torch.distributed as dist, dsexplore
with dsexplore.commtrace(save=folder, timeout=1.5):
    dist.all_reduce(torch.ones(8))
    if rank == 1:
        threading.Timer(0.5, os.kill, (os.getpid(), 9)).start()
        dist.recv(torch.ones(8), 0)
    while rank == 0 and not os.path.exists(gone):
        time.sleep(0.01)
    while True:
        try:
            dist.send(torch.ones(8), 1)
        except RuntimeError:
            open(gone, "w").close()
            raise
"""


def test_a_rank_whose_send_finds_no_peer_any_more_is_not_to_blame(job: Job, tmp_path: Path) -> None:
    """Rank 2 finds out that rank 1 is gone; rank 0 sends to it no earlier."""
    found = job(IN_RECV, gone=str(tmp_path / "gone"))
    assert (found.culprits, found.reason, found.sources) == ((1,), "killed", {1: "<rank cell>:7"})
    assert [note.partition(" (")[0] for note in found.notes if "raised" in note] == [
        "rank 0 raised RuntimeError",
        "rank 2 raised RuntimeError",
    ]
