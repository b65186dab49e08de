"""Cells of ``%%commtrace --real`` whose ranks wait for each other end by a time-out, an error or Ctrl-C.

Modules: ``real_cells.py``, ``worlds/real/rank_world.py``, ``worlds/real/cell_end.py``.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from dsexplore import RanksFailedError
from dsexplore._internal.real_cells import failure
from dsexplore._internal.worlds.real import rank_handle, rank_world
from dsexplore._internal.worlds.real.cell_end import CellRun
from dsexplore._internal.worlds.real.rank_outcome import RankOutcome
from tests.real_notebook import SUM, Notebook, opened_notebook
from tests.running_processes import is_running, wait_until_all_have_come

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("rank_server")]


@pytest.fixture
def notebook(plain_shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    yield from opened_notebook(plain_shell, monkeypatch)


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of a file that exists once each rank of a cell has printed ``here`` and waits."""
    wait_for_all, go = rank_world.wait_for_all, tmp_path / "go"

    def tell_once_all_wait(ranks: Sequence[rank_handle.RankHandle], *, deadline: float, **more: Any) -> int | None:
        wait_until_all_have_come(ranks, deadline)
        go.touch()
        return wait_for_all(ranks, deadline=deadline, **more)

    monkeypatch.setattr(rank_world, "wait_for_all", tell_once_all_wait)
    return go


RAISE = """\
import os, time
print('here', flush=True)
if rank == 1:
    while not os.path.exists(go): time.sleep(0.01)
    raise ValueError('no good')
dist.all_reduce(x)
"""


def test_an_error_of_one_rank_ends_its_peers_and_says_where_they_waited(notebook: Notebook, go: Path) -> None:
    notebook.ok("%commtrace --real 3")
    pids = notebook.kept_pids
    error, text = notebook.run(f"%%commtrace --timeout 240\n{SUM}go = {str(go)!r}\n{RAISE}")
    assert isinstance(error, RanksFailedError)
    assert "rank 1: ValueError: no good (cell line 10)" in text
    assert "ranks 0, 2 were waiting in all_reduce (In[3]:11, group 0, 16 B)" in text
    assert "magics.py" not in text
    assert error.run.first_failure == 1
    assert [outcome.status for outcome in error.run.outcomes] == ["stuck", "error", "stuck"]
    assert notebook.trace.events["state"].to_list() == ["completed", "scheduled", "completed", "completed", "scheduled"]
    assert not any(map(is_running, pids))
    assert "no world is open" in notebook.ok("%commtrace")


Hang = Callable[..., tuple[BaseException | None, str]]


