"""`run_ranks` returns values, errors and output of local ranks, and leaves no process behind."""

from __future__ import annotations

import gc
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dsexplore import RanksFailedError, UsageError, run_ranks
from dsexplore._internal.worlds.real import rank_handle
from dsexplore._internal.worlds.real import run_ranks as launcher
from dsexplore._internal.worlds.real.run_ranks import RankOutcome
from tests.running_processes import is_running, wait_until_all_have_come
from tests.waiting import wait_until

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("rank_server")]


def test_values_come_back_by_rank_from_one_world() -> None:
    def program(offset: int) -> tuple[int, int, float]:
        import torch
        import torch.distributed as td

        total = torch.tensor([float(td.get_rank() + offset)])
        td.all_reduce(total)
        return td.get_rank(), td.get_world_size(), total.item()

    run = run_ranks(program, 3, args=(10,))
    assert run.values == [(0, 3, 33.0), (1, 3, 33.0), (2, 3, 33.0)]
    assert run.reason == "done"
    assert run.ok
    assert [outcome.exit_code for outcome in run.outcomes] == [0, 0, 0]


def test_functions_bring_what_they_close_over() -> None:
    factor = 7

    def helper(rank: int) -> int:
        return rank * factor

    assert run_ranks(lambda: helper(int(os.environ["RANK"])), 2, backend=None).values == [0, 7]


def test_output_is_kept_by_rank_whoever_wrote_it() -> None:
    def program() -> None:
        rank = os.environ["RANK"]
        print(f"printed by {rank}")
        os.write(1, f"written by {rank}\n".encode())
        print("to stderr", file=sys.stderr)

    lines: list[tuple[int, str]] = []
    run = run_ranks(program, 2, backend=None, on_line=lambda rank, line: lines.append((rank, line)))
    for rank, outcome in enumerate(run.outcomes):
        wanted = [f"printed by {rank}", f"written by {rank}", "to stderr"]
        assert outcome.output.splitlines() == wanted
        assert [line for r, line in lines if r == rank] == wanted


def test_source_text_runs_as_main_and_shows_its_last_expression() -> None:
    source = "assert __name__ == '__main__'\nx = [rank, world_size, given]\nx"
    run = run_ranks(source, 2, namespace={"given": "here"}, backend=None)
    assert run.values == ["[0, 2, 'here']", "[1, 2, 'here']"]
    assert run_ranks("x = 1", 1, backend=None).values == [""]


def test_a_failing_rank_is_named_with_the_line_of_the_source() -> None:
    source = "import torch.distributed as td\nif rank == 1:\n    raise ValueError('no good')\ntd.barrier()"
    run = run_ranks(source, 2)
    assert run.first_failure == 1
    assert run.outcomes[1].status == "error"
    assert run.outcomes[1].error == "ValueError: no good"
    with pytest.raises(RanksFailedError, match=r"rank 1: error: ValueError: no good") as caught:
        run.check()
    assert 'File "<rank cell>", line 3' in str(caught.value)
    assert run.outcomes[0].status in ("error", "stuck")  # its peer was gone


def test_exits_of_the_program_are_failures_and_not_silence() -> None:
    def program() -> None:
        if os.environ["RANK"] == "0":
            sys.exit("enough")
        os._exit(5)

    run = run_ranks(program, 2, backend=None)
    assert run.outcomes[0].error == "SystemExit: enough"
    assert run.outcomes[1].status == "died"
    assert run.outcomes[1].error == "ended with exit code 5, without a result"


def test_a_killed_rank_ends_the_run_and_its_peers() -> None:
    def program() -> None:
        import torch
        import torch.distributed as td

        print(os.getpid(), flush=True)
        td.barrier()
        if td.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        td.all_reduce(torch.ones(1))

    run = run_ranks(program, 3, timeout=240)
    assert run.reason == "failed"
    assert run.first_failure == 1
    assert (run.outcomes[1].status, run.outcomes[1].exit_code) == ("died", -signal.SIGKILL)
    assert "killed by SIGKILL" in run.outcomes[1].error
    assert not any(is_running(int(outcome.output.split()[0])) for outcome in run.outcomes)


