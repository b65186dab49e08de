"""Recordings that are saved before their block ends: on SIGTERM, and when nothing moves on."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import dsexplore
from dsexplore import run_ranks
from dsexplore._internal.capture.collectives.issued_collective import Issued, Origin
from dsexplore._internal.capture.early_saves import EarlySave, _may_take_signal, saved_early, stacks
from dsexplore._internal.capture.record import _Progress, record
from dsexplore._internal.errors import UsageError
from dsexplore._internal.trace.files import rank_file, stack_file
from dsexplore._internal.worlds.simulate import simulate
from tests.programs import python
from tests.waiting import wait_until

NOWHERE = Origin("other", None, None, ())


def test_no_progress_is_saved_once_until_something_moves_on() -> None:
    saved: list[str] = []
    seen = [0]
    early = EarlySave(saved.append, lambda: seen[0], timeout=10)
    for now in (1.0, 10.9):
        early.look(now)
    assert saved == []
    for now in (11.0, 50.0):
        early.look(now)
    assert saved == ["saved while its block ran: no collective began or ended for 10 s"]
    seen[0] = 1
    for now in (60.0, 69.0, 70.0):
        early.look(now)
    assert len(saved) == 2


def test_the_stacks_are_those_of_the_other_threads() -> None:
    inside, release = threading.Event(), threading.Event()

    def waiting_here() -> None:
        inside.set()
        release.wait()

    thread = threading.Thread(target=waiting_here, name="a waiter")
    thread.start()
    inside.wait()
    text = stacks()
    release.set()
    thread.join()
    assert "Thread a waiter:" in text
    assert "in waiting_here" in text
    assert "test_the_stacks_are_those_of_the_other_threads" not in text


def descriptors() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


def test_signal_and_descriptors_are_given_back() -> None:
    before, threads = (signal.getsignal(signal.SIGTERM), descriptors()), {*threading.enumerate()}
    with saved_early(EarlySave(lambda why: None)), saved_early(EarlySave(lambda why: None)):
        assert signal.getsignal(signal.SIGTERM) is not before[0]
        assert len({*threading.enumerate()} - threads) == 1
    assert (signal.getsignal(signal.SIGTERM), descriptors()) == before
    assert {*threading.enumerate()} <= threads


def test_a_handler_of_the_programs_own_stays() -> None:
    def own(number: int, frame: object) -> None: ...

    before = signal.signal(signal.SIGTERM, own)
    try:
        with saved_early(EarlySave(lambda why: None)):
            assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_recording_that_is_not_saved_leaves_the_signal_alone(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with record():
        assert signal.getsignal(signal.SIGTERM) is before
    with record(save=tmp_path / "simulated.parquet", simulated=True):
        assert signal.getsignal(signal.SIGTERM) is before
    with record(save=tmp_path / "real.parquet"):
        assert signal.getsignal(signal.SIGTERM) is not before


@pytest.mark.parametrize(("timeout", "save"), [(0, "trace/"), (float("nan"), "trace/"), (5, None)])
def test_a_timeout_needs_seconds_and_a_place(timeout: float, save: str | None) -> None:
    with pytest.raises(UsageError, match=f"timeout={timeout}"), dsexplore.commtrace(timeout=timeout, save=save):
        pass


def test_a_collective_is_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[EarlySave] = []

    @contextmanager
    def looked_at_by_hand(early: EarlySave) -> Iterator[None]:
        opened.append(early)
        yield

    monkeypatch.setattr("dsexplore._internal.capture.record.saved_early", looked_at_by_hand)
    with simulate(2), record(save=tmp_path, timeout=10):
        (early,) = opened
        early.look(1.0)
        dist.all_reduce(torch.ones(1))
        for now, is_saved in ((9.0, False), (18.0, False), (19.0, True)):
            early.look(now)
            assert (tmp_path / rank_file(0)).exists() == is_saved


def test_an_end_is_progress_where_nothing_begins() -> None:
    """Devices do that: they execute what was issued long before."""
    issued = [Issued("c10d::allreduce_", [], None, 0, NOWHERE, start=1) for _ in range(2)]
    progress = _Progress(issued)
    first = progress()
    assert progress() == progress() == first
    issued[0].end = 2
    second = progress()
    assert second != first
    assert progress() == second
    issued.append(issued[1])
    assert progress() != second


def test_a_call_that_has_not_returned_is_progress_once() -> None:
    inside: list[Issued] = []
    progress = _Progress([], lambda: inside)
    first = progress()
    inside.append(Issued("c10d::allreduce_", [], None, 0, NOWHERE, start=1))
    second = progress()
    assert second != first
    assert progress() == progress() == second


FORKS = """
    import os, signal, sys
    import dsexplore
    with dsexplore.commtrace(save="trace/"):
        child = os.fork()
        if child == 0:
            signal.pause()
        os.kill(child, signal.SIGTERM)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print("whole")
