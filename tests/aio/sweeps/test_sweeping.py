"""Small real sweeps, and what importing costs.

Modules: ``aio/sweeps/sweeping.py``, ``aio/sweeps/phases.py``, ``aio/sweeps/round_measurer.py``.
"""

from __future__ import annotations

import itertools
import math
import os
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dsexplore._internal.aio.backends.choose import loop_of
from dsexplore._internal.aio.sweeps import phases, search, sweeping
from dsexplore._internal.aio.sweeps.fio_and_deepspeed import why_no_reference
from dsexplore._internal.aio.sweeps.measure import Bench
from dsexplore._internal.aio.sweeps.measurements import Operation, Sample
from dsexplore._internal.aio.sweeps.references import MEMORIES, PINNED
from dsexplore._internal.aio.sweeps.result_text import what
from dsexplore._internal.aio.sweeps.sweep_setup import Plan, Setup
from dsexplore._internal.errors import UsageError
from dsexplore.aio import AioConfig, SweepResult, sweep
from tests.programs import python

pytestmark = pytest.mark.usefixtures("open_files")

QUICK = {"size": "32MiB", "seconds": 0.8, "queue_depth": [2, 8], "block_size": [1 << 18, 1 << 20], "thread_count": [1]}


def test_the_file_is_as_large_as_a_slow_disk_allows() -> None:
    plan = Plan("1GiB", 20, 0.5, "tensor", "overwrite", None, None, {})
    plan.fit(50e6)
    assert plan.size <= 50e6 * 20 / 25
    assert plan.transfers == (32 << 20,)
    assert plan.left_out == (
        "At 50.0 MB/s (47.7 MiB/s), 20 s allow a file of 36 MiB instead of 1 GiB, and no tensors of 512 MiB: give more "
        "seconds for those."
    )
    slowest = Plan("1GiB", 20, 0.5, "tensor", "overwrite", "64MiB", None, {})
    slowest.fit(1e6)
    assert slowest.transfers == (slowest.size,) == (8 << 20,)
    deep = Plan("1GiB", 20, 0.5, "tensor", "overwrite", None, None, {"queue_depth": [64], "block_size": [1 << 20]})
    deep.fit(1e6)
    assert deep.settings(deep.size)
    for seconds, rate in ((20, 2e9), (None, 1e6)):
        fast = Plan("1GiB", seconds, 0.5, "tensor", "overwrite", None, None, {})
        fast.fit(rate)
        assert (fast.size, fast.left_out) == (1 << 30, "")


@pytest.mark.parametrize("memory", ["ordinary", "huge"])
def test_both_kinds_of_memory_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: str) -> None:
    monkeypatch.setattr(phases, "_MOST_FOR_MEMORY", 100.0)
    result = sweep(tmp_path, **QUICK, memory=memory, progress=False)  # type: ignore[arg-type]
    measured = {(r.name, r.operation): len(r.rates) for r in result.references if r.name != "ring"}
    assert measured == dict.fromkeys(itertools.product(MEMORIES, ("read", "write")), 5)
    assert SweepResult.from_json(result.to_json()).conditions.memory == result.conditions.memory == memory
    with pytest.raises(UsageError, match="memory 'fast' is unknown: 'ordinary' pages or 'huge' ones"):
        sweep(tmp_path, memory="fast")


