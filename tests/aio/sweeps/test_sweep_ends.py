"""A sweep ends when its time or the bytes to write are used up, or with Ctrl-C.

Modules: ``aio/sweeps/sweeping.py``, ``aio/sweeps/phases.py``, ``aio/sweeps/round_measurer.py``.
"""

from __future__ import annotations

import math
import random
from pathlib import Path
from types import SimpleNamespace

import pytest

from dsexplore._internal.aio.sweeps import phases, sweeping
from dsexplore._internal.aio.sweeps.measure import Bench
from dsexplore._internal.aio.sweeps.measurements import Operation, Sample
from dsexplore._internal.aio.sweeps.sweep_setup import Progress
from dsexplore.aio import AioConfig, SweepResult, sweep
from tests.aio.sweeps.test_sweeping import QUICK

pytestmark = pytest.mark.usefixtures("open_files")


@pytest.mark.parametrize(("around", "seconds"), [(0.5, 30), (4.0, 30), (2.0, 8)])
def test_a_sweep_keeps_to_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, around: float, seconds: float
) -> None:
    """End in time with an overhead of ``around`` times the slice."""
    now, noise = [0.0], random.Random(1)

    def measured(_: Bench, config: AioConfig, operation: Operation, seconds: float, **more: object) -> Sample:
        now[0] += seconds * (1 + around)
        rate = 1e9 * math.log2(2 + config.queue_depth) * math.exp(noise.gauss(0, 0.2))
        return Sample(operation, config, int(rate * seconds), seconds, 0.01, 0.0, 1e-3, 1e-3, 1e-3, 1e-3)

    monkeypatch.setattr(Bench, "measure", measured)
    monkeypatch.setattr(sweeping, "time", SimpleNamespace(monotonic=lambda: now[0]))
    shown: list[tuple[float, float]] = []
    result = sweep(tmp_path, "32MiB", seconds, progress=lambda p: shown.append((p.done, now[0])))
    assert 0.75 * seconds < result.elapsed <= seconds
    first, *measuring, last = shown
    assert (first[0], last[0]) == (0.0, 1.0)
    assert [done for done, _ in measuring] == pytest.approx([min(moment / seconds, 0.99) for _, moment in measuring])
    assert len({m.round for m in result.measured if m.phase == "finals"}) >= 3  # nothing is sure before
    assert result.references  # what the disk gives at most was measured within the time, too


def test_a_round_of_the_descent_ends_when_its_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweep a disk that takes 2 s for each slice: a round of ten settings would take longer than the sweep may."""
    now = [0.0]

    def measured(
        self: Bench, config: AioConfig, operation: Operation, seconds: float, *, transfer: int = 0, **_: object
    ) -> Sample:
        now[0] += 2.0
        return Sample(operation, config, 1 << 20, 2.0, 0.01, 0.0, 1e-3, 1e-3, 1e-3, 1e-3, transfer)

    monkeypatch.setattr(Bench, "measure", measured)
    monkeypatch.setattr(sweeping, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(phases, "measure_limit", lambda run: None)
    for seed in range(4):
        now[0] = 0.0
        result = sweep(tmp_path, "32MiB", 20, tensor="32MiB", seed=seed, queue_depth=[*range(1, 33)], progress=False)
        first = [m.sample.config for m in result.measured if m.round == 1]
        assert AioConfig() in first
        assert len(set(first)) > 1
        before_control = 4 * first.index(AioConfig()) / 2  # seconds: it is the first that can be compared
        assert 4 * len(set(first)) <= max(0.45 * 20, before_control + 4) + 4


def written_by_this_process() -> int:
    """Return the bytes that this process has sent to disks."""
    counters = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counters["write_bytes"])


@pytest.mark.usefixtures("ended_by_bytes")
@pytest.mark.parametrize(("most", "compared"), [("48MiB", False), ("800MiB", True)])
def test_no_more_is_written_than_may_be(tmp_path: Path, most: str, compared: bool) -> None:
    said: list[str] = []
    written_before = []

    def report(progress: Progress) -> None:
        said.append(progress.text)
        written_before.append(written_by_this_process())

    before = written_by_this_process()
    result = sweep(tmp_path, **{**QUICK, "seconds": 90}, max_written=most, progress=report)  # type: ignore[arg-type]
    assert said[0] == f"writing 32 MiB of random data, then over it up to {most.replace('MiB', ' MiB')} in all"
    assert written_before[0] - before < 1 << 20  # said before it is written
    assert bool(result.rounds) is compared
    assert (32 << 20) < result.bytes_written <= result.conditions.most_written  # type: ignore[operator]
    assert result.spent
    assert any(line.startswith(f"Ended when the {most.replace('MiB', ' MiB')} that may be") for line in result.lines())
    numbers = {m.round for m in result.measured}
    assert all(len({m.sample.config for m in result.measured if m.round == number}) > 1 for number in numbers)


def test_only_reads_write_nothing_but_the_file(tmp_path: Path) -> None:
    said: list[str] = []
    axes = {**QUICK, "read_share": 1.0, "max_written": "32MiB", "progress": lambda p: said.append(p.text)}
    result = sweep(tmp_path, **axes)  # type: ignore[arg-type]
    assert said[0] == "writing 32 MiB of random data"
    assert (result.bytes_written, result.spent) == (32 << 20, False)


@pytest.mark.parametrize("after", [3, 15])
def test_an_interrupt_gives_the_results_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    measure, calls = Bench.measure, []

    def interrupted(self, *args, **named):  # type: ignore[no-untyped-def]
        calls.append(args)
        if len(calls) > after:
            raise KeyboardInterrupt
        return measure(self, *args, **named)

    monkeypatch.setattr(Bench, "measure", interrupted)
    result = sweep(tmp_path, **{**QUICK, "seconds": 60})  # type: ignore[arg-type]
    assert result.interrupted
    assert len(result.measured) == after
    assert list(tmp_path.iterdir()) == []
    assert result.unfinished_round == result.measured[-1].round
    assert SweepResult.load(result.save(tmp_path / "partial.json")) == result
    if after == 15:
        assert result.best()


def test_an_interrupt_of_a_reference_keeps_every_round_of_the_finals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(run: phases.RunningSweep, name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sweeping, "why_no_reference", lambda name: None)
    monkeypatch.setattr(phases, "run_reference", interrupted)
    result = sweep(tmp_path, **QUICK, references="fio", progress=False)  # type: ignore[arg-type]
    finals = {m.round for m in result.measured if m.phase == "finals"}
    assert result.interrupted
    assert {m.round for m in result.deciding} == finals
    assert result.best().ratio.n == len(finals)
    assert "Interrupted: the results so far." in result.lines()


def test_an_interrupt_before_anything_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Bench, "measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sweep(tmp_path, **QUICK)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
