"""Checkpoints by each method: whole on the disk, loaded again, and timed at the right places."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
import torch

from dsexplore import aio
from dsexplore._internal.aio.checkpoints.checkpoint_rates import (
    ASYNCHRONOUS,
    METHODS,
    MethodRates,
    SaveTime,
    measure_rates,
    overhead_of,
    why_no_method,
)
from dsexplore._internal.errors import UsageError
from dsexplore._internal.units import format_rate

STATE = {"a": torch.arange(3000.0), "b": torch.ones(7, 5)}


def test_times_are_those_of_the_clock(tmp_path: Path) -> None:
    """Count ticks of the clock: before a save, when it returns, when all is on the disk, and in a load."""
    ticks = count()
    rates = measure_rates(tmp_path, STATE, 2, lambda: float(next(ticks)))
    assert [method.name for method in rates.methods] == [name for name in METHODS if why_no_method(name) is None]
    for method in rates.methods:
        stall = 1.0 if method.name == ASYNCHRONOUS else 2.0
        assert method.times == (SaveTime(stall, 2.0, 2.0),) * 2
        assert method.nbytes == 4 * 3035
    assert list(tmp_path.iterdir()) == []
    assert repr(rates).startswith("<CheckpointRates of ")
    assert f"saving: torch.save {format_rate(2 * 3035)}, " in repr(rates)


def test_seconds_are_in_proportion_to_bytes() -> None:
    method = MethodRates(
        "torch.save", 1000, (SaveTime(1.0, 2.0, 4.0), SaveTime(3.0, 6.0, 4.0), SaveTime(1.0, 2.0, 8.0))
    )
    assert method.seconds(3000) == SaveTime(3.0, 6.0, 12.0)
    assert (method.write_rate, method.read_rate) == (500.0, 250.0)


def test_a_checkpoint_and_its_tensors_take_time_besides_bytes() -> None:
    few = [SaveTime(0.5, 1.5, 3.0), SaveTime(0.5, 1.5, 3.0), SaveTime(9.0, 9.0, 9.0)]
    many = [SaveTime(0.5, 31.5, 123.0)]
    fixed, per_tensor = overhead_of(few, many)  # 16 and 256 tensors
    assert (fixed, per_tensor) == (SaveTime(0.5, 0.0, 0.0), SaveTime(0.0, 0.125, 0.5))  # never below nothing
    method = MethodRates("DCP", 1000, (SaveTime(1.5, 2.25, 9.0),), 10, SaveTime(0.5, 0.25, 0.0), per_tensor)
    assert method.seconds(2000, 100) == SaveTime(2.5, 0.25 + 12.5 + 1.5, 50.0 + 8.0)
    assert method.write_rate == 1333.3333333333333
    # A measured checkpoint is predicted as it was measured.
    assert method.seconds(1000, 10) == SaveTime(1.5, 2.25, 9.0)


def test_of_a_checkpoint_too_small_for_the_overhead_bytes_take_all() -> None:
    method = MethodRates("DCP", 1000, (SaveTime(1.0, 1.0, 1.0),), 10, SaveTime(2.0, 0.5, 1.0))
    assert method.seconds(2000, 10) == SaveTime(4.0, 1.5, 3.0)


def test_planning_of_many_tensors_is_measured(tmp_path: Path) -> None:
    """DCP calls its planner for each tensor: counted as a clock that ticks whenever one is written."""
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
    from torch.distributed.checkpoint.planner import SavePlanner

    written = 0
    resolve = DefaultSavePlanner.resolve_data

    def counted(self: SavePlanner, item: object) -> object:
        nonlocal written
        written += 1
        return resolve(self, item)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DefaultSavePlanner, "resolve_data", counted)
        (method,) = measure_rates(tmp_path, STATE, 1, lambda: float(written), ["DCP"]).methods
    assert method.per_tensor.durable == 1.0
    assert method.seconds(method.nbytes, 1000).durable == 1000.0 + 2.0


def test_an_unknown_method_is_refused(tmp_path: Path) -> None:
    rates = measure_rates(tmp_path, STATE, 1, lambda: 0.0, ["torch.save"])
    assert rates["torch.save"].nbytes == 4 * 3035
    with pytest.raises(UsageError, match="'tar' was not measured: there is"):
        rates["tar"]


@pytest.mark.parametrize(("size", "rounds", "said"), [("1MiB", 1, "too small"), ("8MiB", 0, "rounds 0")])
def test_what_cannot_be_measured_is_refused(size: str, rounds: int, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        aio.checkpoint_rates(tmp_path, size, rounds=rounds)