def test_pinned_memory_is_measured_where_there_is_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace pinned memory by ordinary memory, since there is no GPU here."""
    pinned: list[int] = []

    def allocate(nbytes: int) -> np.ndarray[Any, Any]:
        pinned.append(nbytes)
        return np.zeros(nbytes, np.uint8)

    monkeypatch.setattr("dsexplore._internal.aio.buffers._pinned_bytes", allocate)
    monkeypatch.setattr(phases, "can_pin", lambda: True)
    monkeypatch.setattr(phases, "_MOST_FOR_MEMORY", 100.0)
    result = sweep(tmp_path, **QUICK, progress=False)  # type: ignore[arg-type]
    measured = {(r.name, r.operation): len(r.rates) for r in result.references if r.name != "ring"}
    assert measured == dict.fromkeys(itertools.product((*MEMORIES, PINNED), ("read", "write")), 5)
    assert pinned == [result.conditions.size]


def test_a_slow_disk_is_probed_before_its_file_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsexplore._internal.aio.sweeps.sweep_setup.probed_rate", lambda fd, nbytes: 350e6)
    result = sweep(tmp_path, "256MiB", 1, progress=False, queue_depth=[2, 4])
    assert result.conditions.size == 12 << 20
    assert "1 s allow a file of 12 MiB instead of 256 MiB" in str(result)


def test_sweep_of_a_directory(tmp_path: Path, backend: str) -> None:
    told: list[tuple[float, str]] = []
    result = sweep(tmp_path, **QUICK, backend=backend, progress=lambda p: told.append(p))  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
    assert result.disk.path == str(tmp_path)  # not the name of a scratch file that is gone
    assert result.operations == ["read", "write"]
    assert result.conditions.backend == backend
    assert result.conditions.write_mode == "overwrite"
    assert result.bytes_written > 32 << 20
    assert not result.interrupted
    assert {m.phase for m in result.measured} == {"descent", "finals"}
    for number in {m.round for m in result.measured}:
        assert AioConfig() in {m.sample.config for m in result.measured if m.round == number}
    assert AioConfig.from_dict(result.to_ds_config()).queue_depth in (2, 8)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1] == (1.0, "done")
    assert result.references[0].name == "ring"


def test_sweep_of_an_existing_file_only_reads(tmp_path: Path) -> None:
    path = tmp_path / "mine"
    path.write_bytes(os.urandom(9 << 20))
    path.chmod(0o400)
    before = path.read_bytes(), path.stat().st_mtime_ns
    result = sweep(path, **QUICK)  # type: ignore[arg-type]
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert (result.operations, result.bytes_written, result.conditions.write_mode) == (["read"], 0, "none")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.usefixtures("short_slices")
def test_the_full_grid(tmp_path: Path) -> None:
    axes = {"queue_depth": [4, 8], "thread_count": [1], "block_size": [1 << 20], "single_submit": [False]}
    told: list[tuple[float, str]] = []
    result = sweep(tmp_path, "32MiB", None, read_share=1.0, progress=told.append, **axes)  # type: ignore[arg-type]
    measured = {m.sample.config for m in result.measured if m.phase == "grid"}
    assert len(measured) == 2 * 2
    grid = [(done, text) for done, text in told if text.startswith("grid")]
    assert [done for done, _ in grid] == [min(step / 4, 0.99) for step in range(1, len(grid) + 1)]
    assert {done for done, text in told if text.startswith("finals")} == {0.99}
    assert result.operations == ["read"]


@pytest.mark.parametrize("setting", [AioConfig(queue_depth=2), AioConfig()], ids=["other", "default"])
def test_one_setting_is_compared_with_the_default(tmp_path: Path, setting: AioConfig) -> None:
    axes = ("block_size", "queue_depth", "thread_count", "single_submit", "overlap_events")
    result = sweep(tmp_path, "16MiB", 0.3, **{key: [getattr(setting, key)] for key in axes})  # type: ignore[arg-type]
    assert {m.sample.config for m in result.measured} == {setting, AioConfig()}
    assert set(result.best().tied) <= {setting, AioConfig()}


def test_only_settings_of_the_axes_that_fit_are_compared_with_the_default(tmp_path: Path) -> None:
    axes = {"block_size": [1 << 21, 1 << 18], "queue_depth": [16], "thread_count": [2], "overlap_events": [True]}
    result = sweep(tmp_path, "32MiB", 0.3, **axes)  # type: ignore[arg-type]
    others = {m.sample.config for m in result.measured} - {AioConfig()}
    assert {(c.block_size, c.queue_depth, c.thread_count) for c in others} == {(1 << 18, 16, 2)}


def test_settings_are_measured_often_enough_where_a_tensor_takes_longer_than_a_slice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Move tensors that take ten slices to their end, which only the finals wait for."""
    now, noise = [0.0], random.Random(1)

    def measured(
        _: Bench,
        config: AioConfig,
        operation: Operation,
        seconds: float,
        *,
        transfer: int = 32 << 20,
        whole: bool = False,
        **more: object,
    ) -> Sample:
        rate = transfer / (10 * seconds) * math.exp(noise.gauss(0, 0.2))
        taken = transfer / rate if whole else seconds
        now[0] += taken
        size = transfer if whole else int(rate * seconds)
        return Sample(operation, config, size, taken, 0.01, 0.0, 1e-3, 1e-3, 1e-3, 1e-3, transfer)

    monkeypatch.setattr(Bench, "measure", measured)
    monkeypatch.setattr(sweeping, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(phases, "measure_limit", lambda run: None)
    result = sweep(tmp_path, "32MiB", 60, tensor="32MiB")
    assert len({m.round for m in result.measured if m.phase == "finals"}) >= search.FEWEST_ROUNDS


def test_tensors_of_several_sizes(tmp_path: Path) -> None:
    result = sweep(tmp_path, **QUICK, tensor=["4MiB", 8 << 20])  # type: ignore[arg-type]
    assert result.conditions.transfers == (4 << 20, 8 << 20)
    for number in {m.round for m in result.measured}:
        settings = {m.sample.config for m in result.measured if m.round == number}
        wanted = set(itertools.product(settings, ("read", "write"), (4 << 20, 8 << 20)))
        measured = [
            (m.sample.config, m.sample.operation, m.sample.transfer) for m in result.measured if m.round == number
        ]
        assert set(measured) == wanted
        assert len(measured) == len(wanted)
    assert sweep(tmp_path, **QUICK).conditions.transfers == (32 << 20,)  # type: ignore[arg-type]


def test_the_finals_move_tensors_to_their_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure, whole = Bench.measure, set()

    def noted(self, *args, **named):  # type: ignore[no-untyped-def]
        whole.add((run[0], named["whole"]))
        return measure(self, *args, **named)

    run = ["descent"]
    monkeypatch.setattr(Bench, "measure", noted)
    finals = search.finals

    def begin(*args):  # type: ignore[no-untyped-def]
        run[0] = "finals"
        try:
            return finals(*args)
        finally:
            monkeypatch.setattr(Bench, "measure", measure)

    monkeypatch.setattr(search, "finals", begin)
    sweep(tmp_path, **QUICK)  # type: ignore[arg-type]
    assert whole == {("descent", False), ("finals", True)}


def test_a_sparse_file_is_not_taken_for_a_disk(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.write(os.urandom(8 << 20))
        file.truncate(32 << 20)
    result = sweep(path, **QUICK)  # type: ignore[arg-type]
    assert result.conditions.data_share == pytest.approx(0.25, abs=0.01)
    assert "75 % of the file are holes or compressed" in result.best().verdict()
    assert result.best().config == AioConfig()


@pytest.mark.parametrize("write_mode", ["fresh", "fallocated"])
def test_other_write_modes(tmp_path: Path, write_mode: str) -> None:
    result = sweep(tmp_path, **QUICK, write_mode=write_mode, read_share=0.0)  # type: ignore[arg-type]
    assert (result.operations, result.conditions.write_mode) == (["write"], write_mode)
    assert list(tmp_path.iterdir()) == []


def test_ring_mode_and_the_page_cache_are_labeled(tmp_path: Path) -> None:
    result = sweep(tmp_path, **QUICK, mode="ring", direct=False)  # type: ignore[arg-type]
    assert result.conditions.mode == "ring"
    assert what(result).endswith(f"page cache); ring mode by linux-aio (loop in {loop_of('linux-aio')})")


@pytest.fixture(scope="session")
def missing_references() -> dict[str, str | None]:
    """Return why each reference cannot run; asked before descriptors are counted, since DeepSpeed keeps some."""
    return {name: why_no_reference(name) for name in ("fio", "deepspeed")}


def test_references(tmp_path: Path, missing_references: dict[str, str | None]) -> None:
    result = sweep(tmp_path, **QUICK, references=["fio", "deepspeed"])  # type: ignore[arg-type]
    for name, reason in missing_references.items():
        if reason is not None:
            assert result.conditions.unavailable[name] == reason
            assert not [r for r in result.references if r.name == name]
        else:
            runs = [r for r in result.references if r.name == name]
            assert {r.operation for r in runs} == {"read", "write"}
            assert all(1e-3 < r.rate / result.best().rate < 1e3 for r in runs)  # in the same unit, on any disk


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": "1MiB"}, "size 1 MiB is too small: at least 8 MiB"),
        ({"size": "much"}, "size 'much' is not a number"),
        ({"seconds": 0}, "seconds 0 is not a time to spend"),
        ({"seconds": float("nan")}, "seconds nan is not a time to spend"),
        ({"seconds": "10"}, "seconds '10' is not a time to spend"),
        ({"read_share": 1.5}, "read_share 1.5 is not a share"),
        ({"read_share": "half"}, "read_share 'half' is not a share"),
        ({"mode": "fast"}, "mode 'fast' is unknown"),
        ({"write_mode": "append"}, "write_mode 'append' is unknown"),
        ({"backend": "libaio"}, "backend 'libaio' is unknown"),
        ({"references": ["dd"]}, "reference 'dd' is unknown"),
        ({"references": "dd"}, "reference 'dd' is unknown"),
        ({"tensor": "64MiB"}, "tensor 64 MiB does not fit: give sizes from 4096 bytes to .* 32 MiB"),
        ({"tensor": ["8MiB", 100]}, "tensor 100 B does not fit"),
        ({"tensor": []}, "tensor 0 B does not fit"),
        ({"tensor": "large"}, "size 'large' is not a number"),
        (
            {"max_written": "33MiB"},
            "max_written 33 MiB is too small: the file of 32 MiB is written once.* least 48 MiB",
        ),
        ({"block_size": [1 << 30]}, "no setting of these axes fits a size of 32 MiB.*or a larger size"),
        ({"depth": [3]}, "axis 'depth' is unknown"),
        ({"size": "900TiB"}, "more than half of the .* mode='ring'"),
        (
            {"size": "8GiB", "processes": 256, "max_written": 1},
            "size 8 GiB as one tensor by each of 256 processes is more than half of the",
        ),
    ],
)
def test_wrong_arguments(tmp_path: Path, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        sweep(tmp_path, **{"size": "32MiB", "seconds": 1, **arguments})  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_axes_that_do_not_fit_are_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Setup, "_fill", pytest.fail)
    smallest = "128 KiB × depth 1000000 × 1 thread, .* has 122.1 GiB in flight"
    with pytest.raises(UsageError, match=f"the smallest, {smallest}"):
        sweep(tmp_path, "32MiB", 1, queue_depth=[1_000_000])


def test_paths_that_cannot_be_swept(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="none"):
        sweep(tmp_path / "none", "32MiB", 1)
    with pytest.raises(UsageError, match="path '' is empty"):
        sweep("", "32MiB", 1)
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/null", tmp_path / "pipe"):
        with pytest.raises(UsageError, match=f"{path} is neither a directory nor a file of data: give a directory"):
            sweep(path, "32MiB", 1)
    (tmp_path / "tiny").write_bytes(bytes(100))
    with pytest.raises(UsageError, match=r"tiny holds 100 B.*give a larger file, or a directory"):
        sweep(tmp_path / "tiny", "32MiB", 1)


def test_importing_and_sweeping_need_no_torch(tmp_path: Path) -> None:
    program = (
        "import sys, dsexplore.aio as aio\n"
        "assert 'numpy' not in sys.modules\n"
        "aio.AioConfig, aio.SweepResult, aio.aio_handle, aio.sweep, aio.AIO\n"
        f"aio.sweep({str(tmp_path)!r}, '16MiB', 0.5)\n"
        "print(sorted({'torch', 'polars', 'plotly', 'IPython'} & set(sys.modules)))"
    )
    done = python(program)
    assert (done.stdout, done.stderr) == ("[]\n", "")
