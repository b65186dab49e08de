"""Progress is drawn only for long work and only if it is seen, and removed at the end; Ctrl-C keeps results."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
import torch.distributed as dist

import dsexplore
from dsexplore._internal import progress
from dsexplore._internal.capture import recorder, recorder_in_use
from dsexplore._internal.capture.content.recording import Recording
from dsexplore._internal.capture.record import record
from dsexplore._internal.errors import UsageError
from dsexplore._internal.progress import State, TerminalLine, Work, seen_screen, track
from dsexplore._internal.trace import files
from dsexplore._internal.trace.tables import Tables, TraceInfo
from dsexplore._internal.trace.trace import Trace

ROOT = Path(__file__).parents[1]


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Kept:
    """A screen that stores the states that it shows."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.cleared = 0

    def show(self, state: State) -> None:
        self.shown.append(f"{state.what}: {state.describe()}")

    def clear(self) -> None:
        self.cleared += 1


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def screen() -> Kept:
    return Kept()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def watch(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Make standard error a terminal."""
    opened = Terminal()
    monkeypatch.delenv("DSEXPLORE_PROGRESS", raising=False)
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(sys, "stderr", opened)
    return opened


def test_short_work_is_never_drawn(clock: Clock, screen: Kept) -> None:
    with Work(State("reading", 0, 3, "files"), lambda: screen, clock) as work:
        for _ in range(3):
            work.advance()
            clock.now += 0.3
    assert screen.shown == []
    assert screen.cleared == 0


def test_long_work_is_drawn_a_few_times_a_second_and_cleared(clock: Clock, screen: Kept) -> None:
    with Work(State("reading", 0, 50, "files"), lambda: screen, clock) as work:
        for _ in range(50):
            clock.now += 0.0625
            work.advance(text="rank")
    assert screen.shown[:2] == ["reading: 16 of 50 files rank", "reading: 20 of 50 files rank"]
    assert len(screen.shown) == 9
    assert screen.cleared == 1


def test_words() -> None:
    assert State("", 1234, None, "collectives", "in step 2").describe() == "1,234 collectives in step 2"
    assert State("", 3, 1000, "files").describe() == "3 of 1,000 files"
    assert State("", 0.4, 1, "").describe() == "40 %"
    assert State("", 7, 2, "").share == 1
    assert State("", 7, 0, "files").share is None


def test_a_screen_that_fails_does_not_end_the_work(clock: Clock) -> None:
    class Gone(Kept):
        def show(self, state: State) -> None:
            super().show(state)
            raise BrokenPipeError

        def clear(self) -> None:
            raise BrokenPipeError

    gone = Gone()
    with Work(State("", 0, None, "events"), lambda: gone, clock) as work:
        for _ in range(5):
            clock.now += 2
            work.advance()
    assert work.done == 5
    assert len(gone.shown) == 1


def test_other_threads_count_but_do_not_draw(clock: Clock, screen: Kept) -> None:
    with Work(State("", 0, None, "events"), lambda: screen, clock) as work:
        clock.now += 2
        other = Thread(target=work.advance)
        other.start()
        other.join()
        assert screen.shown == []
        work.advance()
    assert screen.shown == [": 2 events"]


def test_where_it_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    watch(monkeypatch)
    assert seen_screen() is TerminalLine
    monkeypatch.setenv("RANK", "3")
    assert seen_screen() is None
    monkeypatch.setenv("RANK", "0")
    assert seen_screen() is TerminalLine
    monkeypatch.setenv("DSEXPLORE_PROGRESS", "0")
    assert seen_screen() is None
    monkeypatch.delenv("DSEXPLORE_PROGRESS")
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert seen_screen() is None


def test_the_line_is_overwritten_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = watch(monkeypatch)
    line = TerminalLine()
    line.show(State("reading", 1, 2, "files", "a long text"))
    line.show(State("reading", 2, 2, "files"))
    line.clear()
    _, first, _, second, _, last, end = terminal.getvalue().split("\r")
    assert first == "█" * 12 + "·" * 12 + " reading: 1 of 2 files a long text"
    assert second.rstrip() == "█" * 24 + " reading: 2 of 2 files"
    assert len(second) == len(first)
    assert (last.strip(), end) == ("", "")


def test_recording_counts_on_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = watch(monkeypatch)
    monkeypatch.setattr(progress, "DELAY", 0)
    monkeypatch.setattr(progress, "INTERVAL", 0)
    with dsexplore.commtrace(world_size=2) as trace, dsexplore.commtrace():
        dist.all_reduce(torch.ones(1))
        trace.step()
        dist.all_reduce(torch.ones(1))
    drawn = [line.strip() for line in terminal.getvalue().split("\r") if line.strip()]
    assert drawn == ["tracing: 1 collectives", "tracing: 2 collectives in step 1"]


class Child:
    """A Python program that gets a real SIGINT, and then prints its results as JSON."""

    def __init__(self, program: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        )

    def wait_for(self, word: str) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == word

    def interrupt(self) -> Any:
        self._process.send_signal(signal.SIGINT)
        out, _ = self._process.communicate(timeout=240)
        assert self._process.returncode == 0
        return json.loads(out)

    def end(self) -> None:
        self._process.kill()
        self._process.wait(240)


@pytest.fixture
def children() -> Iterator[list[Child]]:
    started: list[Child] = []
    yield started
    for child in started:
        child.end()


TRACING = """
import json, sys, torch, torch.distributed as dist, dsexplore
try:
    with dsexplore.commtrace(world_size=2, save=sys.argv[1]) as trace:
        for _ in range(3):
            dist.all_reduce(torch.ones(4))
        print("ready", flush=True)
        while True:
            pass
except KeyboardInterrupt as interruption:
    saved = dsexplore.load(sys.argv[1])
    print(json.dumps([len(trace), trace.info.notes, interruption.__notes__, len(saved), saved.info.notes]))
"""


@pytest.mark.processes
def test_a_trace_that_is_interrupted_keeps_what_was_sent(tmp_path: Path, children: list[Child]) -> None:
    child = Child(TRACING, str(tmp_path / "kept"))
    children.append(child)
    child.wait_for("ready")
    early = ["the recording ended early, with KeyboardInterrupt"]
    told = f"The 3 collectives recorded until then are kept in the trace, saved in {tmp_path / 'kept'}."
    assert child.interrupt() == [3, early, [told], 3, early]


def test_an_interrupt_while_the_recording_ends_comes_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    close = recorder.Recorder.close

    def interrupted(self: recorder.Recorder, recording: Recording) -> Tables:
        os.kill(os.getpid(), signal.SIGINT)
        return close(self, recording)

    monkeypatch.setattr(recorder.Recorder, "close", interrupted)
    with (
        pytest.raises(KeyboardInterrupt),
        dsexplore.simulate(world_size=2),
        record(save=tmp_path / "kept") as trace,
    ):
        dist.all_reduce(torch.ones(1))
    assert not recorder_in_use.is_recording()
    assert len(trace) == len(dsexplore.load(tmp_path / "kept")) == 1
    with pytest.raises(UsageError, match="after the recording ended"):
        trace.step()


MERGING = """
import json, pathlib, sys, warnings, dsexplore
def parts():
    for place, file in enumerate(sorted(pathlib.Path(sys.argv[1]).iterdir())):
        if place == 2:
            print("ready", flush=True)
            while True:
                pass
        yield dsexplore.load(file)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    trace = dsexplore.Trace.merge(parts())
print(json.dumps([trace.info.ranks, trace.info.notes, [str(warning.message) for warning in caught]]))
"""


@pytest.mark.processes
def test_a_merge_that_is_interrupted_keeps_the_ranks_so_far(tmp_path: Path, children: list[Child]) -> None:
    ranks_of_four().save(tmp_path / "ranks")
    child = Child(MERGING, str(tmp_path / "ranks"))
    children.append(child)
    child.wait_for("ready")
    cut = "merging was interrupted: this trace is incomplete, with 2 of several traces"
    assert child.interrupt() == [[0, 1], [cut], [cut]]


SWEEPING = """
import json, sys, dsexplore
def report(progress):
    if progress.text.startswith("descent"):
        print("ready", flush=True)
        while True:
            pass
result = dsexplore.aio.sweep(sys.argv[1], "8MiB", 60, backend="threads", progress=report)
print(json.dumps([result.interrupted, len(result.measured) > 0]))
"""


@pytest.mark.processes
def test_a_sweep_that_is_interrupted_keeps_what_was_measured(tmp_path: Path, children: list[Child]) -> None:
    child = Child(SWEEPING, str(tmp_path))
    children.append(child)
    child.wait_for("ready")
    assert child.interrupt() == [True, True]
    assert list(tmp_path.iterdir()) == []


def ranks_of_four() -> Trace:
    return Trace(Tables(info=TraceInfo(world_size=4, ranks=(0, 1, 2, 3))))


def test_a_directory_that_is_read_only_in_part_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = files.read_file

    def interrupted(file: Path) -> Tables:
        if file.name == "rank-00002.parquet":
            raise KeyboardInterrupt
        return read(file)

    ranks_of_four().save(tmp_path / "ranks")
    monkeypatch.setattr(files, "read_file", interrupted)
    cut = f"reading {tmp_path / 'ranks'} was interrupted: this trace is incomplete, with 2 of 4 traces"
    with pytest.warns(RuntimeWarning, match="this trace is incomplete"):
        trace = dsexplore.load(tmp_path / "ranks")
    assert trace.info.ranks == (0, 1)
    assert trace.info.notes == (cut,)


def test_an_interrupt_before_the_first_part_is_an_interrupt() -> None:
    def interrupted() -> Iterator[Trace]:
        raise KeyboardInterrupt
        yield Trace()

    with pytest.raises(KeyboardInterrupt):
        Trace.merge(interrupted())


def test_a_second_merge_continues_where_a_generator_was_interrupted() -> None:
    parts = [Trace(Tables(info=TraceInfo(world_size=3, ranks=(rank,)))) for rank in range(3)]

    def interrupted() -> Iterator[Trace]:
        yield from parts[:2]
        raise KeyboardInterrupt

    with pytest.warns(RuntimeWarning, match="merging was interrupted: this trace is incomplete, with 2 of several"):
        first = Trace.merge(interrupted())
    assert first.info.ranks == (0, 1)
    assert not [note for note in first.info.notes if "left no trace" in note]
    assert Trace.merge([first, parts[2]]).info.ranks == (0, 1, 2)


def test_a_save_that_is_interrupted_tells_what_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, written = files._write, []

    def interrupted(tables: Tables, target: Path) -> None:
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(target)
        write(tables, target)

    monkeypatch.setattr(files, "_write", interrupted)
    trace = ranks_of_four()
    told = f"2 of 4 ranks are written to {tmp_path / 'ranks'}, whole; save again for the rest"
    with pytest.raises(KeyboardInterrupt) as stopped:
        trace.save(tmp_path / "ranks")
    assert stopped.value.__notes__ == [told]
    monkeypatch.undo()
    assert dsexplore.load(trace.save(tmp_path / "ranks")).info.ranks == (0, 1, 2, 3)


def test_track_is_silent_here() -> None:
    with track("nothing", 3, "files") as work:
        assert not work.is_seen
        work.advance()
    assert work.done == 1