def test_a_rank_that_died_is_to_blame_however_late_that_is_seen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """While the launcher is busy, rank 1 dies, and rank 0 fails because of that and reports it."""
    monkeypatch.setattr(rank_handle, "DEATH_SEEN_LATE", 0)
    pids: dict[int, int] = {}
    launcher_is_busy = tmp_path / "launcher_is_busy"

    def busy(rank: int, line: str) -> None:
        pids[rank] = int(line)
        if len(pids) == 2:
            # By pidfd, as the launcher looks: a main thread may be a zombie while other threads still end.
            ends = [os.pidfd_open(pid) for pid in pids.values()]
            launcher_is_busy.touch()
            for end in ends:
                select.select([end], [], [], 60)
                os.close(end)

    def program() -> None:
        import torch.distributed as td

        print(os.getpid(), flush=True)
        if td.get_rank() == 1:
            while not launcher_is_busy.exists():
                threading.Event().wait(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        td.barrier()

    run = run_ranks(program, 2, on_line=busy)
    assert [outcome.status for outcome in run.outcomes] == ["error", "died"]
    assert run.first_failure == 1


@pytest.fixture
def ends_in_the_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a run time out once each rank has finished, or has printed ``here`` and waits."""
    wait_for_all = launcher.wait_for_all

    def wait_for_the_hang(ranks: Sequence[rank_handle.RankHandle], *, deadline: float, grace: float) -> int | None:
        wait_until_all_have_come(ranks, deadline)
        return wait_for_all(ranks, deadline=0.0, grace=grace)

    monkeypatch.setattr(launcher, "wait_for_all", wait_for_the_hang)
    monkeypatch.setattr(launcher, "STACK_WAIT", 60.0)


@pytest.mark.usefixtures("ends_in_the_hang")
def test_a_hung_rank_is_ended_with_its_stack() -> None:
    def wait_for_nobody() -> None:
        import torch.distributed as td

        import dsexplore

        with dsexplore.commtrace():
            if td.get_rank() == 0:
                print("here", flush=True)
                td.barrier()

    run = run_ranks(wait_for_nobody, 2, timeout=240)
    assert run.reason == "timeout"
    assert [outcome.status for outcome in run.outcomes] == ["stuck", "ok"]
    assert "in barrier" in run.outcomes[0].stack
    assert "in wait_for_nobody" in run.outcomes[0].stack
    assert "dsexplore/" not in run.outcomes[0].stack  # not our own frames in a wait that is recorded
    with pytest.raises(RanksFailedError, match="time ran out"):
        _ = run.values


@pytest.mark.usefixtures("ends_in_the_hang")
def test_the_stack_of_a_rank_that_hangs_deep_down_ends_with_dots() -> None:
    def dive(depth: int) -> None:
        if depth:
            dive(depth - 1)
        print("here", flush=True)
        threading.Event().wait()

    (outcome,) = run_ranks(dive, 1, args=(300,), backend=None, timeout=240).outcomes
    assert outcome.stack.count("in dive") > 50
    assert outcome.stack.splitlines()[-1].strip() == "..."


C10D = "/env/site-packages/torch/distributed"
IN_BARRIER = f'''\
  File "{C10D}/distributed_c10d.py", line 4800 in barrier
  File "{C10D}/c10d_logger.py", line 83 in wrapper
  File "train.py", line 9 in step
'''
ASLEEP = '  File "train.py", line 7 in load\n  File "train.py", line 8 in step\n'


@pytest.mark.parametrize(
    ("odd", "said", "shown"),
    [
        (RankOutcome(1, "stuck", stack=ASLEEP), "rank 1: stuck at train.py:7", "line 7 in load"),
        (RankOutcome(1, "stuck", was_stopped=True), "rank 1: stopped (by SIGSTOP or a debugger)\n", "(by SIGSTOP"),
    ],
    ids=["sleeps", "stopped"],
)
def test_of_ranks_that_hang_the_one_that_others_wait_for_is_shown(odd: RankOutcome, said: str, shown: str) -> None:
    waiting = [RankOutcome(rank, "stuck", stack=IN_BARRIER) for rank in (0, 2)]
    run = launcher.RanksRun((waiting[0], odd, waiting[1]), 5.0, "timeout")
    text = str(RanksFailedError(run))
    assert said in text
    assert "rank 0: stuck in barrier (train.py:9)" in text
    assert shown in text
    assert "c10d_logger.py" not in text  # none but that rank's


WHOLE_STACK = """\
Stack (most recent call first):
  File "/usr/lib/python3/threading.py", line 324 in wait
  File "train.py", line 7 in step
  File "<string>", line 1 in <module>
"""


def test_a_stack_is_whole_only_with_its_last_line() -> None:
    whole = [end for end in range(len(WHOLE_STACK) + 1) if rank_handle.is_whole_stack(WHOLE_STACK[:end])]
    assert whole == [len(WHOLE_STACK)]


def test_ctrl_c_ends_the_ranks_and_notes_where_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    pids: list[int] = []

    def interrupt(rank: int, line: str) -> None:
        pids.append(int(line))
        if len(pids) == 2:
            signal.raise_signal(signal.SIGINT)

    def program() -> None:
        print(os.getpid(), flush=True)
        threading.Event().wait()

    monkeypatch.setattr(launcher, "STACK_WAIT", 60.0)
    with pytest.raises(KeyboardInterrupt) as caught:
        run_ranks(program, 2, backend=None, on_line=interrupt)
    assert len(caught.value.__notes__) == 2
    assert "in program" in caught.value.__notes__[0]
    assert not any(map(is_running, pids))


def test_what_a_rank_started_ends_with_it() -> None:
    def program() -> int:
        return subprocess.Popen(["sleep", "300"]).pid

    (pid,) = run_ranks(program, 1, backend=None).values
    wait_until(lambda: not is_running(pid), seconds=60)


def test_no_descriptor_is_left_open() -> None:
    def failing() -> None:
        raise RuntimeError("on purpose")

    before = len([*Path("/proc/self/fd").iterdir()])
    for _ in range(3):
        assert run_ranks("1", 2).ok
        assert not run_ranks(failing, 2, backend=None).ok
    assert len([*Path("/proc/self/fd").iterdir()]) == before


def test_ranks_get_the_callers_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DSEXPLORE_OF_CALLER", "seen")
    monkeypatch.chdir(tmp_path)

    def program() -> list[str]:
        names = ("DSEXPLORE_OF_CALLER", "EXTRA", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR")
        return [*(os.environ[name] for name in names), str(Path.cwd())]

    run = run_ranks(program, 1, backend=None, environment={"EXTRA": "given"})
    assert run.values == [["seen", "given", "0", "1", "127.0.0.1", str(tmp_path)]]


def test_ranks_collect_garbage() -> None:
    """Their server imports torch with garbage collection disabled."""
    assert run_ranks(gc.isenabled, 2).values == [True, True]


def test_the_system_chooses_the_port_at_which_ranks_meet() -> None:
    """Another program could use a fixed port; the system chooses none below 1024."""
    assert all(int(port) >= 1024 for port in run_ranks(lambda: os.environ["MASTER_PORT"], 2, backend=None).values)


def test_a_value_that_cannot_travel_is_an_error_that_says_so() -> None:
    run = run_ranks(lambda: threading.Lock(), 1, backend=None)
    assert "returned a lock, which cannot be sent back" in run.outcomes[0].error


@pytest.mark.parametrize("world_size", [0, -3])
def test_a_world_needs_a_rank(world_size: int) -> None:
    with pytest.raises(UsageError, match=f"world_size {world_size}"):
        run_ranks("1", world_size)


def test_arguments_that_cannot_travel_are_refused_before_anything_starts() -> None:
    def program(anything: Any) -> None: ...

    with pytest.raises(UsageError, match="cannot be sent to its ranks"):
        run_ranks(program, 2, args=(threading.Lock(),))


LAUNCHER = """
import marshal
import dsexplore
from dsexplore._internal.worlds.real.messages import Cell
from dsexplore._internal.worlds.real.rank_world import RankWorld

world = RankWorld(2)
world.open()
source = "import os, subprocess\\nbelow = subprocess.Popen(['sleep', '300'], start_new_session=True).pid"
code = marshal.dumps((compile(source, "cell", "exec"), compile("(os.getpid(), below)", "cell", "eval")))
kept = world.run(Cell(code, "cell", {}, b"", ""))
print(*(pid for outcome in kept.outcomes for pid in outcome.value), sep="\\n", flush=True)
dsexplore.run_ranks(
    "import os, threading\\nprint(os.getpid(), flush=True)\\nthreading.Event().wait()",
    2, backend=None, on_line=lambda rank, line: print(line, flush=True),
)
"""


def test_nothing_outlives_a_launcher_that_was_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", LAUNCHER], stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        pids = [int(launcher.stdout.readline()) for _ in range(6)]
        assert all(map(is_running, pids))
        launcher.kill()
    wait_until(lambda: not any(map(is_running, pids)), seconds=60)
