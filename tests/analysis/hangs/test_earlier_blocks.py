"""Hangs in the second of two blocks with one ``save=``, of ranks that left nothing but the first: where they are.

Modules: ``trace/job_files.py``, ``analysis/hangs/trace_calls.py``, ``analysis/hangs/explain.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import dsexplore
from dsexplore._internal.analysis.hangs.hang_report import HangReport
from tests.analysis.hangs.events import run_three

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("rank_server")]

BLOCKS = """
exec(events); import torch, torch.distributed as dist, dsexplore
for block in range(2):
    with dsexplore.commtrace(save=folder, timeout=1.5):
        mark(f"block {{block}}")
        if rank == 0 and block == 1 and saved: end_once_saved(saved, "block 1", 0, 1)
        dist.all_reduce(torch.ones(8))
        if rank == 2 and block == 0:
            wait_for("block 1", 0, 1)
            {then}
"""
WAITS, THEN = 7, 10
"""The lines of the all_reduce, and of what rank 2 does in the first block."""
EARLIER = "the file of rank 2 is of an earlier block that was saved there, and left out"
LAST = "2 blocks of the job were saved there: this is the last, in place of those before"
Explained = Callable[..., HangReport]


@pytest.fixture
def explained(tmp_path: Path) -> Explained:
    """Run two blocks on three ranks, in the first of which rank 2 does something, and explain the folder.

    If it does not end by that, the run is ended once the ranks of ``saved`` have saved at these lines.
    """

    def run(then: str, saved: Mapping[int, int]) -> HangReport:
        run_three(BLOCKS.format(then=then), tmp_path, is_ended=bool(saved), saved=dict(saved))
        return dsexplore.explain_hang(tmp_path)

    return run


OTHERS = {0: WAITS, 1: WAITS}
ALL = {**OTHERS, 2: THEN}


@pytest.mark.parametrize(
    ("then", "saved", "reason", "line", "said"),
    [
        ("raise ValueError('x')", {}, "raised", THEN, f"raised ValueError (x) at <rank cell>:{THEN}, in an earlier"),
        ("os._exit(3)", {}, "ended", WAITS, "ended with exit code 3, without saving its trace, in an earlier block: "),
        (
            "os.kill(os.getpid(), 19)",
            OTHERS,
            "stopped",
            WAITS,
            "was stopped (by SIGSTOP or a debugger), in an ",
        ),
        ("time.sleep(600)", ALL, "outside a collective", THEN, f"was still in an earlier block, at <rank cell>:{THEN}"),
    ],
)
def test_what_became_of_a_rank_in_an_earlier_block_is_said_with_its_line(
    explained: Explained, then: str, saved: Mapping[int, int], reason: str, line: int, said: str
) -> None:
    report = explained(then, saved)
    assert (report.culprits, report.reason, report.sources) == ((2,), reason, {2: f"<rank cell>:{line}"})
    assert f"rank 2 {said}" in report.verdict()
    verb = "waited" if set(report.waiting["state"]) == {"failed"} else "wait"
    waiting = f"ranks 0, 1 {verb} for it in all_reduce (<rank cell>:{WAITS}, group 0, 32 B), collective 1"
    assert waiting in report.verdict()
    assert EARLIER in report.notes


def test_a_rank_that_waits_for_another_in_an_earlier_block_is_not_accused(explained: Explained) -> None:
    report = explained("dist.recv(torch.ones(1), 0)", ALL)
    assert (report.culprits, report.suspects, report.reason) == ((), (0, 1, 2), "unknown")
    assert report.sources[2] == f"<rank cell>:{THEN}"
    assert f"rank 2 was still in an earlier block, in recv (<rank cell>:{THEN})" in report.verdict()


def test_a_rank_that_began_no_later_block_had_ended_the_earlier_one(explained: Explained) -> None:
    report = explained("break", OTHERS)
    assert (report.culprits, report.reason) == ((2,), "did not come")
    assert "rank 2 had ended an earlier block, and began no later one" in report.verdict()


@pytest.mark.parametrize("ranks", [(0, 1), (0,)])
def test_of_several_blocks_it_is_said_that_the_last_is_there(tmp_path: Path, ranks: Sequence[int]) -> None:
    program = (
        "import dsexplore, torch.distributed as dist\nfor _ in range(blocks):\n"
        "    with dsexplore.commtrace(save=folder):\n        dist.barrier()"
    )
    notes: dict[int, Any] = {}
    for blocks in (1, 2):
        folder = tmp_path / str(blocks)
        dsexplore.run_ranks(program, len(ranks), namespace={"folder": str(folder), "blocks": blocks}).check()
        notes[blocks] = dsexplore.load(folder).info.notes
    assert LAST in notes[2]
    assert not any("saved there" in note for note in notes[1])
