"""Ctrl-C ends a cell that hangs on local ranks, sent to all processes of a real kernel as by a front end.

Modules: ``real_cells.py``, ``magics.py``, ``interrupts.py``, ``worlds/real/cell_end.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.kernels import Kernel, running_kernel
from tests.running_processes import is_running, is_waiting
from tests.waiting import wait_until

pytestmark = pytest.mark.processes

START = "import os, time, torch, torch.distributed as dist\nx = torch.ones(4)\ndist.all_reduce(x)\n"
HERE = "print('here', os.getpid(), flush=True)\n"
WAIT = "w.wait() if rank == 0 else w.sleep(9999)"
HUNG = f"{START}w = dist.all_reduce(x, async_op=True) if rank == 0 else time\n{HERE}{WAIT}"
LEAVES = "try:\n    time.sleep(9999)\nfinally:\n    time.sleep(0.3)  # further interrupts come meanwhile"
SLEEPS = f"{START}left = 7\n{HERE}{LEAVES}"
REPORT = (
    r"rank 1 did not come: rank 0 waits for it in all_reduce \(In\[\d+\]:5, group 0, 16 B\), collective 2 of group 0"
)
FOREVER = "--timeout 9999"


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    with running_kernel() as started:
        started.ok("%load_ext dsexplore")
        yield started


def pids(shown: str) -> set[int]:
    """Return the process numbers that the ranks print."""
    return {int(pid) for pid in re.findall(r"here (\d+)", shown)}


def ranks_of(kernel: Kernel) -> set[int]:
    """Return the process numbers of the ranks that ran the last cell."""
    return pids("\n".join(kernel.shown))


def all_wait(shown: str) -> bool:
    """Return True if both ranks have reached the line where they wait."""
    return len(pids(shown)) == 2 and all(map(is_waiting, pids(shown)))


def interrupted(kernel: Kernel, cell: str, times: int = 1) -> str:
    """Interrupt a cell in which both ranks wait, and return the kernel's reply."""
    reply = kernel.run(cell, all_wait, times)
    said = "\n".join(reply["traceback"])
    assert reply["ename"] == "KeyboardInterrupt", said
    return said


def wait_for_the_end_of(ranks: set[int]) -> None:
    assert len(ranks) == 2
    wait_until(lambda: not any(map(is_running, ranks)))


@pytest.mark.parametrize("times", [1, 4], ids=["once", "again and again"])
def test_a_hung_cell_of_new_ranks_is_explained_and_nothing_of_it_stays(kernel: Kernel, times: int) -> None:
    said = interrupted(kernel, f"%%commtrace --real 2 {FOREVER}\n{HUNG}", times)
    assert re.match(f"KeyboardInterrupt\n{REPORT}", said), said
    assert "The ranks were ended. What was recorded until then is in `_trace`." in said
    assert 'File "/' not in said  # neither frames of the magic nor of torch
    wait_for_the_end_of(ranks_of(kernel))
    kernel.ok("assert _trace.events['state'].to_list() == ['completed', 'scheduled', 'completed']")


@pytest.mark.parametrize("times", [1, 4], ids=["once", "again and again"])
def test_kept_ranks_that_can_leave_a_cell_run_the_next_one(kernel: Kernel, times: int) -> None:
    kernel.ok("%commtrace --real 2")
    said = interrupted(kernel, f"%%commtrace {FOREVER}\n{SLEEPS}", times)
    assert re.match(r"KeyboardInterrupt\nno collective is open: ranks 0, 1 at In\[\d+\]:8", said), said
    assert "The ranks have left the cell, and run the next one. " in said
    before = ranks_of(kernel)
    assert pids(kernel.ok(f"%%commtrace\nassert left == 7\n{START}{HERE}")) == before
    kernel.ok("assert len(_trace) == 2")
    kernel.ok("%commtrace --close")
    wait_for_the_end_of(before)


@pytest.mark.parametrize("times", [1, 4], ids=["once", "again and again"])
def test_kept_ranks_that_wait_for_one_another_are_ended(kernel: Kernel, times: int) -> None:
    kernel.ok("%commtrace --real 2")
    said = interrupted(kernel, f"%%commtrace {FOREVER}\n{HUNG}", times)
    assert re.match(f"KeyboardInterrupt\n{REPORT}", said), said
    assert "The ranks were ended. " in said
    wait_for_the_end_of(ranks_of(kernel))
    kernel.run("%%commtrace\nran_here = 1")
    assert "was ended by an earlier cell: open it again (%commtrace --real 2)" in "".join(kernel.shown)
    kernel.ok("%commtrace --real 2")
    kernel.ok(f"%%commtrace\n{START}")
    kernel.ok("%commtrace --close")


def test_ranks_of_run_ranks_are_ended_and_their_lines_said(kernel: Kernel) -> None:
    run = f"dsexplore.run_ranks('''{HUNG}''', 2, timeout=9999, on_line=lambda rank, line: print(line))"
    said = interrupted(kernel, f"import dsexplore\n{run}")
    stacks = r"rank 0 was at:\n.*\n.*line 6 in <module>\n\nrank 1 was at:\n.*\n.*line 6 in <module>"
    assert re.search(stacks, said), said
    wait_for_the_end_of(ranks_of(kernel))
