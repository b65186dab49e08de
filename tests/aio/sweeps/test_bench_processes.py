"""Several processes measure one setting at the same time, each on a file of its own."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

import pytest

from dsexplore._internal.aio.sweeps import bench_processes, sweep_setup
from dsexplore._internal.aio.sweeps.bench_processes import Worker, start_workers
from dsexplore._internal.errors import UsageError
from dsexplore.aio import SweepResult, sweep

pytestmark = [pytest.mark.usefixtures("open_files"), pytest.mark.processes, pytest.mark.timeout(240)]

QUICK = {"size": "16MiB", "seconds": 1.0, "queue_depth": [2], "block_size": [1 << 18], "thread_count": [1]}


def children() -> set[int]:
    """Return the processes that this one has started and not waited for."""
    return {int(word) for task in Path("/proc/self/task").iterdir() for word in (task / "children").read_text().split()}


def test_all_processes_move_bytes_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slices = []
    starts: list[float] = []
    joined, send = bench_processes.sample_of, Worker.send

    def noted(parts, task):  # type: ignore[no-untyped-def]
        slices.append(parts)
        return joined(parts, task)

    def start_noted(self: Worker, message: object) -> None:
        if isinstance(message, float) and self.number == 1:
            starts.append(message)
        send(self, message)

    monkeypatch.setattr(bench_processes, "sample_of", noted)
    monkeypatch.setattr(Worker, "send", start_noted)
    monkeypatch.setattr(sweep_setup, "_SLICE", (0.3, 0.3))  # long enough for processes that get their turn late
    before = children()
    result = sweep(tmp_path, **QUICK, processes=3)  # type: ignore[arg-type]
    assert children() == before
    assert list(tmp_path.iterdir()) == []
    assert result.conditions.processes == 3
    for parts, start, m in zip(slices, starts, result.measured, strict=True):
        assert len(parts) == 3
        assert min(part.begun for part in parts) >= start
        assert m.sample.bytes == sum(part.bytes for part in parts)
        assert m.sample.seconds == max(part.ended for part in parts) - min(part.begun for part in parts)
        assert m.sample.cpu_seconds == pytest.approx(sum(part.cpu_seconds for part in parts))
    # One at a time, they would never be at work together.
    assert any(max(part.begun for part in parts) < min(part.ended for part in parts) for parts in slices)
    assert result.bytes_written > 3 * (16 << 20)


def test_several_directories_are_measured_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [tmp_path / name for name in ("first", "second", "third")]
    for folder in folders:
        folder.mkdir()
    homes: list[str] = []
    begin = Worker.__init__

    def noted(self: Worker, number: int, arguments: dict[str, object]) -> None:
        homes.append(str(arguments["path"]))
        begin(self, number, arguments)

    monkeypatch.setattr(Worker, "__init__", noted)
    result = sweep(folders, **QUICK, processes=4)  # type: ignore[arg-type]
    assert homes == [str(folders[number]) for number in (1, 2, 0)]
    assert result.disk.path == str(folders[0])
    assert result.conditions.processes == 4
    assert result.lines()[1] == f"Measured together with {folders[1]}, {folders[2]}: rates are of all disks together."
    assert SweepResult.from_json(result.to_json()).lines() == result.lines()
    assert all(list(folder.iterdir()) == [] for folder in folders)


def test_directories_that_cannot_be_measured_together(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="two are one directory: give each once"):
        sweep([tmp_path, tmp_path / "."])
    with pytest.raises(UsageError, match="none is not a directory: of several paths, each is"):
        sweep([tmp_path, tmp_path / "none"])
    with pytest.raises(UsageError, match=r"path \[\] is empty"):
        sweep([])


@pytest.mark.usefixtures("ended_by_bytes")
def test_what_all_write_is_counted_and_bounded(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"16 MiB is written once by each of 2 processes, so give at least 64 MiB"):
        sweep(tmp_path, **QUICK, processes=2, max_written="40MiB")  # type: ignore[arg-type]
    said: list[str] = []
    words = {**QUICK, "seconds": 20, "progress": lambda p: said.append(p.text)}
    result = sweep(tmp_path, **words, processes=2, max_written="400MiB")  # type: ignore[arg-type]
    assert said[0] == "writing 2 × 16 MiB of random data, then over it up to 400 MiB in all"
    assert (32 << 20) < result.bytes_written <= 400 << 20
    assert result.spent


def test_an_existing_file_is_read_by_all(tmp_path: Path) -> None:
    path = tmp_path / "mine"
    path.write_bytes(os.urandom(9 << 20))
    result = sweep(path, **QUICK, processes=2)  # type: ignore[arg-type]
    assert (result.operations, result.bytes_written) == (["read"], 0)


@pytest.mark.parametrize("count", [0, 257, 1.5, "two", True])
def test_numbers_of_processes_that_make_no_sense(tmp_path: Path, count: object) -> None:
    with pytest.raises(UsageError, match=f"processes {count!r} is not a number of processes: give 1 to 256"):
        sweep(tmp_path, **QUICK, processes=count)  # type: ignore[arg-type]


def test_a_process_that_cannot_work_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = children()

    def elsewhere(stack, paths, *rest, **named):  # type: ignore[no-untyped-def]
        return start_workers(stack, [str(tmp_path / "none") for _ in paths], *rest, **named)

    monkeypatch.setattr("dsexplore._internal.aio.sweeps.sweeping.start_workers", elsewhere)
    with pytest.raises(OSError, match="process 1: No such file or directory") as caught:
        sweep(tmp_path, **QUICK, processes=2)  # type: ignore[arg-type]
    assert (caught.value.errno, caught.value.filename) == (errno.ENOENT, str(tmp_path / "none"))
    assert children() == before
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_is_killed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = children()
    sent: list[Worker] = []
    send = Worker.send

    def kill_at_third(self: Worker, message: object) -> None:
        sent.append(self)
        if len(sent) == 6:
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()
        send(self, message)

    monkeypatch.setattr(Worker, "send", kill_at_third)
    with pytest.raises(OSError, match="process 1 of the sweep ended with -9"):
        sweep(tmp_path, **QUICK, processes=2)  # type: ignore[arg-type]
    assert children() == before


def test_an_interrupt_ends_all_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, calls = children(), []
    receive = Worker.receive

    def interrupted(self: Worker) -> object:
        calls.append(self)
        if len(calls) > 8:
            raise KeyboardInterrupt
        return receive(self)

    monkeypatch.setattr(Worker, "receive", interrupted)
    result = sweep(tmp_path, **{**QUICK, "seconds": 60}, processes=2)  # type: ignore[arg-type]
    assert result.interrupted
    assert 0 < len(result.measured) <= 8
    assert children() == before