"""


@pytest.mark.processes
def test_the_end_of_a_forked_child_is_not_that_of_its_parent(tmp_path: Path) -> None:
    done = python(FORKS, folder=tmp_path)
    assert (done.returncode, done.stdout.split()) == (0, [str(-signal.SIGTERM), "whole"]), done.stderr


def hang(folder: str, timeout: float | None, meanwhile: Callable[[Path], None]) -> None:
    """Rank 0 waits for rank 1, which does something else meanwhile, and comes if rank 0 is still there."""
    import torch
    import torch.distributed as dist

    with dsexplore.commtrace(save=folder, timeout=timeout):
        dist.all_reduce(torch.ones(4))
        if dist.get_rank() == 0:
            work = dist.all_reduce(torch.ones(8), async_op=True)
            Path(folder, "waiting").write_text(str(os.getpid()))
            work.wait()
    if dist.get_rank() == 1:
        meanwhile(Path(folder))


def check_hang(folder: Path, why: str) -> None:
    own = dsexplore.load(folder / rank_file(0))
    assert own.events["op"].to_list() == ["all_reduce", "all_reduce"]
    assert own.events["end"].is_null().to_list() == [False, True]
    assert own.events["state"].to_list() == ["completed", "scheduled"]
    assert why in own.info.notes[-1]
    assert "in hang" in (folder / stack_file(0)).read_text()
    report = dsexplore.explain_hang(folder)
    assert (report.culprits, report.reason) == ((1,), "ended")
    assert report.verdict().startswith(
        "rank 1 ended its block: rank 0 waits for it in all_reduce (test_early_saves.py:"
    )
    assert "in hang" in report.stacks[0]
    merged = dsexplore.load(folder)
    assert not any("left no trace" in note for note in merged.info.notes)


@pytest.mark.processes
@pytest.mark.usefixtures("rank_server")
def test_a_rank_that_waits_inside_gloo_saves_its_trace_when_its_launcher_ends_it(tmp_path: Path) -> None:
    def end_it(folder: Path) -> None:
        # The file is there before its content is.
        wait_until(lambda: (folder / "waiting").exists() and (folder / "waiting").read_text() != "")
        os.kill(int((folder / "waiting").read_text()), signal.SIGTERM)

    run = run_ranks(hang, 2, args=(str(tmp_path), None, end_it))
    assert [outcome.exit_code for outcome in run.outcomes] == [-signal.SIGTERM, 0]
    check_hang(tmp_path, "ended by SIGTERM")


@pytest.mark.processes
@pytest.mark.usefixtures("rank_server")
def test_ranks_that_wait_too_long_leave_a_record_and_go_on(tmp_path: Path) -> None:
    kept = tmp_path / "kept"

    def come_late(folder: Path) -> None:
        import torch
        import torch.distributed as dist

        trace, stack = folder / rank_file(0), folder / stack_file(0)

        def is_saved() -> bool:
            """Return whether the second collective is saved: on a busy machine the first collective may take too
            long, too, and be saved alone."""
            both = trace.exists() and stack.exists() and len(dsexplore.load(trace)) == 2
            return both and stack.stat().st_mtime_ns >= trace.stat().st_mtime_ns

        wait_until(is_saved)
        shutil.copytree(folder, kept)
        dist.all_reduce(torch.ones(8))

    folder = tmp_path / "trace"
    folder.mkdir()
    run_ranks(hang, 2, args=(str(folder), 0.1, come_late)).check()
    check_hang(kept, "no collective began or ended for 0.1 s")
    assert dsexplore.load(folder / rank_file(0)).events["state"].to_list() == ["completed", "completed"]


@pytest.mark.processes
@pytest.mark.usefixtures("rank_server")
def test_a_call_that_does_not_return_until_others_come_is_part_of_the_record(tmp_path: Path) -> None:
    """Gloo's monitored barrier and the first collective of an NCCL group do that."""
    kept, folder = tmp_path / "kept", tmp_path / "trace"

    def waits_in_its_call(kept: str, folder: str) -> None:
        import torch.distributed as dist

        trace, stacks = Path(folder, rank_file(0)), [Path(folder, stack_file(rank)) for rank in range(2)]
        with dsexplore.commtrace(save=folder, timeout=0.1):
            if dist.get_rank() == 1:
                wait_until(lambda: all(map(Path.exists, stacks)) and len(dsexplore.load(trace)) == 1)
                shutil.copytree(folder, kept)
            dist.monitored_barrier()

    run_ranks(waits_in_its_call, 2, args=(str(kept), str(folder))).check()
    assert dsexplore.load(kept / rank_file(0)).events["state"].to_list() == ["scheduled"]
    report = dsexplore.explain_hang(kept)
    assert (report.culprits, report.reason) == ((1,), "outside a collective")
    assert report.verdict().startswith("rank 1 did not come: rank 0 waits for it in barrier (test_early_saves.py:")
    assert report.sources[1].startswith("waiting.py:")
    assert dsexplore.load(folder).events["state"].to_list() == ["completed", "completed"]


def test_sigterm_is_left_to_who_reads_signals_from_a_descriptor() -> None:
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        assert _may_take_signal()
        assert signal.set_wakeup_fd(writing) == -1
        assert not _may_take_signal()
        assert signal.set_wakeup_fd(-1) == writing
    finally:
        signal.set_wakeup_fd(-1)
        os.close(reading)
        os.close(writing)
