"""A rank that left only its journal was alive, or was not, when the others saved."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dsexplore._internal.trace.call_journal import CallJournal, JournalInfo, journal_file
from dsexplore._internal.trace.ends import RUNNING, UNSAVED
from dsexplore._internal.trace.files import save_recording
from dsexplore._internal.trace.job_files import load_with_journals
from dsexplore._internal.trace.process_states import host_clock
from dsexplore._internal.trace.tables import Tables

Make = Callable[..., Tables]
GONE = 0
"""When a process with this number was started: no process is there that was."""


@pytest.fixture
def folder(tmp_path: Path, make: Make) -> Callable[..., Path]:
    """Traces of ranks 0 and 1 that ended so, the second one saved later, and the journal of rank 2, which is gone."""

    def written(*ends: str) -> Path:
        for at, end in enumerate(ends):
            tables = make([{"rank": at, "group": "0"}], (at,), world_size=3)
            info = replace(tables.info, ends=(end,), attempt="first", began=(1,))
            save_recording(replace(tables, info=info), tmp_path)
            os.utime(tmp_path / f"rank-{at:05d}.parquet", ns=(at, at))
        info = JournalInfo(2, 3, "first", 1, host_clock(), os.getpid(), GONE)
        CallJournal(tmp_path / journal_file(2), info)
        return tmp_path

    return written


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ((RUNNING, RUNNING), RUNNING),  # the others waited, and saw it run: their launcher ended it
        (("ended its block", RUNNING), RUNNING),
        ((RUNNING, "raised RuntimeError (Connection closed by peer)"), UNSAVED),
        ((), RUNNING),
    ],
)
def test_a_rank_that_was_there_when_the_last_one_saved_was_ended_by_its_launcher(
    folder: Callable[..., Path], ends: tuple[str, ...], said: str
) -> None:
    tables = load_with_journals([folder(*ends)])
    assert tables.info.ends[-1] == said
    assert tables.info.ranks == (*range(len(ends)), 2)
