"""`run_in_turn` runs processes a few at a time; a failure ends only its own process, and Ctrl-C ends all.

Modules: ``worlds/real/run_ranks.py``.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from dsexplore._internal.worlds.real.run_ranks import RankOutcome, run_in_turn

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("rank_server")]


def test_processes_in_turn_start_as_others_end_and_fail_alone() -> None:
    def program(index: int) -> int:
        print("here", index)
        if index == 1:
            raise ValueError("only here")
        if index == 2:
            os._exit(3)
        return index * index

    lines: list[tuple[int, str]] = []
    ended: list[RankOutcome] = []
    run_in_turn(
        program,
        [(index,) for index in range(5)],
        together=2,
        on_line=lambda index, line: lines.append((index, line)),
        on_end=ended.append,
    )
    outcomes = sorted(ended, key=lambda outcome: outcome.rank)
    assert [outcome.status for outcome in outcomes] == ["ok", "error", "died", "ok", "ok"]
    assert [outcome.value for outcome in outcomes] == [0, None, None, 9, 16]
    assert outcomes[1].error == "ValueError: only here"
    assert outcomes[2].exit_code == 3
    assert sorted(lines) == [(index, f"here {index}") for index in range(5)]


def test_no_more_processes_run_in_turn_than_were_asked_for(tmp_path: Path) -> None:
    def program(index: int) -> int:
        own = tmp_path / str(index)
        own.touch()
        time.sleep(0.05)
        running = len(list(tmp_path.iterdir()))
        own.unlink()
        return running

    ended: list[RankOutcome] = []
    run_in_turn(program, [(index,) for index in range(6)], together=2, on_end=ended.append)
    assert max(outcome.value for outcome in ended) <= 2


def test_ctrl_c_ends_processes_in_turn_and_keeps_those_that_ended() -> None:
    def program(index: int) -> int:
        if index:
            time.sleep(1000)
        return index

    def interrupt(outcome: RankOutcome) -> None:
        ended.append(outcome)
        raise KeyboardInterrupt

    ended: list[RankOutcome] = []
    with pytest.raises(KeyboardInterrupt) as caught:
        run_in_turn(program, [(index,) for index in range(4)], together=2, on_end=interrupt)
    assert [outcome.value for outcome in ended] == [0]
    assert len(caught.value.__notes__) == 2  # of those that had started