@pytest.fixture
def hang(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> Hang:
    """Run a cell until each rank has printed ``here`` and waits, or is stopped; then its time is up, or a signal comes.

    Returns its error and its output.
    """
    wait_for_all = rank_world.wait_for_all
    signals: list[signal.Signals] = []

    def wait_for_the_hang(ranks: Sequence[rank_handle.RankHandle], *, deadline: float, **more: Any) -> int | None:
        wait_until_all_have_come(ranks, deadline)
        if signals:
            signal.raise_signal(signals.pop())
        return wait_for_all(ranks, deadline=0.0, **more)

    def run(cell: str, *sent: signal.Signals) -> tuple[BaseException | None, str]:
        signals.extend(sent)
        error, text = notebook.run(cell)
        if not sent:
            assert isinstance(error, RanksFailedError), text
            assert "the cell had not ended after 240 s (--timeout), and its ranks were ended" in text
        return error, text

    monkeypatch.setattr(rank_world, "wait_for_all", wait_for_the_hang)
    return run


def test_a_stopped_rank_is_named_at_the_timeout(notebook: Notebook, hang: Hang) -> None:
    stop = "import os\nif rank == 1:\n    os.kill(os.getpid(), 19)\n"
    wait = "work = dist.all_reduce(x, async_op=True)\nprint('here')\nwork.wait()"
    _, text = hang(f"%%commtrace --real 2 --timeout 240\n{SUM}{stop}{wait}")
    stopped = (
        "rank 1 was stopped (by SIGSTOP or a debugger): rank 0 waits for it in all_reduce (In[2]:8, group 0, 16 B)"
    )
    assert stopped in text
    assert "rank 0 was waiting in all_reduce (In[2]:8" in text
    assert "rank 0 was at, innermost first:" in text
    assert notebook.trace.info.ranks == (0, 1)  # it left its trace, too


def test_a_hang_says_who_parted_from_the_others_and_where(hang: Hang) -> None:
    wait = "wait = dict(async_op=True)\n"
    parted = "if rank == 1:\n    w = dist.barrier(**wait)\nelse:\n    w = dist.all_reduce(x, **wait)\nprint('here')\n"
    _, text = hang(f"%%commtrace --real 3 --timeout 240\n{SUM}{wait}{parted}w.wait()")
    assert (
        "\nrank 1 waits in barrier (In[2]:7, group 0); ranks 0, 2 wait in all_reduce (In[2]:9, group 0, 16 B); "
        "they parted after collective 1 of group 0; rank 1 is the odd one\n"
    ) in text


def test_a_rank_that_sleeps_is_named_with_its_line(hang: Hang) -> None:
    module = "class Sleeps(torch.nn.Module):\n    def forward(self):\n        time.sleep(1000)\n"
    sleep = f"print('here')\nimport time\n{module}if rank == 1:\n    Sleeps()()\ndist.all_reduce(x)"
    _, text = hang(f"%%commtrace --real 2 --timeout 240\n{SUM}{sleep}")
    assert (
        "\nrank 1 did not come: rank 0 waits for it in all_reduce (In[2]:12, group 0, 16 B), collective 2 of group 0; "
        "rank 1 was at In[2]:9\n"
    ) in text
    assert "module_calls" not in text


def test_a_rank_that_waits_for_a_message_is_named(hang: Hang) -> None:
    wait = "work = dist.irecv(x, 1) if rank == 0 else dist.barrier(async_op=True)\nprint('here')\nwork.wait()"
    _, text = hang(f"%%commtrace --real 2 --timeout 240\n{SUM}{wait}")
    assert "rank 0 waits in recv (In[2]:5, group 0, rank 1 → 0, 16 B); rank 1 waits in barrier (In[2]:5, " in text
    assert "the evidence does not say which of them is wrong\n" in text


def test_a_rank_that_names_another_root_is_the_odd_one_and_no_other(hang: Hang) -> None:
    wrong = "work = dist.broadcast(x, 2 if rank == 2 else 0, async_op=True)\nprint('here')\nwork.wait()\ndist.barrier()"
    _, text = hang(f"%%commtrace --real 4 --timeout 240\n{SUM}{wrong}")
    assert "by root (rank 0 for ranks 0, 1, 3; rank 2 for rank 2); rank 2 is the odd one\n" in text


ANOTHER_SIZE = """\
import os, time
print('here', flush=True)
while rank < 2 and not os.path.exists(go): time.sleep(0.01)
dist.all_reduce(torch.ones(16 if rank == 1 else 8))
"""


def test_where_gloo_ends_a_process_the_rank_with_another_size_is_named(
    notebook: Notebook, go: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks 2 and 3 wait inside the collective before rank 0 receives more data than it expects."""
    monkeypatch.setattr(rank_world, "GRACE", 4.0)  # in which its neighbors find out that it is gone
    error, text = notebook.run(f"%%commtrace --real 4 --timeout 240\n{SUM}go = {str(go)!r}\n{ANOTHER_SIZE}")
    assert isinstance(error, RanksFailedError)
    assert "rank 0: killed by SIGABRT\n" in text
    assert "by size; rank 1 is the odd one\n" in text


def test_ctrl_c_ends_the_ranks_and_keeps_what_was_recorded(notebook: Notebook, hang: Hang) -> None:
    notebook.ok("%commtrace --real 2")
    pids = notebook.kept_pids
    wait = "if rank == 0:\n    w = dist.all_reduce(x, async_op=True)\nprint('here')\nif rank == 0:\n    w.wait()"
    error, text = hang(f"%%commtrace\n{SUM}{wait}", signal.SIGINT)
    assert isinstance(error, KeyboardInterrupt)
    assert error.run.reason == "interrupted"  # type: ignore[attr-defined]  # documented by `RankWorld.run`
    assert "\nKeyboardInterrupt\nrank 1 ended the cell: rank 0 waits for it in all_reduce" in f"\n{text}"
    assert "selectors.py" not in text  # no frame of the magic
    notes = "".join(error.__notes__)
    assert "The ranks were ended. What was recorded until then is in `_trace`." in notes
    assert "rank 1 ended the cell: rank 0 waits for it in all_reduce" in notes
    assert "rank 0 was at, innermost first:" in notes
    assert notebook.trace.events["state"].to_list() == ["completed", "scheduled", "completed"]
    assert not any(map(is_running, pids))


def test_ctrl_c_leaves_a_kept_world_whose_ranks_can_leave_the_cell(notebook: Notebook, hang: Hang) -> None:
    notebook.ok("%commtrace --real 2")
    pids = notebook.kept_pids
    error, text = hang(f"%%commtrace\n{SUM}left = 7\nprint('here')\nimport time\ntime.sleep(1000)", signal.SIGINT)
    assert isinstance(error, KeyboardInterrupt)
    assert "\nno collective is open: ranks 0, 1 at In[" in text
    assert "The ranks have left the cell, and run the next one. " in "".join(error.__notes__)
    notebook.ok("%%commtrace\nleft + rank")
    assert notebook.trace.results == {0: 7, 1: 8}
    assert notebook.kept_pids == pids


def test_a_time_out_of_engines_says_what_it_ended_and_what_not() -> None:
    outcomes = (
        RankOutcome(0, "stuck"),
        RankOutcome(1, "error", error="KeyboardInterrupt", line=9),
        RankOutcome(2, "error", error="KeyboardInterrupt: the cell had not begun here"),
    )
    text = str(failure(CellRun(outcomes, 5.0, "timeout", None), 5.0))
    assert text.strip() == (
        "the cell had not ended after 5 s (--timeout): rank 1 left it when interrupted (cell line 9); rank 2 left it "
        "when interrupted before it had begun; rank 0 still runs it, and does not answer, as inside a collective, "
        "which no interrupt ends"
    )
