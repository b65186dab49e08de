"""The journal of a rank's latest calls can be read as it was written, however the process ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from dsexplore._internal.errors import TraceFileError
from dsexplore._internal.trace.call_journal import (
    KEPT,
    NOT_NUMBERED,
    CallJournal,
    JournalInfo,
    journal_file,
    note_ends,
    read_journal,
)
from dsexplore._internal.trace.ends import RUNNING, STOPPED
from dsexplore._internal.trace.process_states import host_clock, start_ticks
from tests.trace.conftest import DEFAULT

GROUP = ("0", "", "", [0, 1], 2, "gloo", "work")


@dataclass
class Call:
    is_over: bool = True


def info_of(pid: int, rank: int = 0) -> JournalInfo:
    return JournalInfo(rank, 2, "first", 1, host_clock(), pid, start_ticks(pid))


@pytest.fixture
def journal(tmp_path: Path) -> CallJournal:
    return CallJournal(tmp_path / journal_file(0), info_of(os.getpid()))


def kind(journal: CallJournal, *ops: str) -> int:
    rows = [{**DEFAULT, "op": op, "raw_op": op, "group": "0", "message_bytes": 8, "source": "train.py:1"} for op in ops]
    return journal.add_kind(rows, GROUP)


def test_what_is_written_is_read_while_it_goes_on(journal: CallJournal) -> None:
    reduce, send = kind(journal, "all_reduce"), kind(journal, "send")
    last = Call(is_over=False)
    journal.add(reduce, 0, 10, Call())
    journal.add(send, NOT_NUMBERED, 20, Call())
    journal.add(reduce, 1, 30, last)
    tables = read_journal(journal.file).tables("")
    columns = ("rank", "seq", "op", "group_seq", "start", "state", "source")
    assert tables.events.select(columns).rows() == [
        (0, 0, "all_reduce", 0, 10, "completed", "train.py:1"),
        (0, 1, "send", None, 20, "completed", "train.py:1"),
        (0, 2, "all_reduce", 1, 30, "scheduled", "train.py:1"),
    ]
    assert tables.groups["ranks"].to_list() == [[0, 1]]
    assert (tables.info.ranks, tables.info.world_size, tables.info.ends) == ((0,), 2, (RUNNING,))
    last.is_over = True
    assert read_journal(journal.file).tables("").events["state"][2] == "scheduled"
    journal.settle()
    assert read_journal(journal.file).tables("").events["state"][2] == "completed"
    journal.remove()
    assert not journal.file.exists()
    assert not journal.file.exists()


def test_a_call_of_several_events_has_a_row_for_each(journal: CallJournal) -> None:
    both = kind(journal, "send", "recv")
    for start in (1, 2):
        for _ in range(2):
            journal.add(both, NOT_NUMBERED, start, Call())
    assert read_journal(journal.file).tables("").events["op"].to_list() == ["send", "recv"] * 2
    journal.remove()
    assert not journal.file.exists()


def test_the_ring_keeps_the_last_calls_and_says_how_many_there_were(journal: CallJournal) -> None:
    number = kind(journal, "all_reduce")
    for at in range(KEPT + 5):
        journal.add(number, at, at + 1, Call())
    read = read_journal(journal.file)
    assert read.events == KEPT + 5
    assert read.tables("").events["group_seq"].to_list() == list(range(5, KEPT + 5))
    assert read.tables("").info.notes == (f"rank 0 kept its last {KEPT:,} of {KEPT + 5:,} calls",)
    journal.remove()
    assert not journal.file.exists()


def test_kinds_beyond_the_room_for_them_are_left_out(journal: CallJournal) -> None:
    numbers = [kind(journal, f"op{at}" + "x" * 1000) for at in range(300)]
    journal.add(numbers[0], 0, 1, Call())
    journal.add(numbers[-1], 0, 1, Call())
    assert read_journal(journal.file).tables("").events.height == 1
    journal.remove()
    assert not journal.file.exists()


def test_a_call_that_is_taken_back_was_never_there(journal: CallJournal) -> None:
    reduce, both = kind(journal, "all_reduce"), kind(journal, "send", "recv")
    runs, refused = Call(is_over=False), Call(is_over=False)
    journal.add(reduce, 0, 10, runs)
    for _ in range(2):
        journal.add(both, NOT_NUMBERED, 20, refused)
    journal.take_back(refused)
    assert read_journal(journal.file).events == 1
    journal.add(reduce, 1, 30, refused)
    journal.add(reduce, 2, 40, Call())  # of another thread
    journal.take_back(refused)
    runs.is_over = True
    journal.settle()
    rows = read_journal(journal.file).tables("").events.select("seq", "start", "state").rows()
    assert rows == [(0, 10, "completed"), (2, 40, "completed")]
    journal.remove()
    assert not journal.file.exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:1000],
        lambda data: b"x" + data[1:],
        lambda data: data[:300] + b"\xff" * 100 + data[400:],
        lambda data: data[:4100] + b"\xff" * 100 + data[4200:],
        lambda data: data[:12] + b"\xff" * 16 + data[28:],
    ],
)
def test_a_damaged_journal_is_an_error_that_names_it(journal: CallJournal, damage: object) -> None:
    journal.add(kind(journal, "all_reduce"), 0, 1, Call())
    journal.file.write_bytes(damage(journal.file.read_bytes()))  # type: ignore[operator]
    with pytest.raises(TraceFileError, match=journal_file(0)):
        read_journal(journal.file)


@pytest.mark.parametrize("column", [{"op": None}, {"peer": 2_000_000_000}, {"message_bytes": -8}, {"shape": [None]}])
@pytest.mark.parametrize("ranks", [[0, 1], [0, 2_000_000_000], None])
def test_a_journal_of_calls_that_cannot_be_is_an_error(
    journal: CallJournal, column: dict[str, object], ranks: list[int] | None
) -> None:
    journal.add(journal.add_kind([{**DEFAULT, **column}], (*GROUP[:3], ranks, *GROUP[4:])), 0, 1, Call())
    with pytest.raises(TraceFileError, match=f"{journal_file(0)} is not a whole journal of calls"):
        read_journal(journal.file)


@pytest.fixture
def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"], stdout=subprocess.PIPE
    )


@pytest.mark.parametrize(
    ("number", "said"), [(signal.SIGSTOP, STOPPED), (signal.SIGKILL, "was killed by SIGKILL"), (None, "")]
)
def test_a_rank_that_lives_on_notes_how_another_ended(
    sleeper: subprocess.Popen[bytes], tmp_path: Path, number: signal.Signals | None, said: str
) -> None:
    assert sleeper.stdout is not None
    sleeper.stdout.readline()
    CallJournal(tmp_path / journal_file(1), info_of(sleeper.pid, 1))
    if number is not None:
        sleeper.send_signal(number)
        os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
    note_ends(tmp_path, "another attempt")
    assert read_journal(tmp_path / journal_file(1)).noted_end == ""
    note_ends(tmp_path, "first")
    assert read_journal(tmp_path / journal_file(1)).noted_end == said
    sleeper.kill()
    sleeper.wait()
    sleeper.stdout.close()
    note_ends(tmp_path, "first")
    read = read_journal(tmp_path / journal_file(1))
    assert read.noted_end.startswith(said or "ended without saving its trace")
    assert read.end_now().startswith("ended without saving its trace")
    elsewhere = replace(read, info=replace(read.info, clock="another host"))
    assert elsewhere.end_now() == ""
